"""Plots of the report page: lines over a common x, as numbers for its script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
                "label": line.label,
                "colour": line.colour,
                "dash": line.dash,
                "points": _along(xs, line.points),
                **{
                    name: _along(xs, values)
                    for name, values in (("logged", line.logged), ("low", line.low), ("high", line.high))
                    if values
                },
            }
            for line in self.lines
        ]
        return {
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "share": self.is_share,
            "log": self.log_base,
            "xs": xs,
            "lines": lines,
        }


def _along(xs: Sequence[float], points: Points) -> list[float | None]:
    """Round values to five digits: enough to draw, and half as many bytes."""
    values = (points.get(x, math.nan) for x in xs)
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
