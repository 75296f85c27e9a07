"""Whether vLLM samples the policy that is trained: in the first rollout, against the model's own log-probabilities."""

from __future__ import annotations

import inspect
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
_HARMLESS = {"stop", "stop_token_ids", "include_stop_str_in_output", "seed", "skip_special_tokens", "detokenize"}


def check_first_rollout(trainer: Any) -> float | None:
    """Refuse a vLLM that samples from another policy than the model's forward pass is.

    The main process compares one of its rows of each number of images; every process runs the same passes. Settings
    of vLLM's sampling that only `generation_kwargs` has are not imitated: then nothing is compared.

    Args:
        trainer: a GRPO trainer with vLLM, after the first rollout and before its first update.

    Returns:
        Nats by which the worst row differs, over its sampled tokens: in the mean if both compute in float32, else of
        the median one, as rounding sends some tokens to other experts. `None` if nothing was compared.

    Raises:
        ValueError: says by how many nats they differ, and what to do.
    """
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    unknown = {*(args.generation_kwargs or {})} - _HARMLESS or args.vllm_structured_outputs_regex
    if unknown or args.repetition_penalty != 1:
        return None
    base = without_adapters(model)
    short = "logits_to_keep" in inspect.signature(type(base).forward).parameters
    rows = [_row_of(each) for each in rows_to_compare(trainer.trajectories)]
    broadcast_object_list(rows)
    colocated = trainer.vllm_mode == "colocate"  # of a server the dtype is not known
    exact = colocated and is_float32(model) and engine_dtype(args, model) == "float32" and not (args.bf16 or args.fp16)
    bound = (EXACT if torch.get_float32_matmul_precision() == "highest" else TF32) if exact else ROUNDED
    worst = None
    for prompt, sampled, mask, images in filter(None, rows):
        kept = len(mask)
        with evaluating(model):
            options = {"logits_to_keep": kept + 1} if short else {}
            logits = model(**inputs_of(model, [prompt], 0), use_cache=False, **options).logits[0, -kept - 1 : -1]
        ids = torch.tensor(prompt.ids[-kept:], device=logits.device)
        options = {"top_k": trainer.top_k, "top_p": trainer.top_p, "min_p": trainer.min_p}
        own = logps_among_kept(logits, ids, placeholder_ids(base.config), trainer.temperature, **options).cpu()
        differences = (own - torch.tensor(sampled)).abs()[torch.tensor(mask, dtype=torch.bool)]
        nats = (differences.mean() if exact else differences.median()).item()
        if not nats <= bound:
            raise ValueError(
                f"{type(trainer).__name__}: what {type(base).__name__} samples with vLLM has log-probabilities that "
                f"differ by {nats:.2g} nats from those of its forward pass ({'mean' if exact else 'median'} over the "
                f"tokens of an answer, images in its row: {images}), so that it would be trained on what another "
                "policy said. Fix: use_vllm=False, or another version of vLLM."
            )
        worst = max(nats, worst or 0.0)
    return worst


def rows_to_compare(trajectories: Sequence[Trajectory]) -> list[Trajectory | None]:
    """The longest answer of each number of images, few images first; `None` fills up to a fixed number of rows."""
    found = [each for each in trajectories if each.logprobs is not None and any(each.env_mask)]
    longest = {len(each.images): each for each in sorted(found, key=lambda each: sum(each.env_mask))}
    chosen = [longest[number] for number in sorted(longest)][:_MOST_ROWS]
    return [*chosen, *[None] * (_MOST_ROWS - len(chosen))]


def _row_of(trajectory: Trajectory | None) -> tuple[Prompt, list[float], list[int], int] | None:
    """What another process needs of a row: its tokens, its log-probabilities, which were sampled, number of images."""
    if trajectory is None:
        return None
    assert trajectory.logprobs is not None  # by `rows_to_compare`
    return trajectory.context, trajectory.logprobs, trajectory.env_mask, len(trajectory.images)


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
