"""Draw a paper's figures from a part's arms: means over seeds, between the lowest and the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.figure
import numpy as np
from matplotlib.ticker import MaxNLocator

from trl_mmreason.evaluation.curves import COLOURS, style_axes
from trl_mmreason.evaluation.metrics import metric_of

from .claims import ArmTables

FigurePoint = tuple[float, str, str]
"""Where on the axis, and the arm and the metric that are shown there."""


class Figure(NamedTuple):
    """Curves over an experiment's varied setting.

    Attributes:
        title: title with the paper's number of the figure.
        x, y: what the axes show.
        curves: what the legend says → the points, from left to right; four curves at most.
    """

    title: str
    x: str
    y: str
    curves: Mapping[str, Sequence[FigurePoint]]

    @property
    def arms(self) -> set[str]:
        """The arms that the figure shows."""
        return {arm for points in self.curves.values() for _, arm, _ in points}


def draw_figures(outcomes: ArmTables, figures: Sequence[Figure], path: Path) -> None:
    """Draw figures side by side into a PNG file.

    Args:
        outcomes: has every arm that they show.
        figures: shares are drawn in percent.
        path: the file to write.
    """
    page = matplotlib.figure.Figure(figsize=(4.6 * len(figures), 3.8), layout="constrained")
    for axes, figure in zip(np.atleast_1d(page.subplots(1, len(figures))), figures, strict=True):
        for colour, (label, points) in zip(COLOURS[2:6], figure.curves.items(), strict=False):
            x, values = [x for x, _, _ in points], over_seeds(outcomes, points)
            axes.plot(x, values.mean(axis=0), color=colour, label=label, marker="o", markersize=4)
            axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        style_axes(axes, figure.title, figure.x, figure.y)
        if all(float(x).is_integer() for points in figure.curves.values() for x, _, _ in points):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(figure.curves) > 1:
            axes.legend(fontsize=8, frameon=False)
    page.savefig(path, format="png", dpi=120)


def over_seeds(outcomes: ArmTables, points: Sequence[FigurePoint]) -> np.ndarray:
    """(seeds, points): every seed's result; shares in percent."""

    def value(seed: int, arm: str, metric: str) -> float:
        reached = outcomes[seed][arm].values()[metric]
        return 100 * reached if metric_of(metric).is_share else reached

    return np.array([[value(seed, arm, metric) for _, arm, metric in points] for seed in outcomes])
