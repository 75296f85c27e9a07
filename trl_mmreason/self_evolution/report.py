"""A table and a picture of how methods without labels compare, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ..evaluation.curves import style_axes
from ..evaluation.metrics import aligned, metric_of

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
_PANELS = {
    "accuracy": "Accuracy, never trained on",
    "entropy": "Entropy, nats a token",
    "completions/mean_length": "Length, tokens",
    "distinct_answers": "Distinct answers a question",
    "agreement": "Majority is the judge's best",
    "judge/score": "Score of the judge",
}

History = Sequence[Mapping[str, Any]]


def format_results(results: Mapping[str, Sequence[Mapping[str, float]]], seeds: Sequence[int], n: int) -> str:
    """One line a policy: accuracy with each seed, and means over the seeds; shares in percent.

    Args:
        results: name of the policy → the metrics of its evaluation, once a seed.
        seeds: in the same order.
        n: answers a question.
    """
    labels = {f"pass_at_{n}": f"pass@{n}", f"self_consistency_at_{n}": f"maj@{n}"}
    labels |= {"distinct_answers": "distinct", "tokens": "tokens"}
    shown = [name for name in labels if all(name in found for each in results.values() for found in each)]
    lines = [["accuracy in percent", *(f"seed {seed}" for seed in seeds), "mean", *(labels[name] for name in shown)]]
    for policy, found in results.items():
        accuracies = [metrics["accuracy"] for metrics in found]
        cells = [_text("accuracy", [accuracy]) for accuracy in accuracies] + [_text("accuracy", accuracies)]
        lines.append([policy, *cells, *(_text(name, [metrics[name] for metrics in found]) for name in shown)])
    return aligned(lines, right=True)


def _text(metric: str, values: Sequence[float]) -> str:
    return metric_of(metric).text(fmean(values))


def plot_histories(histories: Mapping[str, Sequence[History]], path: str | Path) -> None:
    """Draw what was logged in training into a PNG file, a line for each seed and a bold one for their mean.

    Args:
        histories: name of the method → `trainer.state.log_history` of each seed.
        path: the file to write.
    """
    figure = Figure(figsize=(12.6, 6.4), layout="constrained")
    for place, (metric, title) in enumerate(_PANELS.items(), start=1):
        axes = figure.add_subplot(2, 3, place)
        for colour, (name, runs) in zip(cycle(_COLOURS), histories.items(), strict=False):
            series = [{one["step"]: one[metric] for one in run if one.get(metric) is not None} for run in runs]
            for points in series:
                axes.plot(list(points), list(points.values()), color=colour, linewidth=0.8, alpha=0.35)
            steps = sorted(set.intersection(*(set(points) for points in series)))
            means = [fmean(points[step] for points in series) for step in steps]
            axes.plot(steps, means, color=colour, linewidth=2.2, label=name)
        style_axes(axes, title, "training step")
    figure.axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(path, format="png", dpi=110)
