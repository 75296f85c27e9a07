"""A question and its chain as a process reward model's input, with the scored positions (arXiv:2509.19003, 3.4).

A step is scored at the token that closes it, an answer likewise. These are looked for among the ids of the completion
alone, which are put after those of the prompt: a question may hold the same tokens as text. Names of the tokenizer's
special tokens are no more than text in a completion: a policy that writes "<|image_pad|>" has shown no picture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..compat.model_parts import placeholder_ids
from ..data.images import pictures_of
from ..generation.batch import ProcessingClass, Prompt, collate, encode, tokenizer_of
from ..generation.model_loading import ENCODING_ERRORS
from ..messages import completion_text
from .template import ANSWER_END, STEP_END, ChainError, Ends, scored_ends
from .tokens import chain_token_ids

ANSWER, STEPS = slice(0, 1), slice(1, None)
"""Which columns of a (B, P) batch of positions, scores or labels belong to the answer and to the steps."""
LAST = -1
"""Position of a row's last token."""


class UnscorableRow(ValueError):
    """A row that no process reward model can score."""


class ScoredChain(NamedTuple):
    """One row, ready for a batch.

    Attributes:
        prompt: the conversation with the completion at its end.
        steps: for each step, where in `prompt.ids` the token stands that closes it.
        answer: position of the token that closes the answer; `None` in a partial chain.
    """

    prompt: Prompt
    steps: list[int]
    answer: int | None


def read_completion(completion: Any, where: str) -> tuple[str, Ends]:
    """Return the text of a row's completion, and its scored positions.

    Raises:
        UnscorableRow: it is no text and no message, or a malformed chain.
    """
    try:
        text = completion_text(completion, where)
        return text, scored_ends(text)
    except ChainError as error:
        raise UnscorableRow(
            f"The completion of {where}: {error}. Cut an unfinished one after its last whole step."
        ) from error
    except ValueError as error:
        raise UnscorableRow(str(error)) from error


class ChainEncoder:
    """Turns rows into the inputs of a process reward model.

    Args:
        config: configuration of the model.
        processing_class: its processor, or a text-only model's tokenizer, which has the template's tokens; it is not
            changed.

    Raises:
        ValueError: a token of the template is missing or split.
    """

    def __init__(self, config: Any, processing_class: ProcessingClass) -> None:
        self._processing_class = processing_class
        self._tokenizer = tokenizer_of(processing_class)
        ids = chain_token_ids(processing_class)
        self._step_end, self._answer_end = ids[STEP_END], ids[ANSWER_END]
        self._amid_placeholders = _amid(self._tokenizer.convert_ids_to_tokens(placeholder_ids(config)))
        pad, eos = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
        self.pad_token_id = eos if pad is None else pad

    def encode(self, row: Mapping[str, Any], where: str) -> ScoredChain:
        """Encode one row.

        Args:
            row: `prompt` (messages), `images` or `image`, and `completion`.
            where: which row it is, for errors.

        Raises:
            UnscorableRow: the chain is malformed, the conversation cannot be encoded, or the tokenizer reads other
                tokens than are in the text.
        """
        text, ends = read_completion(row["completion"], where)
        try:
            prompt = encode(self._processing_class, row["prompt"], pictures_of(row))
            ids = self._ids(text)
        except ENCODING_ERRORS as error:
            raise UnscorableRow(f"The conversation of {where} cannot be encoded: {error}") from error
        first = len(prompt.ids)
        steps = [first + place for place, token in enumerate(ids) if token == self._step_end]
        answers = [first + place for place, token in enumerate(ids) if token == self._answer_end]
        expected = len(ends.steps), int(ends.answer is not None)
        if (len(steps), len(answers)) != expected:
            raise UnscorableRow(
                f"The completion of {where} has {expected[0]} step(s) and {expected[1]} answer(s), but the tokenizer "
                f"reads {len(steps)} and {len(answers)} from it. Pass the processor that was saved with the model."
            )
        return ScoredChain(prompt.extended(ids), steps, answers[0] if answers else None)

    def _ids(self, text: str) -> list[int]:
        """Encode the template's tokens as ids, but the names of special tokens and placeholders as plain text."""
        ids = []
        for part in self._amid_placeholders.split(text):
            ids += self._tokenizer(part, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        self._tokenizer("", add_special_tokens=False)  # or its backend would keep splitting them for others
        return ids

    def collate(self, chains: Sequence[ScoredChain]) -> tuple[dict[str, Tensor], Tensor]:
        """Make a batch of encoded rows.

        Returns:
            The model's inputs, left-padded, and (B, P) where in a row its scores are: the answer's, then the steps'.
            They are counted from the row's end, so that padding does not change them. Places without a score point to
            the last token, whose hidden state is a real one.
        """
        inputs = collate([chain.prompt for chain in chains], self.pad_token_id)
        positions = torch.full((len(chains), 1 + max(len(chain.steps) for chain in chains)), LAST)
        for row, chain in zip(positions, chains, strict=True):
            row[1 : 1 + len(chain.steps)] = torch.tensor(chain.steps, dtype=torch.long) - len(chain.prompt.ids)
            if chain.answer is not None:
                row[0] = chain.answer - len(chain.prompt.ids)
        return inputs, positions


def _amid(tokens: Sequence[str]) -> re.Pattern[str]:
    """Pattern of the positions after each token's first character; the tokens need not be special."""
    return re.compile("|".join(f"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in tokens) or "(?!)")
