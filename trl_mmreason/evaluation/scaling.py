"""Curves of inference-time scaling from evaluations (arXiv:2509.19003, sections 4.3.1 and 4.3.2).

    pass@n             the chance that one of n samples is right (unbiased; what no choice among them can exceed)
    self-consistency   the answer that most of n samples agree on
    best of n          the sample of n with the highest score
    searches           one answer for n candidates per step: an evaluation for each n, whose protocol says `candidates`

The first three come from one evaluation of N samples per question, for n = 1, 2, 4 … N (see `question_table`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..generation.engine import Failure
from . import methods
from .curves import COLOURS, Line, Plot, style_axes
from .files import SavedEvaluation
from .metrics import Estimate
from .question_table import BELOW_ALL, QuestionTable, best_of_n, group_sizes, is_right

SWEEP_N = 16
"""Samples among which the best is chosen, over the weight of its steps (Fig. 3)."""

_CHOICES = {"pass_at": "pass@n", "self_consistency_at": "self-consistency", "best_of": "best of n"}


class ScalingPoint(NamedTuple):
    """Accuracy and tokens at n samples or candidates.

    Attributes:
        right: share of right answers.
        tokens: sampled a question, of all of them together; NaN if the engine does not say.
    """

    right: Estimate
    tokens: float


Curve = dict[int, ScalingPoint]
"""n → what it brings."""


def scaling_curves(evaluations: Mapping[str, SavedEvaluation]) -> dict[str, Curve]:
    """Compute curves over n; empty if no evaluation has several samples or candidates.

    Args:
        evaluations: evaluations of the same questions, by what the legend calls them where it has to tell them apart.
    """
    sampled = {name: each for name, each in evaluations.items() if each.samples.n > 1}
    curves: dict[str, Curve] = {}
    for name, each in sampled.items():
        metrics, tokens = each.results.metrics, _tokens(each)
        for kind, label in _CHOICES.items():
            if f"{kind}_{each.samples.n}" in metrics:
                accuracies = {n: metrics["accuracy" if n == 1 else f"{kind}_{n}"] for n in group_sizes(each.samples.n)}
                points = {n: ScalingPoint(right, n * tokens) for n, right in accuracies.items()}
                curves[label if len(sampled) == 1 else f"{name}, {label}"] = points
    searches = _searches(evaluations)
    for name, (label, points) in searches.items():
        curves[label if len(searches) == 1 else f"{name}, {label}"] = dict(sorted(points.items()))
    return curves


def _searches(evaluations: Mapping[str, SavedEvaluation]) -> dict[str, tuple[str, Curve]]:
    """Group searches that differ only in candidates: name of the first → the protocol's name, and their curve."""
    searches: dict[str, tuple[str, str, Curve]] = {}
    for name, each in evaluations.items():
        settings = each.about.get("settings", {})
        protocol = dict(settings.get("protocol", {}))
        candidates = protocol.pop("candidates", None)
        if candidates is not None:
            key = json.dumps({**settings, "protocol": protocol}, sort_keys=True)
            searches.setdefault(key, (name, protocol["name"], {}))[2][candidates] = ScalingPoint(
                each.results.metrics["accuracy"], _tokens(each)
            )
    return {name: (label, curve) for name, label, curve in searches.values()}


def _tokens(evaluation: SavedEvaluation) -> float:
    """Mean tokens of a sample; NaN if the engine does not count."""
    tokens = evaluation.results.metrics.get("tokens")
    return np.nan if tokens is None else tokens.value


def sweep_of_weights(evaluation: SavedEvaluation) -> dict[float, Estimate]:
    """Best of up to 16 over the weight of the scored steps; empty for an evaluation without scored steps."""
    samples, questions = evaluation.samples, evaluation.results.questions
    usable = [k for k, question in enumerate(questions) if question.usable]
    tried = [samples.samples[k] for k in usable]
    scored = [[None if isinstance(one, Failure) else methods.weighted_scores(one) for one in each] for each in tried]
    weights = next((tuple(one) for each in scored for one in each if one), ())
    if not weights or samples.n < 2:
        return {}
    correct = np.array([[is_right(one, samples.turns - 1) for one in each] for each in tried])
    scores = np.array([[[one[w] if one else BELOW_ALL for w in weights] for one in each] for each in scored])
    n = min(SWEEP_N, samples.n)
    right = np.stack([best_of_n(correct, scores[..., place], n) for place in range(len(weights))], axis=1)
    table = QuestionTable(tuple(map(str, weights)), right, np.ones_like(right))
    estimates = table.by_problem([questions[k].problem for k in usable]).estimates()
    return {weight: estimates[str(weight)] for weight in weights}


def scaling_plots(evaluations: Mapping[str, SavedEvaluation]) -> list[Plot]:
    """The share of right answers over n and over tokens (Fig. 5), and of best-of-n over the weight of steps (Fig. 3).

    Returns:
        Nothing if no evaluation has several samples, and there is no search with several numbers of candidates.
    """
    curves = scaling_curves(evaluations)
    if not any(len(points) > 1 for points in curves.values()):
        return []
    over_n = {label: {n: point.right for n, point in points.items()} for label, points in curves.items()}
    costs = {
        label: {point.tokens: point.right for point in points.values()}
        for label, points in curves.items()
        if not any(np.isnan(point.tokens) for point in points.values())
    }
    sweeps = {name: sweep for name, each in evaluations.items() if (sweep := sweep_of_weights(each))}
    plots = [_plot("Inference-time scaling", "n, samples a question or candidates a step", over_n, 2)]
    if costs:
        plots.append(_plot("What it costs", "tokens sampled a question", costs, 10))
    if sweeps:
        plots.append(_plot(f"Best of n, up to {SWEEP_N}", "weight of the step scores, w", sweeps))
    return plots


def draw_scaling(plots: Sequence[Plot]) -> Figure:
    """Draw the curves of `scaling_plots` into an image."""
    figure = Figure(figsize=(4.6 * len(plots), 3.8), layout="constrained")
    for axes, plot in zip(figure.subplots(1, len(plots), squeeze=False).flat, plots, strict=True):
        for colour, line in zip(cycle(COLOURS), plot.lines, strict=False):
            places = list(line.points)
            axes.plot(places, list(line.points.values()), color=colour, marker="o", markersize=4, label=line.label)
            ends = list(line.low.values()), list(line.high.values())
            axes.fill_between(places, *ends, color=colour, alpha=0.12, linewidth=0)
        if plot.log_base is not None:
            axes.set_xscale("log", base=plot.log_base)
        if plot.log_base == 2:
            sizes = sorted({n for line in plot.lines for n in line.points})
            axes.set_xticks(sizes, [str(n) for n in sizes])
            axes.minorticks_off()
        if len(plot.lines) > 1:
            axes.legend(fontsize=8, frameon=False)
        style_axes(axes, plot.title, plot.x, plot.y)
    figure.supxlabel("shaded: 95 % intervals over questions", fontsize=9, color="#555555")
    return figure


def _plot(title: str, x: str, curves: Mapping[str, Mapping[Any, Estimate]], log_base: int | None = None) -> Plot:
    lines = [
        Line(
            label,
            {x: right.value for x, right in points.items()},
            low={x: right.interval[0] for x, right in points.items()},
            high={x: right.interval[1] for x, right in points.items()},
            colour=colour,
        )
        for colour, (label, points) in enumerate(curves.items())
    ]
    return Plot(title, x, "share right", lines, is_share=True, log_base=log_base)
