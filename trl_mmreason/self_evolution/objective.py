"""Rewards without true answers, and their advantages (sections 3.1–3.3). Pure functions.

    r_i  = 1/n Σ_j 1[a_j = a_i]                                              Eq. 3
    g(s) = 1 + λ₊ σ((s − t_h)/τ_h) − λ₋ σ((t_l − s)/τ_l)                     Eq. 7
    R    = r · g(s) − λ_fmt δ                                                Eq. 8
    A_k  = α R_k − log Σ_j exp(α R_j)                                        Eq. 9–11

"When Models Judge Themselves: Unsupervised Self-Evolution for Multimodal Reasoning". Notation: Q questions, G answers
of a group (the paper's n).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..evaluation.voting import Equality, cluster_answers


def self_consistency(answers: Sequence[str | None], equal: Equality | None = None) -> Tensor:
    """The share of a group's answers that are equivalent to each answer (Eq. 3).

    Args:
        answers: G answers, `None` where there is none: such a one gets 0 and votes for nothing, and G stays G.
        equal: whether two answers say the same; the grader's `equivalent` by default.

    Returns:
        (G,) in [0, 1].

    Examples:
        >>> self_consistency(["1/2", "0.5", "3", None])  # no answer votes for nothing
        tensor([0.5000, 0.5000, 0.2500, 0.0000])
    """
    shares = torch.zeros(len(answers))
    for members in cluster_answers(answers, equal):
        shares[members] = len(members) / len(answers)
    return shares


def majority_vote(answers: Sequence[str | None], equal: Equality | None = None) -> Tensor:
    """1 for the most frequent answer and 0 for the others (Eq. 4 and 5; MM-UPT, arXiv:2505.22453).

    Of answers equally frequent the one that came first wins. A missing answer never wins, and votes for nothing.

    Args:
        answers, equal: as for `self_consistency`.

    Returns:
        (G,) of 0 and 1; all 0 if there is no answer.

    Examples:
        >>> majority_vote(["1/2", "0.5", "3", None])
        tensor([1., 1., 0., 0.])
    """
    votes = torch.zeros(len(answers))
    votes[max(cluster_answers(answers, equal), key=len, default=[])] = 1.0
    return votes


def judge_modulation(
    scores: Tensor,
    *,
    high_weight: float = 0.2,
    low_weight: float = 0.2,
    high_threshold: float = 0.95,
    low_threshold: float = 0.40,
    high_temperature: float = 1.0,
    low_temperature: float = 1.0,
) -> Tensor:
    """g(s), the bounded factor by which a judge's score scales a reward (Eq. 7).

    Args:
        scores: s in [0, 1], of any shape; NaN where the judge said nothing that could be read.
        high_weight, low_weight: λ₊ and λ₋, the most that a reward is raised and lowered by.
        high_threshold, low_threshold: t_h and t_l.
        high_temperature, low_temperature: τ_h and τ_l, how smooth the transitions are.

    Returns:
        The same shape, above 1 − λ₋ and below 1 + λ₊; 1 where there is no score.

    Examples:
        >>> judge_modulation(torch.tensor([0.0, 1.0, float("nan")]))
        tensor([0.9360, 1.0316, 1.0000])
    """
    raised = high_weight * torch.sigmoid((scores - high_threshold) / high_temperature)
    lowered = low_weight * torch.sigmoid((low_threshold - scores) / low_temperature)
    return torch.where(scores.isnan(), 1.0, 1 + raised - lowered)


def log_sum_exp_advantages(rewards: Tensor, alpha: float = 1.0, *, centred: bool = False) -> Tensor:
    """A = log softmax(α R) over each group (Eq. 9–11): always below 0, and exp(A) sums to 1.

    Args:
        rewards: (Q, G); NaN takes no part in its group.
        alpha: α, the inverse temperature.
        centred: subtract each group's mean, which leaves α (R − mean R): the log-sum-exp cancels. Ours, for comparison.

    Returns:
        (Q, G); NaN where the reward is.

    Examples:
        >>> log_sum_exp_advantages(torch.tensor([[1.0, 1.0]]))  # two equal rewards: log 1/2 each
        tensor([[-0.6931, -0.6931]])
        >>> log_sum_exp_advantages(torch.tensor([[1.0, 0.0]]), centred=True)
        tensor([[ 0.5000, -0.5000]])
    """
    scaled = alpha * rewards
    if centred:
        return scaled - scaled.nanmean(dim=1, keepdim=True)
    missing = scaled.isnan()
    return scaled.masked_fill(missing, -torch.inf).log_softmax(dim=1).masked_fill(missing, torch.nan)
