"""Table of each question's contribution to each metric.

Every metric is a sum over questions divided by another: Σ a(q) / Σ b(q). The bootstrap draws questions, or, where
several questions are variants of one problem, problems: variants do not make an interval narrower.

Metrics of several samples per question: Q questions, N samples of each. Those that choose among n of N samples are
averaged over the N/n disjoint groups that follow each other among the N; pass@n is the mean over all groups there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..generation.engine import Failure
from ..grading import Grader, JudgeGrader
from .metrics import Column, Estimate, bootstrap, pass_at_k, two_turn_columns
from .runner import Samples
from .voting import Equality, cluster_answers, votes_of, winning_position

BELOW_ALL = -math.inf
"""The score of a sample without one: any other is chosen before it."""
_WORST_CASE = "worst_case"


@dataclass(frozen=True)
class QuestionTable:
    """Metrics as ratios of sums over questions, Σ a(q) / Σ b(q).

    The worst case is one over problems: `by_problem` takes a problem for right where each of its questions is.

    Attributes:
        names: (M,) names of the metrics.
        numerator, denominator: (U, M) what each of U questions, or problems, adds to a and to b.
    """

    names: tuple[str, ...]
    numerator: np.ndarray
    denominator: np.ndarray

    def values(self, drawn: np.ndarray | slice = slice(None)) -> dict[str, float]:
        """The metrics of the selected questions, or of all; NaN where nothing is counted."""
        numerator, denominator = self.numerator[drawn].sum(axis=0), self.denominator[drawn].sum(axis=0)
        shares = np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)
        return dict(zip(self.names, shares.tolist(), strict=True))

    def estimates(self) -> dict[str, Estimate]:
        """The metrics of all questions with their 95 % intervals."""
        return bootstrap(len(self.numerator), self.values)

    def of(self, chosen: Sequence[int] | np.ndarray) -> QuestionTable:
        """The table of these questions only."""
        return QuestionTable(self.names, self.numerator[chosen], self.denominator[chosen])

    def by_problem(self, problems: Sequence[str]) -> QuestionTable:
        """Sum a problem's questions into one row, so that the bootstrap draws them together.

        Args:
            problems: (U,) the problem of each question.
        """
        places = {problem: k for k, problem in enumerate(dict.fromkeys(problems))}
        sums = np.zeros((2, len(places), len(self.names)))
        for part, values in enumerate((self.numerator, self.denominator)):
            np.add.at(sums[part], [places[problem] for problem in problems], values)
        if _WORST_CASE in self.names:
            right, asked = sums[:, :, self.names.index(_WORST_CASE)]
            right[:], asked[:] = (right == asked) & (asked > 0), asked > 0
        return QuestionTable(self.names, *sums)


def question_table(samples: Samples, *, grader: Grader | JudgeGrader | None, has_variants: bool) -> QuestionTable:
    """Compute each question's contribution to each metric; none where its gold answer is unusable.

    Args:
        grader: its rules say whether two answers that vote say the same.
    """
    usable = [k for k, row in enumerate(samples.samples) if is_usable(row)]
    chosen = Samples([samples.rows[k] for k in usable], samples.n, samples.turns, [samples.samples[k] for k in usable])
    columns = _columns(chosen, grader, has_variants)
    sums = np.zeros((2, len(samples.rows), len(columns)))
    for place, column in enumerate(columns.values()):
        for part in (0, 1):
            sums[part, usable, place] = column[part]
    return QuestionTable(tuple(columns), *sums)


def is_usable(row: Sequence[Mapping[str, Any] | Failure]) -> bool:
    """Whether every answer to a question has a verdict; assumed where every sample failed."""
    return all(
        turn["correct"] is not None for sample in row if not isinstance(sample, Failure) for turn in sample["turns"]
    )


def final_turn(sample: Mapping[str, Any] | Failure, turns: int) -> dict[str, Any] | None:
    """The last of `turns` answers, or `None` if it was never given."""
    return None if isinstance(sample, Failure) or len(sample["turns"]) < turns else sample["turns"][-1]


def is_right(sample: Mapping[str, Any] | Failure, turn: int) -> bool:
    """Whether a turn is right; failed samples and missing turns are wrong."""
    if isinstance(sample, Failure) or turn >= len(sample["turns"]):
        return False
    return bool(sample["turns"][turn]["correct"])


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


def _columns(samples: Samples, grader: Grader | JudgeGrader | None, has_variants: bool) -> dict[str, Column]:
    final = _flags(samples, samples.turns - 1)
    one = np.ones(len(final))
    columns: dict[str, Column] = {"accuracy": (final.mean(axis=1), one)}
    if has_variants:
        columns[_WORST_CASE] = (final[:, 0], one)
    if samples.turns == 2:
        columns |= two_turn_columns(_flags(samples, 0), final)
    if samples.n > 1:
        columns |= _many(samples, final, grader)
    return columns | _lengths(samples) | _measures(samples)


def _many(samples: Samples, correct: np.ndarray, grader: Grader | JudgeGrader | None) -> dict[str, Column]:
    """Metrics of several samples, for sizes 2, 4 … n."""
    one = np.ones(len(correct))
    rules = grader.grader if isinstance(grader, JudgeGrader) else grader or Grader()
    votes = []
    for row, tried in zip(samples.rows, samples.samples, strict=True):
        turns = [final_turn(sample, samples.turns) for sample in tried]
        votes.append(votes_of(row, [None if turn is None else turn["answer"] for turn in turns], rules))
    distinct = np.array([len(cluster_answers(answers, rules.equivalent)) for answers in votes])
    sizes = [n for n in group_sizes(samples.n) if n > 1]
    columns = {f"pass_at_{n}": (pass_at_n(correct, n), one) for n in sizes}
    columns |= {
        f"self_consistency_at_{n}": (self_consistency_at_n(correct, votes, n, rules.equivalent), one) for n in sizes
    }
    columns["distinct_answers"] = (distinct, one)
    scores = np.array([[_score(sample) for sample in tried] for tried in samples.samples])
    if (scores > BELOW_ALL).any():
        columns |= {f"best_of_{n}": (best_of_n(correct, scores, n), one) for n in sizes}
    return columns


def _lengths(samples: Samples) -> dict[str, Column]:
    """Lengths and shares of cut answers, over the samples that did not fail."""
    done = [[sample for sample in tried if not isinstance(sample, Failure)] for tried in samples.samples]
    counts = np.array([len(row) for row in done])
    cut = np.array([sum("length" in sample["finish_reasons"] for sample in row) for row in done])
    columns = {"truncated": (cut, counts)}
    if all("tokens" in sample for row in done for sample in row):
        columns["tokens"] = (np.array([sum(sample["tokens"] for sample in row) for row in done]), counts)
    return columns


def _measures(samples: Samples) -> dict[str, Column]:
    """The protocol's own measures, over the samples that have them."""
    measures = [
        [sample.get("measures", {}) for sample in tried if not isinstance(sample, Failure)] for tried in samples.samples
    ]
    names = dict.fromkeys(name for tried in measures for one in tried for name in one)
    return {
        name: (
            np.array([sum(one.get(name) or 0.0 for one in tried) for tried in measures]),
            np.array([sum(one.get(name) is not None for one in tried) for tried in measures]),
        )
        for name in names
    }


def _flags(samples: Samples, turn: int) -> np.ndarray:
    """(Q, n): whether this turn of each sample is right."""
    flags = [[is_right(sample, turn) for sample in tried] for tried in samples.samples]
    return np.array(flags, dtype=bool).reshape(len(flags), samples.n)


def _score(sample: Mapping[str, Any] | Failure) -> float:
    score = None if isinstance(sample, Failure) else sample.get("score")
    return BELOW_ALL if score is None or math.isnan(score) else score
