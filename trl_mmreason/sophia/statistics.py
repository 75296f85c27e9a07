"""Logged metrics of the off-policy update, from sums over micro-batches and processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .objective import ImportanceWeights

SUMS = (
    "rows",
    "tokens",
    "reward",
    "logps",
    "entropy",
    "top1",
    "divergence",
    "weights",
    "weight",
    "weight_squared",
    "truncated",
    "largest_weight",  # the only entry that is no sum
)


@torch.no_grad()
def row_sums(outputs: Any, rewards: Tensor, divergence: Tensor, weights: ImportanceWeights | None) -> Tensor:
    """Compute (B, 12), the sums of each row of a micro-batch, in the order of `SUMS`.

    Args:
        outputs: results of TRL's fused head: `log_probs`, `entropy`, `is_top1`, `label_mask`, each (B, T), 0 where
            masked out.
        rewards: (B,).
        divergence: (B, T), 0 where masked out.
        weights: (B, 1) or (B, T); `None` without importance sampling.
    """
    mask = outputs.label_mask.bool()
    sums = [torch.ones_like(rewards), mask.sum(dim=1), rewards]
    sums += [field.sum(dim=1) for field in (outputs.log_probs, outputs.entropy, outputs.is_top1, divergence)]
    if weights is None:
        sums += [torch.zeros_like(rewards)] * 5
    else:
        counted = mask if weights.values.shape == mask.shape else torch.ones_like(weights.truncated)
        values = weights.values.where(counted, 0.0)
        truncated = weights.truncated & counted
        sums += [each.sum(dim=1) for each in (counted, values, values**2, truncated)] + [values.amax(dim=1)]
    return torch.stack([each.float() for each in sums], dim=1)  # not float64, which MPS has not


def summed(sums: Tensor) -> Tensor:
    """Add rows or micro-batches up, (N, 12) → (1, 12)."""
    return torch.cat([sums[:, :-1].sum(dim=0, keepdim=True), sums[:, -1:].amax(dim=0, keepdim=True)], dim=1)


def metrics_of(sums: Tensor) -> dict[str, float]:
    """Compute the metrics from the summed micro-batches; those of importance weights only if there are any.

    Args:
        sums: (N, 12) of rows or micro-batches, each in the order of `SUMS`.
    """
    total = dict(zip(SUMS, summed(sums.cpu().double())[0].tolist(), strict=True))
    tokens, weights = max(total["tokens"], 1.0), total["weights"]
    metrics = {
        "reward": total["reward"] / total["rows"],
        "completion_tokens": total["tokens"] / total["rows"],
        "logps": total["logps"] / tokens,
        "entropy": total["entropy"] / tokens,
        "mean_token_accuracy": total["top1"] / tokens,
        "kl": total["divergence"] / tokens,
    }
    if weights:
        metrics |= {
            "importance_weight/mean": total["weight"] / weights,
            "importance_weight/max": total["largest_weight"],
            "importance_weight/truncated_frac": total["truncated"] / weights,
            # (Σw)² / Σw²: how many samples of weight 1 they are worth; 0 if all weights are 0
            "importance_weight/effective_sample_size": total["weight"] ** 2 / (total["weight_squared"] or math.inf),
        }
    return metrics
