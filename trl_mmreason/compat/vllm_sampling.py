"""What a trainer's requests tell vLLM beside what TRL passes: what is never sampled, and what ends an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .model_parts import placeholder_ids

_NEVER = -100.0  # the lowest bias that vLLM takes


def sampling_settings(
    generation_kwargs: Mapping[str, Any] | None, config: Any, eos_ids: Sequence[int]
) -> dict[str, Any]:
    """vLLM's sampling settings beside those that TRL passes: the user's, which end answers as the policy does.

    vLLM ends them at the tokens that its folder names. A policy in memory, or a tokenizer, may name others: answers
    would go on behind them, and count as cut.

    Args:
        generation_kwargs, config: as for `without_placeholders`.
        eos_ids: the tokens that end an answer; with the user's `ignore_eos` none does.

    Raises:
        ValueError: `logprobs` is set, of which TRL takes a step's first, that of the likeliest token, for the sampled
            one's.
    """
    # A server takes these two from the checkpoint's generation_config.json if a request leaves them out.
    settings: dict[str, Any] = dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.0)
    settings |= without_placeholders(generation_kwargs, config)
    if settings.get("logprobs", 0) != 0:
        raise ValueError(
            f"use_vllm: generation_kwargs sets logprobs={settings['logprobs']!r}, with which the likeliest token's "
            "log-probability would be taken for the sampled one's. Fix: leave it out."
        )
    if not settings.get("ignore_eos"):
        settings["stop_token_ids"] = [*dict.fromkeys((*eos_ids, *(settings.get("stop_token_ids") or ())))]
    return settings


def without_placeholders(generation_kwargs: Mapping[str, Any] | None, config: Any) -> dict[str, Any]:
    """Forbid placeholders of images and videos in vLLM's sampling settings.

    TRL rules them out in transformers' generation only. A sampled one would stand for an image that is not there, and
    the training pass would stop. vLLM then returns the log-probabilities of what is left, which are larger than the
    policy's by -log(1 - p), where p is its probability of a placeholder: 0.003 in the mean for a random miniature.

    Args:
        generation_kwargs: the user's, whose `logit_bias` of other tokens stays.
    """
    settings = dict(generation_kwargs or {})
    bias = dict.fromkeys(placeholder_ids(config), _NEVER)
    return {**settings, "logit_bias": {**(settings.get("logit_bias") or {}), **bias}} if bias else settings
