"""A process reward model: an ordinary vision-language model that scores every step and the answer (arXiv:2509.19003).

    r = σ(logit₊ − logit₋) = σ(h · (w₊ − w₋))

of two chosen tokens, with h the last hidden state at the token that closes the step or the answer, and w the tokens'
rows of the output embeddings (after Math-Shepherd; the paper leaves open how its model gives a score). There is no head
of its own, so it saves, loads, quantises and is served like any model. One forward pass gives all scores of a chain.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import extract_model_from_parallel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import PreTrainedModel

from ..compat.replaced import replaced
from ..generation.batch import ProcessingClass, tokenizer_of
from ..generation.model_loading import fingerprint, load_model, load_processor, processor_fingerprint
from .scored_chain import ANSWER, STEPS, ChainEncoder, ScoredChain

_logger = logging.getLogger(__name__)

DEFAULT_TOKENS = {"right": "+", "wrong": "-"}
"""Which tokens stand for a right and for a wrong step, unless a model was made with others."""

TOKENS_RECORD = "process_reward_tokens"
"""What the entry of a model's configuration is called that says which tokens these are."""


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
            without pictures.
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
        scores = {number: of_row for batch in self.score_batches(rows, batch_size) for number, of_row in batch.items()}
        return [scores[number] for number in range(len(rows))]

    def score_batches(self, rows: Sequence[Mapping[str, Any]], batch_size: int = 8) -> Iterator[dict[int, Scores]]:
        """Score the rows in batches, longest chains first; yield row number → scores."""
        if batch_size < 1:
            raise ValueError(f"ProcessRewardModel.score: got batch_size={batch_size}, expected 1 or more.")
        waiting = deque(sorted(range(len(rows)), key=lambda number: -len(str(rows[number]["completion"]))))
        training = self.model.training
        self.model.eval()
        try:
            while waiting:
                numbers = [waiting.popleft() for _ in range(min(batch_size, len(waiting)))]
                scores = self._score({number: rows[number] for number in numbers})
                if scores is None:
                    batch_size = self._smaller(numbers)
                    waiting.extendleft(reversed(numbers))
                else:
                    yield dict(zip(numbers, scores, strict=True))
        finally:
            self.model.train(training)

    def _smaller(self, numbers: Sequence[int]) -> int:
        """Return a smaller batch size, after a batch of these rows did not fit in memory."""
        if len(numbers) == 1:
            raise torch.OutOfMemoryError(
                f"ProcessRewardModel: row {numbers[0]} does not fit in memory even by itself. Shorten its chain, let "
                "the processor scale pictures down, or use more memory."
            )
        _logger.warning("Out of memory: %d chains; trying half as many.", len(numbers))
        return len(numbers) // 2

    def _score(self, rows: Mapping[int, Mapping[str, Any]]) -> list[Scores] | None:
        """Score one batch, given as row number → row; `None` if memory ran out."""
        chains = [self._encoder.encode(row, f"row {number}") for number, row in rows.items()]
        differences = self._differences(chains)
        if differences is None:  # only here has the exception let go of the batch's tensors
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return None
        return [
            Scores(
                steps=row[STEPS][: len(chain.steps)],
                answer=None if chain.answer is None else row[ANSWER].item(),
            )
            for row, chain in zip(differences.sigmoid().cpu(), chains, strict=True)
        ]

    @torch.no_grad()
    def _differences(self, chains: Sequence[ScoredChain]) -> Tensor | None:
        inputs, positions = self._encoder.collate(chains)
        device, dtype = self.model.device, self.model.dtype
        try:
            inputs = {k: v.to(device, dtype if v.is_floating_point() else None) for k, v in inputs.items()}
            return logit_differences(self.model, inputs, positions.to(device), self._token_ids)
        except torch.OutOfMemoryError:
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
        processing_class: its processor or tokenizer.
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
    return encoded["right"][0], encoded["wrong"][0]


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
