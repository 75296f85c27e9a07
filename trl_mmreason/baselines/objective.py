"""Rewards of two-turn baselines (AdaPO, Fig. 2 and appendix B). Pure functions; they import only torch.

A trajectory answers a question twice; its type i→j says whether the first and the second answer are right.

Notation: Q questions, G trajectories a question. Masks say True = keep.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fixed_rewards(
    first_correct: Tensor, second_correct: Tensor, *, r_01: float, r_11: float, r_10: float, r_00: float
) -> Tensor:
    """Look up a fixed reward for each type, independent of the group.

    Args:
        first_correct, second_correct: (Q, G) bool, i and j of each trajectory.
        r_01: of 0→1, and so on.

    Returns:
        (Q, G) float.
    """
    first, second = first_correct.float(), second_correct.float()
    right = r_11 * first + r_01 * (1 - first)
    wrong = r_10 * first + r_00 * (1 - first)
    return right * second + wrong * (1 - second)


def score_rewards(first_correct: Tensor, second_correct: Tensor, *, stage: int, alpha: float = 10.0) -> Tensor:
    """SCoRe's reward of each turn (arXiv:2409.12917, Eq. 3–4 and section 5.2).

        stage I    0, r2                     stage II   r1, r2 + α (r2 − r1)

    with r = 1 for a right answer, else 0. The bonus is the second turn's alone: paid to the first too, it would pay for
    failing first. In stage I the first turn is held to the reference and earns nothing.

    Args:
        first_correct, second_correct: (Q, G) bool.
        stage: 1 or 2.
        alpha: α.

    Returns:
        (Q, G, 2) float.
    """
    first, second = first_correct.float(), second_correct.float()
    if stage == 1:
        return torch.stack([torch.zeros_like(first), second], dim=2)
    return torch.stack([first, second + alpha * (second - first)], dim=2)


def turn_advantages(rewards: Tensor, keep: Tensor) -> Tensor:
    """GRPO's advantage, (r − mean) / std over a group, for each turn separately.

    Args:
        rewards: (Q, G, turns).
        keep: (Q, G) bool; the others take part in nothing.

    Returns:
        (Q, G, turns) float, 0 where `keep` is False and where a group earns the same throughout.
    """
    mask = keep.unsqueeze(2)
    count = mask.sum(dim=1, keepdim=True)
    mean = (rewards * mask).sum(dim=1, keepdim=True) / count.clamp(min=1)
    apart = (rewards - mean) * mask
    std = (apart.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return apart / (std + 1e-4)  # as TRL
