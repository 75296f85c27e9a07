"""SOPHIA's rewards and loss (arXiv:2507.16814, sections 4.2 and 4.3). Pure functions; they import only torch.

    R(c_k)  = 1/N Σ_n R(y_kn)                                                                   Eq. 5
    R       = 1 for the shortest y_kn with R(y_kn) = 1 and R(c_k) > α, 0 for the others          Eq. 6
    ∇J      = E[ w · R · Σ_l ∇ log π(y_l | y_<l, x, v) ]                                        Eq. 7

Notation: K captions of a question, N trajectories a caption, B rows, T tokens. Masks say True (or 1) = keep.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

RULES = ("sophia", "random", "without_caption_reward", "without_shortest")
IMPORTANCE_SAMPLING = ("none", "sequence", "token")
SEQUENCE_REDUCTIONS = ("sum", "mean")

Clip = float | tuple[float, float] | None


def caption_rewards(correct: Tensor) -> Tensor:
    """R(c), the share of right trajectories of each caption (Eq. 5).

    Args:
        correct: (K, N) R(y), bool or 0 and 1.

    Returns:
        (K,) in [0, 1].

    Examples:
        >>> caption_rewards(torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]))
        tensor([1.0000, 0.2500])
    """
    return torch.as_tensor(correct).float().mean(dim=1)


def select_trajectories(
    correct: Tensor,
    lengths: Tensor,
    threshold: float = 0.75,
    keep: int = 1,
    rule: str = "sophia",
    *,
    whole: Tensor | None = None,
    seed: int = 0,
) -> list[tuple[int, int]]:
    """Select the trajectories of a question that are rewarded (Eq. 6, and the ablations of Table 5 and A4).

    | rule                     | candidates                               | kept of them      |
    |--------------------------|------------------------------------------|-------------------|
    | `sophia`                 | right, caption's reward above threshold  | the shortest      |
    | `without_caption_reward` | right                                    | the shortest      |
    | `without_shortest`       | right, caption's reward above threshold  | drawn at random   |
    | `random`                 | all                                      | drawn at random   |

    Args:
        correct: (K, N) R(y), bool or 0 and 1.
        lengths: (K, N) in tokens.
        threshold: α; a caption's reward has to be above it, not equal.
        keep: how many to keep, fewer where there are not so many candidates.
        rule: one of `RULES`.
        whole: (K, N) bool, True = may be kept, such as what was not cut by a length limit; all by default.
        seed: seed of random choices.

    Returns:
        (k, n) of each; by length, ties in favour of the earlier (k, n), or in the order drawn.

    Examples:
        >>> correct = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
        >>> lengths = torch.tensor([[90, 70, 80, 60], [10, 20, 30, 40]])
        >>> select_trajectories(correct, lengths)  # the shortest right one from the good caption
        [(0, 3)]
    """
    if rule not in RULES:
        raise ValueError(f"select_trajectories: rule is {rule!r}, expected one of {RULES}.")
    if keep < 1:
        raise ValueError(f"select_trajectories: keep is {keep}, expected 1 or more.")
    right, lengths = torch.as_tensor(correct).bool(), torch.as_tensor(lengths)
    if right.ndim != 2 or right.shape != lengths.shape:
        raise ValueError(
            f"select_trajectories: correct has the shape {tuple(right.shape)} and lengths {tuple(lengths.shape)}, "
            "expected (K, N) of both."
        )
    candidates = torch.ones_like(right) if rule == "random" else right
    if rule in ("sophia", "without_shortest"):
        candidates = candidates & (caption_rewards(right) > threshold).unsqueeze(1)
    if whole is not None:
        candidates = candidates & torch.as_tensor(whole).bool()
    places = [(int(k), int(n)) for k, n in candidates.nonzero()]
    if rule in ("random", "without_shortest"):
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
        return [places[index] for index in order[:keep]]
    return sorted(places, key=lambda place: int(lengths[place]))[:keep]  # sorting is stable


class ImportanceWeights(NamedTuple):
    """Truncated importance weights, and where they were truncated; both (B, 1) or (B, T)."""

    values: Tensor
    truncated: Tensor


def importance_weights(
    logps: Tensor, behavior_logps: Tensor, mask: Tensor, level: str, clip: Clip = None
) -> ImportanceWeights:
    """w = π / μ of each sequence, or of each token; detached (Eq. 3 and 7).

    Args:
        logps: (B, T) log π of each token, in nats.
        behavior_logps: (B, T) log μ of each token under the policy that wrote it.
        mask: (B, T), 1 = a token of the completion.
        level: "sequence" or "token".
        clip: (low, high) that weights are truncated to, or `high` alone with a `low` of 0; `None`: not truncated.

    Returns:
        (B, 1) for "sequence", (B, T) for "token"; the values of tokens that are masked out mean nothing.
    """
    if level not in IMPORTANCE_SAMPLING[1:]:
        raise ValueError(f"importance_weights: level is {level!r}, expected one of {IMPORTANCE_SAMPLING[1:]}.")
    log_ratio = torch.where(mask.bool(), (logps - behavior_logps).detach(), 0.0)
    if level == "sequence":
        log_ratio = log_ratio.sum(dim=1, keepdim=True)
    if clip is None:
        return ImportanceWeights(log_ratio.exp(), torch.zeros_like(log_ratio, dtype=torch.bool))
    # Before exp, as a long sequence's ratio is beyond what floating point can hold.
    low, high = (math.log(bound) if bound else -math.inf for bound in (clip if isinstance(clip, tuple) else (0, clip)))
    return ImportanceWeights(log_ratio.clamp(low, high).exp(), (log_ratio < low) | (log_ratio > high))


def off_policy_loss(
    logps: Tensor,
    rewards: Tensor,
    mask: Tensor,
    *,
    behavior_logps: Tensor | None = None,
    importance_sampling: str = "none",
    clip: Clip = None,
    sequence_reduction: str = "sum",
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """−J, so that descent on the loss is ascent on Eq. 7: −1/B Σ_b R_b Σ_l w_bl log π_bl.

    Args:
        logps: (B, T) log π of each token, in nats.
        rewards: (B,) any real numbers.
        mask: (B, T), 1 = a token of the completion.
        behavior_logps: (B, T) log μ, for importance weights.
        importance_sampling: "none" (w = 1, Lemma A.3), "sequence" or "token"; see `importance_weights`.
        clip: bounds of the weights; see there.
        sequence_reduction: "sum" over tokens, the equation; "mean" over all tokens of the batch, which with rewards
            and weights of 1 is the loss of supervised training.
        normalizer: what the sum is divided by: B for "sum", the number of tokens for "mean". A micro-batch is given
            that of the whole batch, so that the losses of all its micro-batches add up to the batch's.

    Returns:
        A scalar.
    """
    if importance_sampling not in IMPORTANCE_SAMPLING:
        raise ValueError(
            f"off_policy_loss: importance_sampling is {importance_sampling!r}, expected one of {IMPORTANCE_SAMPLING}."
        )
    if sequence_reduction not in SEQUENCE_REDUCTIONS:
        raise ValueError(
            f"off_policy_loss: sequence_reduction is {sequence_reduction!r}, expected one of {SEQUENCE_REDUCTIONS}."
        )
    if rewards.shape != logps.shape[:1] or mask.shape != logps.shape:
        raise ValueError(
            f"off_policy_loss: logps has the shape {tuple(logps.shape)}, rewards {tuple(rewards.shape)} and mask "
            f"{tuple(mask.shape)}, expected (B, T), (B,) and (B, T)."
        )
    coefficients = rewards.unsqueeze(1)
    if importance_sampling != "none":
        if behavior_logps is None:
            raise ValueError(
                f"off_policy_loss: importance_sampling={importance_sampling!r} needs behavior_logps, the "
                "log-probabilities under the policy that wrote the completions."
            )
        weights = importance_weights(logps, behavior_logps, mask, importance_sampling, clip)
        coefficients = coefficients * weights.values
    # `where`, as padding may hold anything, infinities included.
    total = torch.where(mask.bool(), coefficients * logps, 0.0).sum()
    if normalizer is None:
        normalizer = len(logps) if sequence_reduction == "sum" else mask.sum()
    return -total / normalizer
