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
from .plots import Line, Plot

logger = logging.getLogger(__name__)

COLOURS = ("#000000", "#e69f00", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Of lines; told apart with any colour vision."""
_COLUMNS = 3
_PANEL_INCHES = (4.2, 2.9)


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
        path: the file to write.
    """
    figure = draw_curves(log_history)
    if figure is None:
        logger.warning(f"{path} is not drawn: no step was logged. Train for at least `logging_steps` steps.")
    else:
        figure.savefig(path, format="png", dpi=120)


def draw_curves(log_history: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Make the figure of `plot_curves`: the panels of `all_panels` that have data, in order; `None` without any."""
    known = all_panels()
    data = {name: _series(log_history, name) for panel in known for name in panel.series}
    panels = [panel for panel in known if any(data[name] for name in panel.series)]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = _PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.3
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.1))
    for place, panel in enumerate(panels, start=1):
        _draw_panel(figure.add_subplot(rows, columns, place), panel, data)
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
    plots = []
    for panel in all_panels():
        lines = []
        for place, (run, history) in enumerate(histories.items()):
            for kind, (name, label) in enumerate(panel.series.items()):
                logged = dict(_series(history, name))
                if not logged:
                    continue
                means = running_mean(list(logged.values()), window=math.ceil(len(logged) / 10))
                points = dict(zip(logged, means, strict=True))
                if len(histories) == 1:
                    lines.append(Line(label, points, logged, colour=kind))
                else:
                    of_run = run if len(panel.series) == 1 else f"{run}, {label}"
                    lines.append(Line(of_run, points, logged, colour=place, dash=kind))
        if lines:
            plots.append(Plot(panel.title, "training step", panel.unit, lines, panel.is_share))
    return plots


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


def _series(log_history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(step, value) of every entry with the name, NaN for values that are not finite; empty if none is finite."""
    # TRL logs None for a metric that no batch had, such as the correction rate when no first answer was wrong.
    points = [(entry["step"], float(entry[name])) for entry in log_history if entry.get(name) is not None]
    if not any(math.isfinite(value) for _, value in points):
        return []
    return [(step, value if math.isfinite(value) else math.nan) for step, value in points]


def _draw_panel(axes: Axes, panel: Panel, data: Mapping[str, list[tuple[int, float]]]) -> None:
    for colour, (name, label) in zip(COLOURS[2:4], panel.series.items(), strict=False):
        if not data[name]:
            continue
        steps, values = zip(*data[name], strict=True)
        means = running_mean(values, window=math.ceil(len(values) / 10))
        axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35)
        axes.plot(steps, means, color=colour, linewidth=2.2, label=label, marker="o" if len(steps) == 1 else None)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    style_axes(axes, panel.title, "training step", panel.unit)
    if panel.is_share:
        axes.set_ylim(-0.03, 1.03)
    if len(panel.series) > 1:
        axes.legend(fontsize=8, frameon=False)
