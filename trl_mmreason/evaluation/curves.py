"""Training curves from the trainer's log, as an image and as plots of the report page."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from .methods import declared

logger = logging.getLogger(__name__)

COLOURS = ("#000000", "#e69f00", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Of lines; told apart with any colour vision."""
_COLUMNS = 3
_PANEL_INCHES = (4.2, 2.9)


Points = Mapping[Any, float]
"""x, a number → y; NaN where nothing is known."""


class Line(NamedTuple):
    """One line of a plot.

    Attributes:
        label: name in the legend.
        points: points that are drawn bold.
        logged: the values that `points` are running means of, drawn thin; empty if there is no mean.
        low, high: ends of the intervals around `points`, drawn as a band; empty without intervals.
        colour, dash: its place among the page's colours and dashes: lines of one run share the colour.
    """

    label: str
    points: Points
    logged: Points = {}
    low: Points = {}
    high: Points = {}
    colour: int = 0
    dash: int = 0


class Plot(NamedTuple):
    """One set of axes.

    Attributes:
        title: heading of the plot.
        x, y: names of the axes; plots with one x share the cursor and the zoom.
        lines: lines, in the order of the legend.
        is_share: whether y is shown in percent.
        log_base: logarithm base of the x axis; `None` if it is linear.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    is_share: bool = False
    log_base: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The plot as JSON values; every line has a number or null for every x."""
        xs = sorted({x for line in self.lines for x in line.points})
        lines = [
            {
                name: _along(xs, value) if isinstance(value, Mapping) else value
                for name, value in line._asdict().items()
                if value != {}
            }
            for line in self.lines
        ]
        own = {"title": self.title, "x": self.x, "y": self.y, "share": self.is_share, "log": self.log_base}
        return {**own, "xs": xs, "lines": lines}


class Panel(NamedTuple):
    """One set of axes; `series` maps logged names to legend labels."""

    title: str
    unit: str
    series: Mapping[str, str]
    is_share: bool = False


_FIRST = (
    Panel("Reward", "mean reward", {"reward": "reward"}),
    Panel("Accuracy", "share right", {"acc_t1": "first turn", "acc_t2": "second turn"}, is_share=True),
    Panel("Right answers", "share right", {"accuracy": "right"}, is_share=True),
    Panel(
        "Transitions",
        "share",
        {"correction_rate": "wrong→right, of first wrong", "misjudgment_rate": "right→wrong, of first right"},
        is_share=True,
    ),
    Panel(
        "Both answers alike",
        "share",
        {"kept_share": "right→right", "failed_share": "wrong→wrong"},
        is_share=True,
    ),
)
_LAST = (
    Panel("Refill", "times that other questions were asked", {"refill/attempts": "in a rollout"}),
    Panel("Groups left without a gradient", "share", {"refill/still_silent": "after refill"}, is_share=True),
    Panel("Age of what is trained on", "rollouts", {"oversampling/age": "mean", "oversampling/max_age": "oldest"}),
    Panel("Tokens that earlier weights sampled", "share", {"oversampling/older_tokens": "of all"}, is_share=True),
    Panel("Entropy", "nats per token", {"entropy": "entropy"}),
    Panel("Length of all that was sampled", "tokens", {"completions/mean_length": "mean"}),
    Panel("Loss", "loss", {"loss": "loss"}),
    Panel(
        "Clipped tokens",
        "share",
        {"clip_ratio/low_mean": "ratio below 1 − ε", "clip_ratio/high_mean": "ratio above 1 + ε"},
    ),
)


def all_panels() -> list[Panel]:
    """All panels: those common to all trainers, and those of the methods."""
    return [*_FIRST, *(panel for method in declared() for panel in method.panels), *_LAST]


def plot_curves(log_history: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw the training curves into a PNG file; a run that has logged no step gets a warning and no file.

    Args:
        log_history: `trainer.state.log_history`: one dict a logged step, with `step` and numbers by name.
    """
    figure = draw_curves(log_history)
    if figure is None:
        logger.warning(f"{path} is not drawn: no step was logged. Train for at least `logging_steps` steps.")
    else:
        figure.savefig(path, format="png", dpi=120)


def draw_curves(log_history: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Make the figure of `plot_curves`: the panels of `all_panels` that have data, in order; `None` without any."""
    panels = [(panel, lines) for panel in all_panels() if (lines := _lines(panel, {"": log_history}))]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = _PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.3
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.1))
    for place, (panel, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        for line in lines:
            colour, marker = COLOURS[2 + line.colour], "o" if len(line.points) == 1 else None
            axes.plot(*zip(*line.logged.items(), strict=True), color=colour, linewidth=0.8, alpha=0.35)
            means = zip(*line.points.items(), strict=True)
            axes.plot(*means, color=colour, linewidth=2.2, label=line.label, marker=marker)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        style_axes(axes, panel.title, "training step", panel.unit)
        if panel.is_share:
            axes.set_ylim(-0.03, 1.03)
        if len(panel.series) > 1:
            axes.legend(fontsize=8, frameon=False)
    figure.supxlabel(
        "thin: logged values; bold: mean over a trailing window of a tenth of the run",
        fontsize=9,
        color="#555555",
    )
    return figure


def training_plots(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Plot]:
    """The same panels for the report page, with the curves of all runs; empty without data.

    Args:
        histories: name of the run → its `log_history`; lines are called by it where there are several.
    """
    panels = [(panel, _lines(panel, histories)) for panel in all_panels()]
    return [Plot(panel.title, "training step", panel.unit, lines, panel.is_share) for panel, lines in panels if lines]


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and up to `window - 1` before it, without NaN; NaN if all of them are."""
    means = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - window) : end] if not math.isnan(value)]
        means.append(float(np.mean(known)) if known else math.nan)
    return means


def style_axes(axes: Axes, title: str, x: str, y: str = "") -> None:
    """Style axes: title, axis labels, a faint grid and no box."""
    axes.set_title(title, fontsize=11, fontweight="bold")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _lines(panel: Panel, histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Line]:
    """What each run logged of a panel's series, and the running means; only series with a finite value."""
    lines = []
    for place, (run, history) in enumerate(histories.items()):
        for kind, (name, label) in enumerate(panel.series.items()):
            # TRL logs None for a metric that no batch had, such as the correction rate when no first answer was wrong.
            values = {entry["step"]: float(entry[name]) for entry in history if entry.get(name) is not None}
            logged = {step: value if math.isfinite(value) else math.nan for step, value in values.items()}
            if all(map(math.isnan, logged.values())):
                continue
            means = running_mean(list(logged.values()), window=math.ceil(len(logged) / 10))
            points = dict(zip(logged, means, strict=True))
            if len(histories) == 1:
                lines.append(Line(label, points, logged, colour=kind))
            else:
                of_run = run if len(panel.series) == 1 else f"{run}, {label}"
                lines.append(Line(of_run, points, logged, colour=place, dash=kind))
    return lines


def _along(xs: Sequence[float], points: Points) -> list[float | None]:
    """Round values to five digits: enough to draw, and half as many bytes."""
    values = (points.get(x, math.nan) for x in xs)
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
