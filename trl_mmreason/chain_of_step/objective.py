"""The maths of Chain-of-Step (arXiv:2509.19003, sections 3.3 and 3.4). Pure functions; they import only torch.

A path is a chain of steps with its answer. The process reward model gives every step and the answer a score

    r = σ(d),   d = logit₊ − logit₋        of two chosen tokens, at the token that closes the step or the answer

Notation: S steps of a path, N continuations a step, G paths of one question, P scored positions. Masks say True = keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

RATING_VALUES = {"Good": 1, "Neutral": 0, "Bad": -1}
"""The judge's ratings (section 3.3), and what stands for each in its reply (Fig. 9)."""

PAIRINGS = ("best_worst", "ranked", "all")

# 0.9 − 0.7 is 0.20000000000000007 in double precision, and scores come in single precision.
_ROUNDING = 1e-6


def trajectory_score(
    step_scores: Tensor | Sequence[float], answer_score: Tensor | float, step_weight: float = 0.2
) -> Tensor:
    """w · mean(step scores) + (1 − w) · answer score (section 3.4; w as in section 4.3.1).

    A path without a step has 0 for the mean: what is missing costs its own part, and leaving the steps out never pays.

    Args:
        step_scores: (S,) in [0, 1].
        answer_score: in [0, 1]; 0 for a path that was cut before its answer.
        step_weight: w.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: a score or the weight is outside [0, 1], or not a number.

    Examples:
        >>> trajectory_score([0.9, 0.7], 0.5)  # 0.2 · 0.8 + 0.8 · 0.5
        tensor(0.5600)
    """
    if not 0 <= step_weight <= 1:
        raise ValueError(f"trajectory_score: step_weight is {step_weight}, expected 0 to 1.")
    steps, answer = (torch.as_tensor(scores, dtype=torch.float32) for scores in (step_scores, answer_score))
    for name, scores in (("step_scores", steps), ("answer_score", answer)):
        if not _in_unit_interval(scores):
            raise ValueError(
                f"trajectory_score: {name} is {scores.tolist()}, expected 0 to 1. Logits need a sigmoid first."
            )
    mean = steps.mean() if steps.numel() else torch.zeros_like(answer)
    return step_weight * mean + (1 - step_weight) * answer


def select_pairs(
    scores: Tensor | Sequence[float],
    threshold: float = 0.2,
    pairing: str = "best_worst",
    *,
    max_pairs: int | None = None,
) -> list[tuple[int, int]]:
    """Select pairs (positive, negative) of one question's paths with score₊ − score₋ > t (section 3.4).

    The paper does not say how many pairs a question gives; one is our default. Margins are told apart to one millionth,
    so that a rounding error does not lift one over the threshold.

    Args:
        scores: (G,), NaN not allowed.
        threshold: t, 0 or more.
        pairing: `best_worst`: one pair. `ranked`: the best with the worst, the second best with the second worst, and
            so on, each path in one pair at most. `all`: every pair. Of equal scores the earlier path ranks higher.
        max_pairs: for `ranked` and `all`: keep this many, those with the widest margins.

    Returns:
        Indices into `scores`, widest margin first.

    Raises:
        ValueError: an argument is out of range, a score is not a number, or `max_pairs` is set for `best_worst`.

    Examples:
        >>> select_pairs([0.9, 0.3, 0.6, 0.5])
        [(0, 1)]
        >>> select_pairs([0.9, 0.3, 0.6, 0.5], pairing="all")
        [(0, 1), (0, 3), (0, 2), (2, 1)]
    """
    if pairing not in PAIRINGS:
        raise ValueError(f"select_pairs: unknown pairing {pairing!r}; expected one of {', '.join(PAIRINGS)}.")
    if not threshold >= 0:
        raise ValueError(f"select_pairs: threshold is {threshold}, expected 0 or more.")
    if max_pairs is not None and (pairing == "best_worst" or max_pairs < 1):
        raise ValueError(
            f"select_pairs: max_pairs is {max_pairs} with pairing {pairing!r}, expected None, or 1 or more with "
            "'ranked' or 'all'."
        )
    values = torch.as_tensor(scores, dtype=torch.float64).tolist()
    if any(map(isnan, values)):
        raise ValueError(f"select_pairs: got the scores {values}; leave paths without a score out.")
    order = sorted(range(len(values)), key=lambda path: -values[path])
    if pairing == "all":
        pairs = [(positive, negative) for rank, positive in enumerate(order) for negative in order[rank + 1 :]]
    else:
        half = len(order) // 2
        pairs = list(zip(order[:half], order[::-1], strict=False))
    margins = {(positive, negative): values[positive] - values[negative] for positive, negative in pairs}
    wide = [pair for pair in pairs if margins[pair] > threshold + _ROUNDING]
    wide.sort(key=lambda pair: -margins[pair])
    return wide[: 1 if pairing == "best_worst" else max_pairs]


def last_part_mask(is_end: Tensor, completion_mask: Tensor) -> Tensor:
    """Mask the tokens of each completion's last part (appendix E): after its second-to-last end, up to its last.

    A part is a step or the answer, with the token that closes it. What the chat template writes after the last part
    was not sampled and does not count.

    Args:
        is_end: (B, T) bool, whether a token closes a step or an answer.
        completion_mask: (B, T) bool, True = the token belongs to the completion.

    Returns:
        (B, T) bool, True = the token belongs to the last part; all False for a completion without an end.
    """
    ends = (is_end & completion_mask).long()
    ends_before = ends.cumsum(dim=1) - ends
    return completion_mask & (ends_before == ends.sum(dim=1, keepdim=True) - 1)


def step_advantages(
    steps: Sequence[Sequence[float]], answers: Sequence[float | None], *, scale: bool = True
) -> list[Tensor]:
    """GRPO's advantage of each part of a group's paths: (r − mean) / (std + 1e-4), a step among steps.

    A step's score is compared with those of all steps of the group, an answer's with those of all answers. Ours; the
    paper pays each token the trajectory score.

    Args:
        steps: scores of each path's whole steps.
        answers: score of each path's answer, `None` without one.
        scale: whether to divide by the deviation.

    Returns:
        Of each path its steps' advantages, followed by its answer's if it has one; 0 where a group has one score alone.

    Examples:
        >>> step_advantages([[0.0, 1.0], [0.5]], [None, 0.5])  # steps: mean 0.5, std 0.5
        [tensor([-0.9998,  0.9998]), tensor([0., 0.])]
    """
    of_steps = _compared([score for path in steps for score in path], scale).split([len(path) for path in steps])
    of_answers = _compared([answer for answer in answers if answer is not None], scale).split(
        [int(answer is not None) for answer in answers]
    )
    return [torch.cat(parts) for parts in zip(of_steps, of_answers, strict=True)]


def _compared(scores: list[float], scale: bool) -> Tensor:
    if len(scores) < 2:
        return torch.zeros(len(scores))
    values = torch.tensor(scores)
    return (values - values.mean()) / (values.std() + 1e-4 if scale else 1.0)


def monte_carlo_labels(correct: Tensor | Sequence[Sequence[bool]]) -> tuple[Tensor, Tensor]:
    """Labels of steps from the outcomes of continuations after each (section 3.3, after Math-Shepherd).

    Args:
        correct: (S, N) bool, whether continuation n after step s ended in the right answer.

    Returns:
        (soft, hard): two (S,) floats; the share of right continuations, and 1 if there is any.

    Raises:
        ValueError: another shape, no continuation, or a value that is neither True nor False.
    """
    outcomes = torch.as_tensor(correct)
    if outcomes.ndim != 2 or outcomes.shape[1] == 0:
        raise ValueError(f"monte_carlo_labels: got shape {tuple(outcomes.shape)}, expected (steps, continuations).")
    if not ((outcomes == 0) | (outcomes == 1)).all():  # -100 would count as True
        raise ValueError(f"monte_carlo_labels: got {outcomes.tolist()}, expected True and False only.")
    return outcomes.float().mean(dim=1), outcomes.bool().any(dim=1).float()


def judge_labels(ratings: Sequence[str | int], answer_correct: bool) -> Tensor:
    """Labels of steps from a judge's ratings (section 3.3): Good is right; Neutral is, if the final answer is right.

    Args:
        ratings: (S,) the names in `RATING_VALUES`, or the numbers that stand for them.
        answer_correct: whether the final answer is right.

    Returns:
        (S,) float, 1 = right.

    Raises:
        ValueError: another rating.
    """
    numbers = [RATING_VALUES.get(rating) if isinstance(rating, str) else rating for rating in ratings]
    lowest = RATING_VALUES["Neutral"] if answer_correct else RATING_VALUES["Good"]
    labels = []
    for rating, number in zip(ratings, numbers, strict=True):
        if number is None or number not in RATING_VALUES.values():
            raise ValueError(f"judge_labels: unknown rating {rating!r}; expected one of {RATING_VALUES}.")
        labels.append(float(number >= lowest))
    return torch.tensor(labels)


def prm_loss(
    logits_difference: Tensor, labels: Tensor, mask: Tensor, *, num_labels: Tensor | float | None = None
) -> Tensor:
    """Binary cross entropy of the scores over all labelled positions (Eq. 1), computed from the logits.

        −y log σ(d) − (1 − y) log σ(−d)        finite however large d is

    Args:
        logits_difference: (B, P) d.
        labels: (B, P) y in [0, 1], hard or soft; anything where `mask` is False.
        mask: (B, P) bool or 0 and 1, True = the position has a label.
        num_labels: what to divide the sum by, such as the labels of one optimizer step; by default those of `mask`.

    Returns:
        A scalar in nats; 0 without a label.

    Raises:
        ValueError: a label that counts is outside [0, 1].
    """
    keep = mask.bool()
    difference, target = logits_difference[keep].float(), labels[keep].float()
    if not _in_unit_interval(target):
        raise ValueError(f"prm_loss: got the labels {target.tolist()}, expected 0 to 1; mask positions without one.")
    total = binary_cross_entropy_with_logits(difference, target, reduction="sum")
    return total / (keep.sum().clamp(min=1) if num_labels is None else num_labels)


def label_accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """Share of positions with score and label on the same side of 0.5; for steps and for answers this is Table 3.

    Args:
        scores: (P,) in [0, 1].
        labels: (P,) in [0, 1]; a soft label counts as right from 0.5 on, and so does a score.

    Returns:
        A scalar; NaN without a position.
    """
    return ((scores >= 0.5) == (labels >= 0.5)).double().mean()


def auroc(scores: Tensor, labels: Tensor) -> Tensor:
    """The chance that a right position scores higher than a wrong one, ties counting half: area under the ROC curve.

    Args:
        scores: (P,) scores or logit differences; only their order counts.
        labels: (P,) in [0, 1]; a soft label counts as right from 0.5 on.

    Returns:
        A scalar; NaN unless there are both right and wrong positions.
    """
    right = labels >= 0.5
    n_right, n_wrong = right.sum().double(), (~right).sum().double()
    _, tie, sizes = torch.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = sizes.cumsum(0).double() - (sizes.double() - 1) / 2  # ranks from 1; those of a tie are shared
    rank_sum = mean_rank[tie][right].sum()
    return (rank_sum - n_right * (n_right + 1) / 2) / (n_right * n_wrong)


def _in_unit_interval(values: Tensor) -> bool:
    """Whether all values lie in [0, 1]; False for NaN."""
    return bool(((values >= 0) & (values <= 1)).all())
