"""Metrics of two-turn answers, bootstrap intervals, and pass@k.

Notation: a question's outcome is i→j, where i says whether the first answer was right (1) or wrong (0) and j
says the same of the second. Shares are fractions; only the text that is printed is in percent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .methods import declared

if TYPE_CHECKING:
    import torch

Flags: TypeAlias = "Sequence[bool] | np.ndarray | torch.Tensor"
ConfidenceInterval: TypeAlias = tuple[float, float]
Column: TypeAlias = tuple[np.ndarray, np.ndarray]
"""What each question adds to a metric's numerator and denominator."""


class Metric(NamedTuple):
    """Label and format of a metric: shares in percent with one decimal, others with two decimals by default."""

    label: str
    is_share: bool = True
    decimals: int | None = None

    def text(self, value: float, signed: bool = False) -> str:
        """Format the value; `n/a` for NaN."""
        if math.isnan(value):
            return "n/a"
        scale, usual = (100, 1) if self.is_share else (1, 2)
        decimals = usual if self.decimals is None else self.decimals
        rounded = round(scale * value, decimals) + 0.0  # + 0.0 turns -0.0 into 0.0
        return f"{rounded:+.{decimals}f}" if signed and rounded else f"{rounded:.{decimals}f}"

    def with_interval(self, estimate: Estimate, signed: bool = False) -> str:
        """Format the value, and the interval in brackets."""
        low, high = estimate.interval
        return f"{self.text(estimate.value, signed)} [{self.text(low, signed)}, {self.text(high, signed)}]"


METRICS = {
    "acc_t1": Metric("acc@t1"),
    "acc_t2": Metric("acc@t2"),
    "delta": Metric("delta (t2 - t1)"),
    "correction_rate": Metric("correction, of first wrong"),
    "misjudgment_rate": Metric("misjudgment, of first right"),
    "kept_share": Metric("kept right, of all"),
    "correction_share": Metric("correction, of all"),
    "failed_share": Metric("never right, of all"),
    "misjudgment_share": Metric("misjudgment, of all"),
    "accuracy": Metric("accuracy"),
    "worst_case": Metric("right in all variants"),
    "distinct_answers": Metric("distinct answers a question", is_share=False),
    "truncated": Metric("cut by the length limit"),
    "tokens": Metric("tokens a sample", is_share=False, decimals=1),
}


@dataclass(frozen=True)
class Estimate:
    """A metric and its 95 % interval (low, high)."""

    value: float
    interval: ConfidenceInterval

    def as_json(self) -> dict[str, float | None]:
        """The numbers as JSON values, null for NaN."""
        numbers = zip(("value", "low", "high"), (self.value, *self.interval), strict=True)
        return {name: number_as_json(number) for name, number in numbers}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Estimate:
        """Read the result of `as_json`, ignoring other keys."""
        value, low, high = (number_from_json(found[name]) for name in ("value", "low", "high"))
        return cls(value, (low, high))


def number_as_json(number: float) -> float | None:
    """A number as a JSON value, null for NaN."""
    return None if math.isnan(number) else number


def number_from_json(value: float | None) -> float:
    """Read the result of `number_as_json`."""
    return math.nan if value is None else value


@dataclass(frozen=True)
class Change:
    """One metric before and after training, and after minus before."""

    before: Estimate
    after: Estimate
    change: Estimate


def two_turn_metrics(first_correct: Flags, second_correct: Flags) -> dict[str, float]:
    """Accuracy of both turns, and rates of corrections and misjudgments.

    Args:
        first_correct, second_correct: (N,) bools, one per trajectory, in the same order.

    Returns:
        acc_t1, acc_t2, delta = acc_t2 - acc_t1; correction_rate = #(0→1) / #(first wrong); misjudgment_rate =
        #(1→0) / #(first right); correction_share and misjudgment_share, the same counts over N. NaN where the
        denominator is 0.

    Raises:
        ValueError: for inputs that are not bools, not one-dimensional, or not equally long.
    """
    first, second = _flags(first_correct, "first_correct"), _flags(second_correct, "second_correct")
    if len(first) != len(second):
        raise ValueError(
            f"first_correct has {len(first)} entries and second_correct {len(second)}; "
            "give one of each for every trajectory"
        )
    columns = two_turn_columns(first[:, None], second[:, None])
    return {
        name: float(numerator.sum() / denominator.sum()) if denominator.any() else math.nan
        for name, (numerator, denominator) in columns.items()
        if name not in ("kept_share", "failed_share")
    }


def two_turn_columns(first: np.ndarray, second: np.ndarray) -> dict[str, Column]:
    """Each question's contribution to the metrics of two turns; the arguments are (Q, n) bools."""
    one = np.ones(len(first))
    corrected, misjudged = (~first & second).mean(axis=1), (first & ~second).mean(axis=1)
    return {
        "acc_t1": (first.mean(axis=1), one),
        "acc_t2": (second.mean(axis=1), one),
        "delta": (second.mean(axis=1) - first.mean(axis=1), one),
        "correction_rate": (corrected, (~first).mean(axis=1)),
        "misjudgment_rate": (misjudged, first.mean(axis=1)),
        "kept_share": ((first & second).mean(axis=1), one),
        "correction_share": (corrected, one),
        "failed_share": ((~first & ~second).mean(axis=1), one),
        "misjudgment_share": (misjudged, one),
    }


def bootstrap(
    questions: int, metrics_of: Callable[[np.ndarray], Mapping[str, float]], *, resamples: int = 2000
) -> dict[str, Estimate]:
    """Compute the metrics of all questions with 95 % percentile bootstrap intervals.

    A resample in which a metric is NaN, or missing, is left out of that metric's interval; the interval is (NaN, NaN)
    when no resample is left. When all outcomes are alike, every resample is too, and the interval has no width although
    other questions might end differently.

    Args:
        questions: how many there are to draw from.
        metrics_of: positions of questions, possibly repeated → named metrics of these.
    """
    values = metrics_of(np.arange(questions))
    generator = np.random.default_rng(0)
    draws = [metrics_of(generator.integers(questions, size=questions)) for _ in range(resamples if questions else 0)]
    estimates = {}
    for name, value in values.items():
        known = [one for draw in draws if not math.isnan(one := draw.get(name, math.nan))]
        low, high = np.quantile(known, [(1 - 0.95) / 2, (1 + 0.95) / 2]) if known else (math.nan, math.nan)
        estimates[name] = Estimate(value, (float(low), float(high)))
    return estimates


def verdict(change: ConfidenceInterval) -> str:
    """What the interval of a change, such as a `Change`'s, says of its metric.

    Examples:
        >>> verdict((0.03, 0.19)), verdict((-0.19, -0.03))
        ('rose: the interval of its change lies above 0', 'fell: the interval of its change lies below 0')
        >>> verdict((-0.03, 0.19))
        'is undecided: the interval of its change does not exclude 0'
    """
    low, high = change
    if low > 0:
        return "rose: the interval of its change lies above 0"
    if high < 0:
        return "fell: the interval of its change lies below 0"
    return "is undecided: the interval of its change does not exclude 0"  # nor does one of NaN, what was not measured


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right: 1 - C(n - c, k) / C(n, k).

    Args:
        n: samples drawn for the question.
        c: how many of them are right, 0 <= c <= n.
        k: samples allowed, 1 <= k <= n.

    Raises:
        ValueError: for numbers outside those ranges.

    Examples:
        >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2)
        (0.25, 0.5)
    """
    if not 0 <= c <= n:
        raise ValueError(f"pass_at_k: c={c} of n={n} samples are right; expected 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"pass_at_k: k={k} with n={n} samples; expected 1 <= k <= n, so draw more samples or lower k")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def metric_of(name: str) -> Metric:
    """The label and format of a metric, by name."""
    for known in (METRICS, *(method.metrics for method in declared())):
        if name in known:
            return known[name]
    kind, _, n = name.rpartition("_")
    label = {"pass_at": f"pass@{n}", "self_consistency_at": f"self-consistency@{n}", "best_of": f"best of {n}"}.get(
        kind
    )
    return Metric(name.replace("_", " ") if label is None else label)


def format_table(comparison: Mapping[str, Change]) -> str:
    """Plain-text table of changes, each number with its interval."""
    lines = [["percent [95 % interval]", "before", "after", "change"]]
    for name, row in comparison.items():
        metric = metric_of(name)
        cells = [*map(metric.with_interval, (row.before, row.after)), metric.with_interval(row.change, signed=True)]
        lines.append([metric.label, *cells])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Plain-text table with aligned columns; lines have equally many cells.

    Args:
        right: whether all but the first column are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [cell.rjust(width) if right and place else cell.ljust(width) for place, (cell, width) in enumerate(cells)]
        for cells in (zip(line, widths, strict=True) for line in lines)
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _flags(values: Flags, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; expected one dimension, one bool a trajectory")
    if array.size == 0:
        return array.astype(bool)  # numpy reads an empty list as floats
    if array.dtype != bool:
        raise ValueError(f"{name} holds {array.dtype}, expected bools; leave out what could not be graded (None)")
    return array
