"""Metrics of several samples per question: pass@n, best-of-n and self-consistency.

Q questions, N samples of each. Those that choose among n of N samples are averaged over the N/n disjoint groups that
follow each other among the N; pass@n is the mean over all groups there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .metrics import pass_at_k
from .voting import Equality, winning_position


def pass_at_n(correct: np.ndarray, n: int) -> np.ndarray:
    """(Q,) the chance that one of n of the samples is right; `correct` is (Q, N)."""
    return np.array([pass_at_k(correct.shape[1], int(right), n) for right in correct.sum(axis=1)])


def best_of_n(correct: np.ndarray, scores: np.ndarray, n: int) -> np.ndarray:
    """(Q,) the share of the groups of n whose highest score, the earliest of equal ones, has a right answer.

    Args:
        correct: (Q, N) bool.
        scores: (Q, N), from whatever scorer.
        n: size of a group; samples after the last whole one do not count.
    """
    best = _groups(scores, n).argmax(axis=-1)
    return np.take_along_axis(_groups(correct, n), best[..., None], axis=-1)[..., 0].mean(axis=-1)


def self_consistency_at_n(
    correct: np.ndarray, votes: Sequence[Sequence[str | None]], n: int, equal: Equality | None = None
) -> np.ndarray:
    """(Q,) the share of the groups of n whose majority is right; a group without votes is wrong.

    Args:
        correct: (Q, N) bool.
        votes: (Q, N) answers.
        n: group size, as in `best_of_n`.
        equal: whether two answers say the same, as in `winning_position`.
    """
    shares = []
    for flags, answers in zip(correct, votes, strict=True):
        starts = range(0, len(answers) - n + 1, n)
        winners = [winning_position(answers[start : start + n], equal) for start in starts]
        right = [win is not None and flags[start + win] for start, win in zip(starts, winners, strict=True)]
        shares.append(np.mean(right))
    return np.array(shares)


def group_sizes(n: int) -> list[int]:
    """1, 2, 4 … and `n` itself."""
    return [*(1 << power for power in range((n - 1).bit_length())), n]


def _groups(values: np.ndarray, n: int) -> np.ndarray:
    """(Q, N) → (Q, N // n, n)."""
    whole = values.shape[1] // n
    return values[:, : whole * n].reshape(len(values), whole, n)
