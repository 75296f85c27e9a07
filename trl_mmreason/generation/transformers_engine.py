"""Sample with transformers' `generate`: any vision-language or text-only model, any device, no server."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedModel, ProcessorMixin

from ..compat.model_parts import placeholder_ids
from .batch import (
    ProcessingClass,
    Prompt,
    continued,
    encode,
    end_of_turn_ids,
    generate,
    tokenizer_of,
    warn_of_ignored_settings,
)
from .engine import Failure, Request, Sample, SamplingParams, derive_seed
from .gumbel import GumbelMaxSampler, StopTracker, cut_behind_stop, decode_after_prefix
from .model_loading import (
    ENCODING_ERRORS,
    fingerprint,
    load_model,
    load_processor,
    processor_fingerprint,
    sees_images,
    unencodable,
    warn_of_another_base,
)
from .patience import rank_and_size

_logger = logging.getLogger(__name__)

_WINDOW = 8  # batches of requests are encoded and sorted by length at a time, as their pixels fill memory
_COMPARED = 3  # tokens
_EXACT, _ROUNDED = 0.005, 0.06  # of the spread of logits: any token in float32, the median one in other dtypes
_OWN_SETTINGS = GenerationConfig(do_sample=True, temperature=1.0, top_p=1.0, top_k=0)  # `SamplingParams` decides them


class _Encoded(NamedTuple):
    prompt: Prompt  # with the assistant's prefix at its end
    prefix_ids: list[int]


class TransformersEngine:
    """Answers requests in batches of similar length.

    An answer depends on its request, the sampling parameters and its seed only, not on the batch, up to rounding (in
    32 bit the same text in practice; in 16 bit an answer may diverge where two tokens are nearly tied).

    Args:
        model: a path or Hub id of a model or of a LoRA adapter, or a model instance, which is sampled as it is at each
            call.
        processing_class: its processor, or its tokenizer if it is text-only (a request with images is then its own
            `Failure`); by default the one saved with the adapter, or else with the model. It is not changed.
        batch_size: answers generated at a time. A batch that does not fit in memory is halved until it does.
        chat_template_kwargs: handed to the chat template.
        **loading: `adapter`, `dtype`, `device`, `revision`, `trust_remote_code` and what `from_pretrained` takes; see
            `load_model`. Not with a model instance.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        processing_class: ProcessingClass | None = None,
        *,
        batch_size: int = 32,
        chat_template_kwargs: dict[str, Any] | None = None,
        **loading: Any,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"TransformersEngine: got batch_size={batch_size}, expected 1 or more.")
        path = model if isinstance(model, str) else model.config._name_or_path
        self._weights: str | None = None
        if isinstance(model, str):
            self.model, self._weights = load_model(model, **loading)
            if rank_and_size(None, None)[0] == 0:
                warn_of_ignored_settings(type(self).__name__, self.model, _OWN_SETTINGS, "answers are sampled without.")
                if (adapter := loading.get("adapter")) is not None:
                    warn_of_another_base(model, adapter)
        elif loading:
            raise TypeError(
                f"TransformersEngine: got {sorted(loading)} with a model that is loaded already, a "
                f"{type(model).__name__}; they say how to load one. Leave them out, or give a path."
            )
        else:
            self.model = model
        if processing_class is None:
            named = ("adapter", "revision", "trust_remote_code")
            processing_class = load_processor(path, **{name: loading[name] for name in named if name in loading})
        _check_fits(self.model, processing_class)
        self.processing_class = processing_class
        self._tokenizer = tokenizer_of(processing_class)
        self.batch_size = batch_size
        self._names = {"model": path, "adapter": loading.get("adapter"), "revision": loading.get("revision")}
        self.chat_template_kwargs = chat_template_kwargs or {}
        self._most_tokens = math.inf  # tokens per batch, prompts and room for answers; learnt when memory runs out
        self._has_answered = False
        self._is_checked = batch_size == 1  # whether padding is known to change no answer

    @property
    def settings(self) -> dict[str, Any]:
        """Names, precision and fingerprints; the batch size changes no answer."""
        return {
            "kind": "transformers",
            **self._names,
            "weights": self._weights or fingerprint(self.model.named_parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "processor": processor_fingerprint(self.processing_class),
            "chat_template_kwargs": self.chat_template_kwargs,
        }

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order; see `Engine`.

        Raises:
            ValueError: a stop text that no answer can show.
            torch.OutOfMemoryError: one answer alone does not fit in memory. Once any has fitted, a request that does
                not is its own `Failure`.
        """
        self._check_stop(sampling_params.stop)
        training = self.model.training
        self.model.eval()
        try:
            size = _WINDOW * self.batch_size
            windows = [requests[start : start + size] for start in range(0, len(requests), size)]
            return [result for window in windows for result in self._answer(window, sampling_params)]
        finally:
            self.model.train(training)

    def _check_stop(self, stop: Sequence[str]) -> None:
        for text in stop:
            seen = decode_after_prefix(self._tokenizer, self._tokenizer(text, add_special_tokens=False)["input_ids"])
            if not text or (text.strip() and not seen.strip()):
                raise ValueError(
                    f"TransformersEngine: an answer can never end at the stop text {text!r}: answers are read without "
                    "special tokens. Leave it out if it ends a turn, as that always ends an answer; otherwise add it "
                    "to the tokenizer as an ordinary token."
                )

    def _encode(self, request: Request) -> _Encoded | Failure:
        try:
            prompt = encode(self.processing_class, request.first_messages, request.images, **self.chat_template_kwargs)
            eos_ids = end_of_turn_ids(self.model, self.processing_class)
            prompt = continued(self.processing_class, prompt, request, eos_ids, self.chat_template_kwargs)
        except ENCODING_ERRORS as error:
            return unencodable(error)
        prefix_ids = self._tokenizer(request.prefix, add_special_tokens=False)["input_ids"]
        prompt = prompt.extended(prefix_ids)
        if len(prompt.ids) >= self._positions:
            return Failure(
                f"the prompt has {len(prompt.ids)} tokens and the model has {self._positions} positions, which leaves "
                "none for an answer; shorten it, or let the processor scale images down"
            )
        return _Encoded(prompt, prefix_ids)

    @property
    def _positions(self) -> float:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or math.inf

    def _answer(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Answer the requests of a window, longest first, so that running out of memory shows early."""
        encoded = [self._encode(request) for request in requests]
        results: list[Any] = [
            row if isinstance(row, Failure) else [None] * request.n
            for request, row in zip(requests, encoded, strict=True)
        ]
        lengths = [0 if isinstance(row, Failure) else len(row.prompt.ids) for row in encoded]
        answers = [  # number of the request, and of its answer; greedy answers are all alike, so that one is made
            (number, k)
            for number, request in enumerate(requests)
            if not isinstance(encoded[number], Failure)
            for k in range(request.n if sampling_params.temperature else 1)
        ]
        waiting = deque(sorted(answers, key=lambda answer: -lengths[answer[0]]))
        while waiting:
            tokens = lengths[waiting[0][0]] + sampling_params.max_new_tokens  # of the longest row
            size = max(1, int(min(self.batch_size, len(waiting), self._most_tokens / tokens)))
            batch = [waiting.popleft() for _ in range(size)]
            prompts: list[Any] = [encoded[number] for number, _ in batch]
            if not self._is_checked and lengths[batch[0][0]] != lengths[batch[-1][0]]:
                self._is_checked = True
                if difference := self._difference_of_padding(prompts[0], prompts[-1]):
                    _logger.warning(
                        "Padding changes what %s says, by %.2g %% of its logits' spread: rows are answered one by one, "
                        "slower.",
                        type(self.model).__name__,
                        100 * difference,
                    )
                    self.batch_size = 1
                    waiting.extendleft(reversed(batch))
                    continue
            seeds = [derive_seed(requests[number].seed, k) for number, k in batch]
            samples = self._generate(prompts, seeds, sampling_params)
            if samples is not None:
                self._has_answered = True
                for (number, k), sample in zip(batch, samples, strict=True):
                    results[number][k] = sample
            elif size > self.batch_size:
                waiting.extendleft(reversed(batch))
            elif size > 1:
                self._most_tokens = size * tokens // 2
                waiting.extendleft(reversed(batch))
                _logger.warning("Out of memory: %d answers of up to %d tokens; trying half as many.", size, tokens)
            else:
                alone = batch[0][0]
                results[alone] = self._too_large(lengths[alone], sampling_params)
                waiting = deque(answer for answer in waiting if answer[0] != alone)
        if not sampling_params.temperature:
            results = [samples if isinstance(samples, Failure) else samples[:1] * len(samples) for samples in results]
        return results

    def _difference_of_padding(self, long: _Encoded, short: _Encoded) -> float:
        """By how much a row's first tokens have other logits beside a longer row than alone: `beyond_rounding`."""
        found: list[list[torch.Tensor]] = []
        for prompts in ([long.prompt, short.prompt], [short.prompt]):
            steps: list[torch.Tensor] = []

            def record(ids: torch.Tensor, logits: torch.Tensor, steps: Any = steps) -> torch.Tensor:
                steps.append(logits[-1].float())
                return logits

            settings: dict[str, Any] = {"max_new_tokens": _COMPARED, "min_new_tokens": _COMPARED}
            try:
                generate(self.model, self.processing_class, prompts, logits_processor=[record], **settings)
            except (RuntimeError, IndexError):  # what that means is for `_generate` to find out
                return 0.0
            found.append(steps)
        return beyond_rounding(*found, exact=self.model.dtype == torch.float32)

    def _too_large(self, prompt_tokens: int, sampling_params: SamplingParams) -> Failure:
        reason = (
            f"out of memory with this answer alone: {prompt_tokens} tokens of prompt and up to "
            f"{sampling_params.max_new_tokens} of answer; shorten them, let the processor scale images down, or use "
            "more memory"
        )
        if not self._has_answered:
            raise torch.OutOfMemoryError(f"TransformersEngine: {reason}.")
        return Failure(reason)

    def _generate(
        self, encoded: Sequence[_Encoded], seeds: Sequence[int], sampling_params: SamplingParams
    ) -> list[Sample] | None:
        """One batch; `None` if memory ran out, or if the rows cannot share one."""
        eos_ids = end_of_turn_ids(self.model, self.processing_class)
        limits = [int(min(sampling_params.max_new_tokens, self._positions - len(row.prompt.ids))) for row in encoded]
        ending = StopTracker(
            limits, eos_ids, sampling_params.stop, self._tokenizer, [row.prefix_ids for row in encoded]
        )
        drawing = GumbelMaxSampler(
            sampling_params, seeds, ending, placeholder_ids(self.model.config), self.model.device
        )
        fits = True
        try:
            generate(
                self.model,
                self.processing_class,
                [row.prompt for row in encoded],
                max_new_tokens=max(limits),
                suppress_tokens=None,  # `drawing` does, after the log-probabilities
                logits_processor=[drawing],
                stopping_criteria=[ending],
            )
        except torch.OutOfMemoryError:
            fits = False
        except (RuntimeError, IndexError) as error:  # of a family whose fields of images do not follow row by row
            if len(encoded) == 1 or not any(row.prompt.image_fields for row in encoded):
                raise
            _logger.warning("Rows with images cannot share a batch, and are answered one by one, slower: %s", error)
            self.batch_size, fits = 1, False
        if not fits:  # only here, after the clause, has the exception let go of the batch's tensors
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return None
        if not drawing.was_asked:
            raise ValueError(
                f"TransformersEngine: {type(self.model).__name__}.generate leaves out the logits processors that it is "
                "given, and answers are drawn by one. Fix: another model, or a server (ServerEngine)."
            )
        samples = []
        for row, ids, reason, logprobs in zip(encoded, ending.ids, ending.reasons, drawing.logprobs(), strict=True):
            text_ids = ids[:-1] if ids[-1] in eos_ids else ids
            text = cut_behind_stop(decode_after_prefix(self._tokenizer, text_ids, row.prefix_ids), sampling_params.stop)
            samples.append(Sample(text, "stop" if reason == "stop" else "length", ids, logprobs))
        return samples


def beyond_rounding(beside: Sequence[torch.Tensor], alone: Sequence[torch.Tensor], *, exact: bool) -> float:
    """By which share of their standard deviation logits differ, if that is more than rounding; 0 otherwise.

    Up to a constant, which changes no probability. In bfloat16 it is large where one token is all but certain: a logit
    of 40 is rounded to a quarter, and the log-probabilities of all other tokens move by as much.

    Args:
        beside, alone: (V,) logits of each step, compared up to the first in which another token is the likeliest.
        exact: of float32, where no token may differ; of other dtypes the median one.
    """
    worst = 0.0
    for one, other in zip(beside, alone, strict=False):
        known = one.isfinite() & other.isfinite()  # others are suppressed
        differences = one[known] - other[known]
        differences = (differences - differences.median()).abs() / other[known].std()
        worst = max(worst, float(differences.max() if exact else differences.median()))
        if one.argmax() != other.argmax():
            break
    return worst if worst > (_EXACT if exact else _ROUNDED) else 0.0


def _check_fits(model: PreTrainedModel, processing_class: Any) -> None:
    """Refuse all but a processor for a vision-language model, and all but a tokenizer for a text-only one."""
    sees = sees_images(model.config)
    if not isinstance(processing_class, ProcessorMixin if sees else ProcessingClass):
        expected = "processor" if sees else "tokenizer"
        raise TypeError(
            f"TransformersEngine: processing_class is a {type(processing_class).__name__}, expected the {expected} "
            f"that was saved with this {type(model).__name__}."
        )
