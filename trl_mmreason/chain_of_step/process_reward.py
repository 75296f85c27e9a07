"""A process reward model: an ordinary vision-language model that scores every step and the answer (arXiv:2509.19003).

    r = σ(logit₊ − logit₋) = σ(h · (w₊ − w₋))

of two chosen tokens, with h the last hidden state at the token that closes the step or the answer, and w the tokens'
rows of the output embeddings (after Math-Shepherd; the paper leaves open how its model gives a score). There is no head
of its own, so it saves, loads, quantises and is served like any model. One forward pass gives all scores of a chain.

The closing tokens are looked for among the ids of the completion alone, which are put after those of the prompt: a
question may hold the same tokens as text. Names of the tokenizer's special tokens are no more than text in a
completion: a policy that writes "<|image_pad|>" has shown no image.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import extract_model_from_parallel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import PreTrainedModel

from ..compat.model_parts import placed, placeholder_ids
from ..compat.replaced import replaced
from ..data.images import images_of
from ..generation.batch import ProcessingClass, Prompt, collate, encode, tokenizer_of
from ..generation.model_loading import ENCODING_ERRORS, fingerprint, load_model, load_processor, processor_fingerprint
from ..messages import completion_text
from .template import ANSWER_END, STEP_END, ChainError, ScorableText, scored_ends
from .tokens import chain_token_ids

_logger = logging.getLogger(__name__)

DEFAULT_TOKENS = {"right": "+", "wrong": "-"}
"""Which tokens stand for a right and for a wrong step, unless a model was made with others."""

TOKENS_RECORD = "process_reward_tokens"
"""What the entry of a model's configuration is called that says which tokens these are; vLLM reads others."""

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
        steps: for each step the position of the token that closes it, counted from the end: −1 is the last token.
        answer: position of the token that closes the answer; `None` in a partial chain.
    """

    prompt: Prompt
    steps: list[int]
    answer: int | None


def read_completion(completion: Any, where: str) -> ScorableText:
    """Parse a row's completion, unless it has been parsed already.

    Raises:
        UnscorableRow: it is no text and no message, or a malformed chain.
    """
    if isinstance(completion, ScorableText):
        return completion
    try:
        text = completion_text(completion, where)
        scored_ends(text)
    except ChainError as error:
        raise UnscorableRow(
            f"The completion of {where}: {error}. Cut an unfinished one after its last whole step."
        ) from error
    except ValueError as error:
        raise UnscorableRow(str(error)) from error
    return ScorableText(text)


def count_parts(text: ScorableText) -> tuple[int, int]:
    """Number of steps and of answers that are scored: in a chain nothing else holds their closing tokens."""
    return text.count(STEP_END), text.count(ANSWER_END)


class ChainEncoder:
    """Turns rows into the inputs of a process reward model; its processor has the template's tokens.

    Raises:
        ValueError: a token of the template is missing or split.
    """

    def __init__(self, config: Any, processing_class: ProcessingClass) -> None:
        self._processing_class = processing_class
        self._tokenizer = tokenizer_of(processing_class)
        ids = chain_token_ids(processing_class)
        self._step_end, self._answer_end = ids[STEP_END], ids[ANSWER_END]
        placeholders = self._tokenizer.convert_ids_to_tokens(placeholder_ids(config))  # which need not be special
        amid = "|".join(f"(?<={re.escape(token[0])})(?={re.escape(token[1:])})" for token in placeholders)
        self._amid_placeholders = re.compile(amid or "(?!)")  # after the first character of each
        pad, eos = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
        self.pad_token_id = eos if pad is None else pad

    def encode(self, row: Mapping[str, Any], where: str) -> ScoredChain:
        """Encode one row, named `where` in errors; see `ProcessRewardModel.score`.

        Raises:
            UnscorableRow: the chain is malformed, the conversation cannot be encoded, or the tokenizer reads other
                tokens than are in the text.
        """
        text = read_completion(row["completion"], where)
        try:
            prompt = encode(self._processing_class, row["prompt"], images_of(row))
            ids = self._ids(text)
        except ENCODING_ERRORS as error:
            raise UnscorableRow(f"The conversation of {where} cannot be encoded: {error}") from error
        steps, answers = (
            [place - len(ids) for place, token in enumerate(ids) if token == end]
            for end in (self._step_end, self._answer_end)
        )
        expected = count_parts(text)
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
            The model's inputs, left-padded, and (B, P) positions of each row's scores, counted from its end: the
            answer's, then the steps'. Places without a score point to the last token, whose hidden state is a real one.
        """
        inputs = collate([chain.prompt for chain in chains], self.pad_token_id)
        positions = torch.full((len(chains), 1 + max(len(chain.steps) for chain in chains)), LAST)
        for row, chain in zip(positions, chains, strict=True):
            places = [LAST if chain.answer is None else chain.answer, *chain.steps]
            row[: len(places)] = torch.tensor(places)
        return inputs, positions


class Scores(NamedTuple):
    """The probabilities that each step and the answer of a chain are right.

    Attributes:
        steps: (S,) float32 in [0, 1], on the CPU.
        answer: score of the answer in [0, 1]; `None` without an answer.
    """

    steps: Tensor
    answer: float | None


class ProcessRewardModel:
    """Scores chains of steps, in one thread at a time.

    Args:
        model: knows the template's tokens; its configuration records the two tokens. A text-only model scores rows
            without images.
        processing_class: its processor, or a text-only model's tokenizer; it is not changed.
        right_token, wrong_token: the two tokens; by default those that the model was made with, or "+" and "-".

    Raises:
        ValueError: a token of the template is missing, or see `label_token_ids`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processing_class: ProcessingClass,
        *,
        right_token: str | None = None,
        wrong_token: str | None = None,
    ) -> None:
        self.model = model
        self.processing_class = processing_class
        self._weights: str | None = None
        self._token_ids = label_token_ids(model, processing_class, right_token, wrong_token)
        self._encoder = ChainEncoder(model.config, processing_class)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, right_token: str | None = None, wrong_token: str | None = None, **loading: Any
    ) -> ProcessRewardModel:
        """Load a checkpoint, or an adapter together with its base model.

        Args:
            path: folder or Hub id.
            right_token, wrong_token: the two tokens whose logits make the score.
            **loading: `dtype`, `device`, `revision`, `trust_remote_code` and what else `load_model` takes.

        Raises:
            ValueError: the checkpoint is no process reward model.
        """
        trusted = {name: loading[name] for name in ("revision", "trust_remote_code") if name in loading}
        model, weights = load_model(str(path), **loading)
        processor = load_processor(str(path), **trusted)
        try:
            loaded = cls(model, processor, right_token=right_token, wrong_token=wrong_token)
        except ValueError as error:
            raise ValueError(f"{path} cannot be used as a process reward model: {error}") from error
        loaded._weights = weights
        return loaded

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the scores, as JSON: fingerprints of weights and processor, precision, and the two tokens."""
        return {
            "kind": "process_reward_model",
            "weights": self._weights or fingerprint(self.model.named_parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "processor": processor_fingerprint(self.processing_class),
            "tokens": getattr(self.model.config, TOKENS_RECORD),
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Save model and processor, for `from_pretrained` and for any library that knows the family."""
        self.model.save_pretrained(folder)
        self.processing_class.save_pretrained(folder)

    def score(self, rows: Sequence[Mapping[str, Any]], *, batch_size: int = 8) -> list[Scores]:
        """Score every row, in order. Scores depend on the row only, up to rounding.

        Args:
            rows: `prompt` (messages), `images` (or `image`, or none) and `completion` (the chain, whole or partial; a
                string or a message).
            batch_size: rows of similar length that go through the model at a time; halved when memory runs out.

        Raises:
            UnscorableRow: a `ValueError`: a malformed chain, say; names the row by its number, from 0.
            torch.OutOfMemoryError: a row does not fit in memory by itself.
        """
        if batch_size < 1:
            raise ValueError(f"ProcessRewardModel.score: got batch_size={batch_size}, expected 1 or more.")
        order = sorted(range(len(rows)), key=lambda number: -len(str(rows[number]["completion"])))
        scores: dict[int, Scores] = {}
        training = self.model.training
        self.model.eval()
        try:
            while len(scores) < len(rows):
                numbers = order[len(scores) : len(scores) + batch_size]
                chains = [self._encoder.encode(rows[number], f"row {number}") for number in numbers]
                differences = self._differences(chains)
                if differences is None:
                    batch_size = self._smaller(numbers)
                    continue
                for number, chain, row in zip(numbers, chains, differences.sigmoid().cpu(), strict=True):
                    answer = None if chain.answer is None else row[ANSWER].item()
                    scores[number] = Scores(row[STEPS][: len(chain.steps)], answer)
        finally:
            self.model.train(training)
        return [scores[number] for number in range(len(rows))]

    def _smaller(self, numbers: Sequence[int]) -> int:
        """Return a smaller batch size, after a batch of these rows did not fit in memory."""
        if len(numbers) == 1:
            raise torch.OutOfMemoryError(
                f"ProcessRewardModel: row {numbers[0]} does not fit in memory even by itself. Shorten its chain, let "
                "the processor scale images down, or use more memory."
            )
        _logger.warning("Out of memory: %d chains; trying half as many.", len(numbers))
        return len(numbers) // 2

    @torch.no_grad()
    def _differences(self, chains: Sequence[ScoredChain]) -> Tensor | None:
        """`logit_differences` of one batch; `None` if memory ran out."""
        inputs, positions = self._encoder.collate(chains)
        try:
            inputs = placed(inputs, self.model)
            return logit_differences(self.model, inputs, positions.to(self.model.device), self._token_ids)
        except torch.OutOfMemoryError:
            del inputs
        if torch.cuda.is_available():  # only here has the exception let go of the batch's tensors
            torch.cuda.empty_cache()
        return None


def label_token_ids(
    model: PreTrainedModel,
    processing_class: ProcessingClass,
    right_token: str | None = None,
    wrong_token: str | None = None,
) -> tuple[int, int]:
    """Ids of the tokens for right and wrong, which this records in the model's configuration.

    Args:
        model: its configuration says which tokens these are, if it is a process reward model already.
        right_token, wrong_token: the tokens for a model that is none yet; "+" and "-" by default.

    Raises:
        ValueError: a token is not encoded as one, both are the same, or the model was made with others.
    """
    recorded = getattr(model.config, TOKENS_RECORD, None)
    chosen = {"right": right_token, "wrong": wrong_token}
    tokens = {label: chosen[label] or token for label, token in (recorded or DEFAULT_TOKENS).items()}
    if recorded is not None and tokens != recorded:
        raise ValueError(
            f"label_token_ids: the model was made with the tokens {recorded}, but {tokens} were asked for. Leave "
            "right_token and wrong_token out."
        )
    tokenizer = tokenizer_of(processing_class)
    encoded = {label: tokenizer(token, add_special_tokens=False)["input_ids"] for label, token in tokens.items()}
    if any(len(ids) != 1 for ids in encoded.values()) or encoded["right"] == encoded["wrong"]:
        raise ValueError(
            f"label_token_ids: the tokens {tokens} are encoded as {encoded}, expected one id each, and two different "
            "ones. Choose right_token and wrong_token among the tokenizer's single tokens."
        )
    setattr(model.config, TOKENS_RECORD, tokens)
    right, wrong = encoded["right"][0], encoded["wrong"][0]
    # vLLM looks them up in the vocabulary, where SentencePiece's "+" is "▁+" at the beginning of an input
    as_spelt = tokenizer.convert_ids_to_tokens([wrong, right])
    model.config.method, model.config.classifier_from_token = "from_2_way_softmax", as_spelt
    return right, wrong


def logit_differences(
    model: torch.nn.Module, inputs: Mapping[str, Tensor], positions: Tensor, token_ids: tuple[int, int]
) -> Tensor:
    """logit₊ − logit₋ at chosen positions, in one forward pass that never forms the logits of other tokens.

    Args:
        model: model with or without adapters and a wrapper for data-parallel training.
        inputs: its inputs; B rows of T tokens.
        positions: (B, P) in [−T, 0), counted from the end of a row.
        token_ids: token ids of + and −.

    Returns:
        (B, P) in float32, whatever the model computes in.

    Raises:
        ValueError: an adapter acts on the output embeddings.
    """
    head = extract_model_from_parallel(model).get_output_embeddings()
    if isinstance(head, BaseTunerLayer):
        raise ValueError(
            "logit_differences: an adapter acts on the output embeddings, whose rows are read here without it. Merge "
            "it, or leave 'lm_head' out of target_modules; trainable_token_indices and modules_to_save are fine."
        )
    # The model is called as a whole, and not its part below the head, as wrappers and their hooks act on that call.
    with _projecting(head, positions, token_ids):
        return model(**inputs, use_cache=False).logits


@contextmanager
def _projecting(head: Any, positions: Tensor, token_ids: tuple[int, int]) -> Iterator[None]:
    """Replace the head's projection of hidden states (B, T, D): to (B, P) instead of (B, T, V)."""
    right, wrong = token_ids

    def project(hidden: Tensor) -> Tensor:
        weight, bias = head.weight, getattr(head, "bias", None)
        rows = torch.arange(len(hidden), device=hidden.device)[:, None]
        scored = hidden[rows, positions.to(hidden.device)].to(weight.device).float()
        # a product and a sum, as autocast would do a matrix product in 16 bit
        difference = (scored * (weight[right].float() - weight[wrong].float())).sum(dim=-1)
        return difference if bias is None else difference + (bias[right].float() - bias[wrong].float())

    with replaced(head, forward=project):  # accelerate sets one, too, when it spreads a model over devices
        yield
