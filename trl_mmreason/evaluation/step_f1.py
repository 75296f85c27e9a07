"""F1 of scored steps against labels by people, as VisualProcessBench computes it (arXiv:2503.10291, section 3.3).

A step counts as correct if its score reaches the threshold. F1 is computed for correct and for incorrect steps, and
their mean is the score, as most steps are correct. Steps without a label, which the benchmark calls neutral, do not
count. "Overall" pools the steps of all sources: Table 3 calls it the micro average, and the mean of its five columns
weighted by samples would be 61.5 for VisualPRM, where it states 62.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .metrics import Estimate, Metric, aligned, bootstrap

OVERALL = "overall"
_SHARE = Metric("F1")
_NAMES = ("macro", "correct", "incorrect")


class StepF1(NamedTuple):
    """F1 of one source of solutions.

    Attributes:
        macro: mean of the two others, with its interval over solutions.
        correct, incorrect: F1 of correct and of incorrect steps; NaN if there is none of them, predicted or labelled.
        steps: number of labelled steps.
    """

    macro: Estimate
    correct: Estimate
    incorrect: Estimate
    steps: int


def step_f1(
    scores: Sequence[Sequence[float]],
    labels: Sequence[Sequence[float | None]],
    sources: Sequence[str | None],
    threshold: float = 0.5,
) -> dict[str, StepF1]:
    """Compute F1 of each source in the order of their first solutions, and of all.

    Args:
        scores: the score of each step of each solution, in [0, 1].
        labels: likewise 1, 0, or None for a neutral step.
        sources: where each solution's question is from.
        threshold: lowest score of a step that counts as correct.

    Raises:
        ValueError: a solution has other numbers of scores and labels, or a label is neither.
    """
    counts = np.array([_counts(*pair, threshold) for pair in zip(scores, labels, strict=True)]).reshape(-1, 4)
    names = [source or "" for source in sources]
    chosen = {name: [place for place, one in enumerate(names) if one == name] for name in dict.fromkeys(names)}
    parts = {**(chosen if len(chosen) > 1 else {}), OVERALL: list(range(len(names)))}
    return {name: _f1_of(counts[places]) for name, places in parts.items()}


def format_step_f1(results: Mapping[str, StepF1]) -> str:
    """A table in percent, with 95 % intervals over solutions."""
    lines = [["", "macro F1", "correct", "incorrect", "steps"]]
    for name, one in results.items():
        shares = [_SHARE.with_interval(one.macro), *(_SHARE.text(each.value) for each in (one.correct, one.incorrect))]
        lines.append([name, *shares, str(one.steps)])
    return aligned(lines, right=True)


def _counts(scores: Sequence[float], labels: Sequence[float | None], threshold: float) -> list[int]:
    """Labelled steps of a solution: correct found, incorrect taken for correct, correct missed, incorrect found."""
    if len(scores) != len(labels):
        raise ValueError(f"step_f1: a solution has {len(scores)} scores and {len(labels)} labels, expected as many.")
    if unknown := [label for label in labels if label not in (None, 0, 1)]:
        raise ValueError(f"step_f1: a step has the label {unknown[0]}, expected 1, 0 or None.")
    pairs = [(score >= threshold, label == 1) for score, label in zip(scores, labels, strict=True) if label is not None]
    return [pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))]


def _f1_of(counts: np.ndarray) -> StepF1:
    def values(drawn: np.ndarray) -> dict[str, float]:
        right, false, missed, found = counts[drawn].sum(axis=0).tolist()
        wrong = false + missed
        each = [2 * hits / (2 * hits + wrong) if hits + wrong else np.nan for hits in (right, found)]
        return dict(zip(_NAMES, (float(np.mean(each)), *each), strict=True))

    estimates = bootstrap(len(counts), values)
    return StepF1(estimates["macro"], estimates["correct"], estimates["incorrect"], int(counts.sum()))
