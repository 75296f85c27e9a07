"""Decoding that reads a prompt once for all of its answers, and removes finished rows from the batch.

With a long tail of lengths most rows of a batch have ended long before its last one has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    Cache,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMode
from transformers.generation import utils as generation_utils

from ..compat.model_parts import without_adapters
from ..compat.replaced import replaced
from ..compat.trl_contract import changed_generation

_logger = logging.getLogger(__name__)

TOKEN_BY_TOKEN = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
"""What `decode_live_rows` replaces."""

_LAYERS = {DynamicLayer, DynamicSlidingWindowLayer}
_BY_TOKEN = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")  # (..., B, L)
_OF_IMAGES = ("pixel", "image", "video")  # read with the prompt and not again
_OF_PROMPTS = ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size")
"""Settings whose logits processors keep the prompts that the batch began with."""
_FEATURES_OF: Any = getattr(generation_utils, "_slice_mm_encoder_output", None)
"""Selects features of images, which `generate` encodes before it reads the prompts; missing in old transformers."""
_FEATURE_FIELDS = {"pooler_output", "deepstack_features", "last_hidden_state", "hidden_states", "attentions"}
"""What models read of these, or do not; Ovis2 has further ones, which are not selected."""
_GENERATE = GenerationMixin.generate  # transformers' own, whatever is set in its place later
Ended = Callable[[list[int], list[list[int]]], None]
_TOKENS_A_PASS = 2**14
"""Tokens of prompts that a model reads at a time, padding among them: enough to keep a GPU busy."""
_LEFT = 7 / 8  # rows leave when fewer than this share of the model's batch continues: each time copies the cache


class SampledLogprobs:
    """Log-probabilities of sampled tokens under the model's own distribution, which no processor has changed.

    Args:
        temperature: divides the logits.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._steps: list[Tensor] = []  # (B,) each

    def record(self, logits: Tensor, tokens: Tensor) -> None:
        """Add a step: (B, V) logits of the model, (B,) sampled tokens."""
        self._steps.append((logits / self._temperature).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1))

    def of_rows(self, ids: list[list[int]]) -> list[list[float]] | None:
        """Log-probabilities of each row's tokens, which are of different numbers; `None` if none was recorded."""
        if not self._steps:
            return None
        by_row = torch.stack(self._steps, dim=1).tolist()
        return [row[: len(row_ids)] for row, row_ids in zip(by_row, ids, strict=True)]


def decode_live_rows(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    on_ended: Ended | None = None,
    prompt_of: Tensor | None = None,
    logprobs: SampledLogprobs | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """Sample or decode greedily, as a `custom_generate` for transformers' `generate`.

    Logits processors, stopping criteria and the random draw see the whole batch. So tokens are those of `generate`
    itself with the same seed, up to rounding. Rows stay where the cache, or an argument of the model, cannot be cut
    down to some rows.

    Args:
        model, logits_processor, stopping_criteria, generation_config, **model_kwargs: as prepared by `generate`.
        input_ids: (B, L), padded on the left; (P, L) with `prompt_of`.
        on_ended: told the places and new ids of rows that have ended, while others continue.
        prompt_of: (B,) which of the P prompts each row continues, if `can_share_prompts` says so; by default each row
            has one of its own.

    Returns:
        (B, L + T), with padding after the end of a row.

    Raises:
        UnknownCacheError: with `prompt_of`, a model whose cache cannot be copied; no token has been drawn yet.
    """
    logits, model_kwargs = _read_prompts(model, input_ids, generation_config, prompt_of, model_kwargs)
    if prompt_of is not None:
        input_ids = input_ids[prompt_of]
        for processor in logits_processor:
            _repeat_padding(processor, prompt_of)
    rows = torch.arange(len(input_ids), device=input_ids.device)  # rows that the model computes
    continues = torch.ones_like(rows, dtype=torch.bool)
    begin, running = input_ids.shape[1], len(input_ids)
    while True:
        scores = logits_processor(input_ids, logits)
        if generation_config.do_sample:
            drawn = torch.multinomial(scores.softmax(-1), num_samples=1).squeeze(1)
        else:
            drawn = scores.argmax(-1)
        if logprobs is not None:
            logprobs.record(logits, drawn)
        padding = generation_config._pad_token_tensor
        drawn = drawn if padding is None else drawn.where(continues, padding.to(drawn.device))
        input_ids = torch.cat([input_ids, drawn[:, None]], dim=1)
        ended = continues & stopping_criteria(input_ids, None)
        continues &= ~ended
        left = int(continues.sum())
        if not left:
            return input_ids
        if on_ended and left < running:
            on_ended(ended.nonzero().squeeze(1).tolist(), input_ids[ended, begin:].tolist())
        running = left
        if left < _LEFT * len(rows) and _can_leave(model_kwargs):
            _select_rows(model_kwargs, continues[rows].nonzero().squeeze(1))
            rows = continues.nonzero().squeeze(1)
        read = 1 if model_kwargs["use_cache"] else None
        inputs = model.prepare_inputs_for_generation(
            input_ids=input_ids[rows], next_sequence_length=read, **model_kwargs
        )
        outputs = model(**inputs, return_dict=True)
        logits = _last(outputs, input_ids)
        model_kwargs = model._update_model_kwargs_for_generation(outputs=outputs, model_kwargs=model_kwargs)
        del outputs
        if len(rows) < len(input_ids):
            logits = logits.new_zeros(len(input_ids), logits.shape[1]).index_copy_(0, rows, logits)


@contextmanager
def ended_rows_leave(
    model: Any,
    on_ended: Ended | None = None,
    prompt_of: Tensor | None = None,
    logprobs: SampledLogprobs | None = None,
) -> Iterator[None]:
    """Let `model.generate` use `decode_live_rows` with these arguments; the model may have an adapter."""
    decode = partial(decode_live_rows, on_ended=on_ended, prompt_of=prompt_of, logprobs=logprobs)
    with replaced(model, generate=partial(model.generate, custom_generate=decode)):
        yield


class UnknownCacheError(RuntimeError):
    """Prompts cannot be shared, as the model's cache is not one that is known."""


def can_decode(model: Any) -> bool:
    """Whether `decode_live_rows` may take the place of a model's own decoding.

    It may not where a `generate` was set on the model, or is its class's own, nor where transformers has changed; of
    that a warning tells once.
    """
    base = without_adapters(model)
    if getattr(type(base), "generate", None) is not _GENERATE or "generate" in vars(base) or "generate" in vars(model):
        return False
    changes = changed_generation(base)
    if changes:
        step_aside(changes[0])
    return not changes


@cache
def step_aside(why: str) -> None:
    """Warn once that answers are sampled by `generate` itself."""
    _logger.warning(
        "transformers %s: %s. Answers are sampled by its own `generate`, which is slower: each row reads its prompt, "
        "and ended rows stay in the batch. `mmreason doctor` names the versions that were tested.",
        transformers.__version__,
        why,
    )


def can_share_prompts(model: Any, fields: Iterable[str], settings: GenerationConfig) -> bool:
    """Whether several rows can continue one prompt, whose state is then copied, if `can_decode` says so."""
    if settings.use_cache is False or settings.cache_implementation not in (None, "dynamic"):
        return False
    if any(getattr(settings, name, None) for name in _OF_PROMPTS):
        return False
    if model.config.is_encoder_decoder or not model._supports_default_dynamic_cache():
        return False
    return _is_known(DynamicCache(config=model.config.get_text_config(decoder=True)), fields)


def _can_leave(model_kwargs: dict[str, Any]) -> bool:
    """Whether this code knows all of the model's per-row state."""
    tensors = (name for name, value in model_kwargs.items() if isinstance(value, Tensor))
    return _is_known(_cache_of(model_kwargs), tensors)


def _cache_of(model_kwargs: dict[str, Any]) -> Any:
    """The cache, which is `cache`, or `past_key_values` up to transformers 5.23; `None` without one."""
    return next((value for value in model_kwargs.values() if isinstance(value, Cache)), None)


def _is_known(cache: Any, tensors: Iterable[str]) -> bool:
    if type(cache) is not DynamicCache or {type(layer) for layer in cache.layers} - _LAYERS:
        return False
    return all(name in _BY_TOKEN or name.startswith(_OF_IMAGES) for name in tensors)


def _read_prompts(
    model: PreTrainedModel,
    input_ids: Tensor,
    generation_config: GenerationConfig,
    prompt_of: Tensor | None,
    model_kwargs: dict[str, Any],
) -> tuple[Tensor, dict[str, Any]]:
    """Return (B, V) logits of each row's first token, and `model_kwargs` with each row's state after its prompt."""
    logits, caches = [], []
    for rows, given in _passes(model, input_ids, model_kwargs):
        outputs = model._prefill(input_ids=input_ids[rows], generation_config=generation_config, model_kwargs=given)
        logits.append(_last(outputs, input_ids))
        caches.append(_cache_of(outputs))
    if len(caches) > 1:
        _join(caches)
        name = next(name for name, value in outputs.items() if value is caches[-1])
        outputs[name] = caches[0]
    model_kwargs = model._update_model_kwargs_for_generation(outputs=outputs, model_kwargs=model_kwargs)
    if prompt_of is None:
        return torch.cat(logits), model_kwargs
    if not _can_leave(model_kwargs):
        raise UnknownCacheError(f"{type(model).__name__} has a cache that is not known")
    _select_rows(model_kwargs, prompt_of)
    return torch.cat(logits)[prompt_of], model_kwargs


def rows_a_pass(tokens: int) -> int:
    """How many prompts, padded to so many tokens, a model reads at a time where they can be divided."""
    return max(1, _TOKENS_A_PASS // tokens)


def _passes(model: PreTrainedModel, input_ids: Tensor, model_kwargs: dict[str, Any]) -> Iterator[tuple[Any, dict]]:
    """The prompts that are read at a time: their rows, and what `_prefill` is given of these.

    All at once are read where the state or the images of a row are not known.
    """
    rows = torch.arange(len(input_ids), device=input_ids.device)
    parts = rows.split(rows_a_pass(input_ids.shape[1]))
    encoded = model_kwargs.get("mm_encoder_outputs") or {}
    places: dict[str, Any] = {kind: input_ids == getattr(model.config, f"{kind}_token_id", None) for kind in encoded}
    others = {name for name, value in model_kwargs.items() if isinstance(value, Tensor) and name not in _BY_TOKEN}
    is_known = len(parts) > 1 and not others and _can_leave(model_kwargs)
    if not is_known or not all(_can_divide(features, places[kind]) for kind, features in encoded.items()):
        yield slice(None), model_kwargs
        return
    empty = deepcopy(_cache_of(model_kwargs))
    for part in parts:
        given = {name: deepcopy(empty) if isinstance(value, Cache) else value for name, value in model_kwargs.items()}
        _select_rows(given, part)
        if encoded:
            given["mm_encoder_outputs"] = {}
        for modality, features in encoded.items():
            own = torch.isin(places[modality].nonzero()[:, 0], part)
            if own.any():
                given["mm_encoder_outputs"][modality] = _FEATURES_OF(features, own)
        yield part, given


def _can_divide(features: Any, placeholders: Any) -> bool:
    """Whether encoded images are one row of features per placeholder, in fields that transformers selects rows of.

    Args:
        features: what `generate` encoded of one modality.
        placeholders: (B, L) bool; `False` where their token is not known.
    """
    pooled, deep = (getattr(features, name, None) for name in ("pooler_output", "deepstack_features"))
    if _FEATURES_OF is None or not isinstance(placeholders, Tensor) or pooled is None:
        return False
    if features.keys() - _FEATURE_FIELDS:
        return False
    if deep is not None and not isinstance(deep[0][0], Tensor):
        return False
    return sum(each.shape[:-1].numel() for each in pooled) == int(placeholders.sum())


def _join(parts: list[Any]) -> None:
    """Append the rows of all caches to those of the first, layer by layer, and remove them from the others."""
    for layer, *others in zip(*(part.layers for part in parts), strict=True):
        for state in ("keys", "values"):
            setattr(layer, state, torch.cat([getattr(each, state) for each in (layer, *others)]))
            for each in others:
                setattr(each, state, None)


def _last(outputs: Any, input_ids: Tensor) -> Tensor:
    """(B, V) logits of the next token, in 32 bit; a copy, as a view would keep those of all tokens."""
    return outputs.logits[:, -1].to(input_ids.device, torch.float32, copy=True)


def _select_rows(model_kwargs: dict[str, Any], rows: Tensor) -> None:
    """Reduce the model's state to these rows, which may be repeated."""
    _cache_of(model_kwargs).batch_select_indices(rows)
    for name in _BY_TOKEN:
        if model_kwargs.get(name) is not None:
            model_kwargs[name] = model_kwargs[name].index_select(-2, rows)


def _repeat_padding(processor: Any, prompt_of: Tensor) -> None:
    """Let a logits processor that knows each prompt's padding know each row's."""
    if isinstance(processor, RepetitionPenaltyLogitsProcessor):
        padding = getattr(processor, "prompt_ignore_length", None)  # transformers 5.17 has none
        if isinstance(padding, Tensor):
            processor.prompt_ignore_length = padding[prompt_of.to(padding.device)]
