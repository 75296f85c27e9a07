"""The maths of AdaPO (paper: "AdaPO", Eq. 2–8). Pure functions; they import only torch.

A trajectory answers a question twice: y1, and y2 after being asked to check y1. Its type i→j says whether the first
and the second answer are right. P, the error rate of a question, is the share of its group's first answers that are
wrong, and θ is the error rate at which training turns from keeping right answers to correcting wrong ones.

Notation: Q questions, G trajectories a question. Masks say True = keep.
"""

from __future__ import annotations

import torch
from torch import Tensor


def error_rate(first_correct: Tensor, keep: Tensor | None = None) -> Tensor:
    """P = P(0→*), the share of a group's first answers that are wrong.

    Args:
        first_correct: (Q, G) bool.
        keep: (Q, G) bool; trajectories that count. All do by default.

    Returns:
        (Q,) float; NaN for a question without a kept trajectory.

    Examples:
        >>> error_rate(torch.tensor([[False, False, False, True]]))
        tensor([0.7500])
    """
    keep = torch.ones_like(first_correct) if keep is None else keep
    return (~first_correct & keep).sum(dim=1) / keep.sum(dim=1).float()


def adaptive_rewards(
    first_correct: Tensor,
    second_correct: Tensor,
    keep: Tensor | None = None,
    *,
    base_correct: float = 1.0,
    base_incorrect: float = -1.0,
    k_01: float = 1.0,
    k_11: float = -1.0,
    k_10: float = 0.5,
    k_00: float = -0.5,
    threshold: float = 0.6,
) -> Tensor:
    """Rewards of the adaptive reward model (Eq. 2–5).

        0→1   R_base+ + K01 (P − θ)        1→1   R_base+ + K11 (P − θ)
        1→0   R_base− + K10 P              0→0   R_base− + K00 P

    Differs from the paper's Table 4, which prints K01 = −1 and K11 = +1: Eq. 4 and the text ask for the opposite.

    Args:
        first_correct: (Q, G) bool, i of each trajectory.
        second_correct: (Q, G) bool, j of each trajectory.
        keep: (Q, G) bool; the others count neither for P nor get a reward. All do by default.
        base_correct: R_base+.
        base_incorrect: R_base−.
        k_01: K of 0→1, and so on.
        threshold: θ.

    Returns:
        (Q, G) float, NaN where `keep` is False.

    Examples:
        >>> first, second = torch.tensor([[0, 0, 0, 1]]).bool(), torch.tensor([[1, 0, 0, 1]]).bool()
        >>> adaptive_rewards(first, second)  # P = 0.75: 0→1 earns 1.15, 0→0 -1.375, 1→1 0.85
        tensor([[ 1.1500, -1.3750, -1.3750,  0.8500]])
    """
    keep = torch.ones_like(first_correct) if keep is None else keep
    errors = error_rate(first_correct, keep).unsqueeze(1)
    right = base_correct + torch.where(first_correct, k_11, k_01) * (errors - threshold)
    wrong = base_incorrect + torch.where(first_correct, k_10, k_00) * errors
    return torch.where(second_correct, right, wrong).masked_fill(~keep, float("nan"))


def kl_coefficients(
    error_rate: Tensor,
    *,
    beta: float = 0.001,
    kl_scale: float = 0.01,
    k_01: float = 1.0,
    k_11: float = -1.0,
    threshold: float = 0.6,
) -> tuple[Tensor, Tensor]:
    """KL coefficients of the two turns (Eq. 7–8).

        β1 = max((R01 − R11) λ, 0) + β_base        β2 = max((R11 − R01) λ, 0) + β_base

    Both right types share one base reward, so R01 − R11 = (K01 − K11)(P − θ).

    Args:
        error_rate: (Q,) P of each question.
        beta: β_base.
        kl_scale: λ.
        k_01, k_11, threshold: as in `adaptive_rewards`.

    Returns:
        β1 and β2, (Q,) each; NaN where P is.

    Examples:
        >>> kl_coefficients(torch.tensor([0.75, 0.25]))  # above θ the first turn is held, below it the second
        (tensor([0.0040, 0.0010]), tensor([0.0010, 0.0080]))
    """
    correction = (k_01 - k_11) * (error_rate - threshold) * kl_scale
    return correction.clamp(min=0.0) + beta, (-correction).clamp(min=0.0) + beta
