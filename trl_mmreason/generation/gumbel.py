"""Sample answers so that each depends on its own seed only, not on its batch.

Gumbel-max: with independent standard Gumbel noise G₁ … G_V, argmax_v (log p_v + G_v) is distributed as p. Greedy
decoding over the noisy log-probabilities is therefore sampling, and as each row's noise comes from a generator of its
own, no row's tokens depend on another's. What is left is rounding: a batch of another shape moves logits in their last
bits, and a token changes with about the probability by which p does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .engine import SamplingParams


def decode_after_prefix(tokenizer: Any, ids: Sequence[int], prefix_ids: Sequence[int] = ()) -> str:
    """Decode `ids` after `prefix_ids`, without special tokens.

    They are decoded together: some tokenizers drop the space before the first word of what they decode.
    """
    settings = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    prefix = tokenizer.decode(list(prefix_ids), **settings) if prefix_ids else ""
    return tokenizer.decode([*prefix_ids, *ids], **settings)[len(prefix) :]


def cut_behind_stop(text: str, stop: Sequence[str]) -> str:
    """Cut `text` at the end of the stop string that ends first; unchanged without one."""
    return text[: min((text.find(s) + len(s) for s in stop if s in text), default=len(text))]


class StopTracker(StoppingCriteria):
    """Detects the end of each row's answer, and keeps the answers.

    Args:
        limits: token limit of each row's answer.
        eos_ids: the tokens that end an answer.
        stop: the strings that end an answer.
        tokenizer: reads stop strings.
        prefix_ids: what each row's assistant has said already.

    Attributes:
        ids: ids of each row, as sampled, with the end-of-turn token if one came.
        reasons: why each row ended; `None` while it continues.
    """

    def __init__(
        self,
        limits: Sequence[int],
        eos_ids: Collection[int],
        stop: Sequence[str],
        tokenizer: Any,
        prefix_ids: Sequence[Sequence[int]],
    ) -> None:
        self.ids: list[list[int]] = [[] for _ in limits]
        self.reasons: list[str | None] = [None for _ in limits]
        self._limits, self._eos_ids, self._stop = limits, frozenset(eos_ids), stop
        self._tokenizer, self._prefix_ids = tokenizer, prefix_ids
        # A token that is not special holds a byte of text at least; a few more, for a character that begins before.
        self._tail_tokens = max((len(text.encode()) for text in stop), default=0) + 8

    @property
    def live(self) -> list[int]:
        """The unfinished rows."""
        return [row for row, reason in enumerate(self.reasons) if reason is None]

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        tokens = input_ids[:, -1].tolist()
        for row in self.live:
            self.ids[row].append(tokens[row])
            self.reasons[row] = self._reason(row)
        return torch.tensor([reason is not None for reason in self.reasons], device=input_ids.device)

    def _reason(self, row: int) -> str | None:
        ids = self.ids[row]
        if ids[-1] in self._eos_ids:
            return "stop"
        if self._stop:
            known = [*self._prefix_ids[row], *ids[: -self._tail_tokens]][-1:]  # for a space at the tail's beginning
            tail = decode_after_prefix(self._tokenizer, ids[-self._tail_tokens :], known)
            if any(text in tail for text in self._stop):
                return "stop"
        return "length" if len(ids) >= self._limits[row] else None


class GumbelMaxSampler(LogitsProcessor):
    """Adds Gumbel noise to logits, so that the argmax is a sample.

    Args:
        sampling_params: temperature 0 adds no noise.
        ending: knows which rows continue; only these get noise.
        device: device of the model; the noise is made there.
    """

    def __init__(
        self,
        sampling_params: SamplingParams,
        seeds: Sequence[int],
        ending: StopTracker,
        suppressed: Sequence[int],
        device: torch.device,
    ) -> None:
        self._generators = (
            [torch.Generator(device).manual_seed(seed) for seed in seeds] if sampling_params.temperature else []
        )
        self._warpers = warpers(sampling_params)
        self._ending, self._suppressed, self._keep_logprobs = ending, list(suppressed), sampling_params.logprobs
        self._logprobs: list[Tensor] = []  # (B,) a step
        self.was_asked = False  # by `generate`

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.was_asked = True
        logits = scores  # (B, V) as the model gave them
        scores = logits.clone()
        # some families' placeholders are embedded, but have no logit
        scores[:, [token for token in self._suppressed if token < scores.shape[1]]] = -torch.inf
        if self._generators:
            live = self._ending.live
            scores[live] = self._warpers(input_ids[live], scores[live]) + self._noise(live, scores)
        if self._keep_logprobs:
            drawn = logits.gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
            self._logprobs.append(drawn - logits.logsumexp(-1))
        return scores

    def _noise(self, rows: Sequence[int], scores: Tensor) -> Tensor:
        """(len(rows), V): −log(−log u) is standard Gumbel for u uniform; all rows in one call but for u."""
        noise = scores.new_empty(len(rows), scores.shape[1])
        for values, row in zip(noise, rows, strict=True):
            values.uniform_(generator=self._generators[row])
        # u may be 0, whose noise would forbid the only token that the warpers left.
        return noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_().neg_().log_().neg_()

    def logprobs(self) -> list[list[float] | None]:
        """Log-probabilities of each row's tokens under the unmodified model; `None` unless requested."""
        if not self._keep_logprobs:
            return [None] * len(self._ending.ids)
        rows = torch.stack(self._logprobs, dim=1).tolist()
        return [row[: len(ids)] for row, ids in zip(rows, self._ending.ids, strict=True)]


def warpers(sampling_params: SamplingParams) -> LogitsProcessorList:
    """Temperature, top-k and top-p of sampling parameters, in the order of transformers."""
    processors = LogitsProcessorList()
    if sampling_params.temperature not in (0, 1):
        processors.append(TemperatureLogitsWarper(float(sampling_params.temperature)))
    if sampling_params.top_k:
        processors.append(TopKLogitsWarper(sampling_params.top_k))
    if sampling_params.top_p < 1:
        processors.append(TopPLogitsWarper(sampling_params.top_p))
    return processors
