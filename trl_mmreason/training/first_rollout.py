"""Whether vLLM samples the policy that is trained: in the first rollout, against the model's own log-probabilities."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ..compat.model_parts import placeholder_ids, without_adapters
from ..compat.vllm import engine_dtype
from ..generation.batch import Prompt
from .model_checks import EXACT, ROUNDED, TF32, evaluating, inputs_of, is_float32
from .rollout import Trajectory

_MOST_ROWS = 4
_MOST_TOKENS = 256  # of an answer: their logits over a large vocabulary take as much memory as a training pass
_OUTSIDE = 0.01  # share of tokens that rounding takes out of what top_p and others leave, and one more
STOPS = {"stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "detokenize"}
"""`generation_kwargs` that change no probability."""


def compare_with_vllm(trainer: Any, known: set[int]) -> dict[int, float]:
    """Refuse a vLLM that samples from another policy than the model's forward pass is.

    The main process compares the longest answer of each number of images; every process runs the same passes. Settings
    of vLLM's sampling that only `generation_kwargs` has are not imitated: then nothing is compared.

    Args:
        trainer: a GRPO trainer with vLLM, after a rollout and before its update.
        known: numbers of images that have been compared before.

    Returns:
        Number of images in a row → nats by which its log-probabilities differ, over sampled tokens: in the mean if both
        compute in float32, else of the median one, as rounding sends some tokens to other experts.
    """
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    unknown = {*(args.generation_kwargs or {})} - {*STOPS, "seed"} or args.vllm_structured_outputs_regex
    if unknown or args.repetition_penalty != 1:
        return {}
    rows = [_row_of(each) for each in rows_to_compare(trainer.trajectories, known)]
    broadcast_object_list(rows)
    colocated = trainer.vllm_mode == "colocate"  # of a server the dtype is not known
    exact = colocated and is_float32(model) and engine_dtype(args, model) == "float32" and not (args.bf16 or args.fp16)
    settings = {"top_k": trainer.top_k, "top_p": trainer.top_p, "min_p": trainer.min_p}
    found, left_out, count = {}, 0, 0
    for prompt, places, sampled, images in filter(None, rows):
        with evaluating(model):
            logits = _logits_before(model, prompt, places)
        ids = torch.tensor([prompt.ids[place] for place in places], device=logits.device)
        never = placeholder_ids(without_adapters(model).config)
        own = logps_among_kept(logits, ids, never, trainer.temperature, **settings).cpu()
        left = own > -torch.inf
        differences = (own - torch.tensor(sampled)).abs()[left]
        found[images] = (differences.mean() if exact else differences.quantile(0.5)).item() if left.any() else 0.0
        left_out, count = left_out + int((~left).sum()), count + len(places)
    bound = (EXACT if torch.get_float32_matmul_precision() == "highest" else TF32) if exact else ROUNDED
    if left_out > 1 + _OUTSIDE * count or not all(nats <= bound for nats in found.values()):
        name = type(without_adapters(model)).__name__
        seen = {**trainer.facts.engine_differences, **found}
        problem = another_policy(name, seen, bound, outside=left_out / count, exact=exact)
        raise ValueError(f"{type(trainer).__name__}: {problem}")
    return found


def another_policy(model: str, found: dict[int, float], bound: float, *, outside: float, exact: bool) -> str:
    """What is said of a vLLM that is not the policy.

    Args:
        found: number of images in a row → nats.
        outside: share of the sampled tokens that the model's own probabilities rule out.
        exact: whether nats are a mean or a median.
    """
    if any(map(math.isnan, found.values())):
        return f"vLLM computes NaN for {model}. Fix: use_vllm=False, or another version or dtype of vLLM."
    nats = ", ".join(f"{value:.2g} nats with {images} images" for images, value in found.items())
    ruled_out = f"; {outside:.0%} of the sampled tokens are none that it could sample" if outside else ""
    fix = "save the model to its folder, which vLLM reads, or attn_implementation='eager'"
    if found.get(0, math.inf) <= bound and not outside:
        fix = "save the trainer's processor to the model's folder, where vLLM reads its own"
    return (
        f"what {model} samples with vLLM has log-probabilities that differ from those of its forward pass "
        f"({'mean' if exact else 'median'} of an answer: {nats}{ruled_out}), so that it would be trained on what "
        f"another policy said. Fix: {fix}; else another version of vLLM, or use_vllm=False."
    )


def rows_to_compare(trajectories: Sequence[Trajectory], known: set[int]) -> list[Trajectory | None]:
    """The answer of most tokens of these weights, for each number of images that is not known; `None` fills up."""
    newer = [(sum(each.env_mask) - each.older_tokens, each) for each in trajectories if each.logprobs is not None]
    longest = {len(each.images): each for tokens, each in sorted(newer, key=lambda pair: pair[0]) if tokens}
    chosen = [longest[number] for number in sorted(longest.keys() - known)][:_MOST_ROWS]
    return [*chosen, *[None] * (_MOST_ROWS - len(chosen))]


def _row_of(trajectory: Trajectory | None) -> tuple[Prompt, list[int], list[float], int] | None:
    """What another process needs of a row: tokens, places of some sampled ones, their log-probabilities, images."""
    if trajectory is None:
        return None
    logprobs, context = trajectory.logprobs, trajectory.context
    assert logprobs is not None  # by `rows_to_compare`
    sampled = [place for place, is_sampled in enumerate(trajectory.env_mask) if is_sampled][trajectory.older_tokens :]
    some = sampled[:: math.ceil(len(sampled) / _MOST_TOKENS)]
    first = len(context.ids) - len(logprobs)
    # TRL has `None` for vLLM's NaN
    given = [math.nan if logprobs[place] is None else logprobs[place] for place in some]
    return context, [first + place for place in some], given, len(trajectory.images)


def _logits_before(model: Any, prompt: Prompt, places: Sequence[int]) -> Tensor:
    """(T, V) logits that say which token comes at each place."""
    before = torch.tensor(places, device=model.device) - 1
    inputs = inputs_of(model, [prompt], 0)
    if "logits_to_keep" in inspect.signature(type(without_adapters(model)).forward).parameters:
        return model(**inputs, use_cache=False, logits_to_keep=before).logits[0]
    return model(**inputs, use_cache=False).logits[0, before]


def logps_among_kept(
    logits: Tensor,
    ids: Tensor,
    never: Sequence[int],
    temperature: float,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float | None = None,
) -> Tensor:
    """Log-probabilities of tokens among those that are left to sample from, in vLLM's order of settings.

    Args:
        logits: (T, V) before each token.
        ids: (T,) the tokens.
        never: tokens that are never sampled.
        temperature, top_k, top_p, min_p: as of `GRPOConfig`.

    Returns:
        (T,) in nats; −inf of a token that is not left.
    """
    logits = logits.float().index_fill(-1, torch.tensor(never, dtype=torch.long, device=logits.device), -torch.inf)
    cuts = LogitsProcessorList()
    if min_p:
        cuts.append(MinPLogitsWarper(min_p))
    if top_k > 0:
        cuts.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        cuts.append(TopPLogitsWarper(top_p))
    return cuts(ids[:, None], logits / temperature).log_softmax(-1).gather(1, ids[:, None]).squeeze(1)
