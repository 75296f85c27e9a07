"""Inference-time scaling for a reader: a table, a picture and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..evaluation.curves import style_axes
from ..evaluation.metrics import Estimate, Metric, aligned
from .scaling_curves import COSTS, METHODS, Scaling

_ACCURACY = Metric("accuracy")
_TOKENS, _RATIO = Metric("tokens", is_share=False, decimals=0), Metric("ratio", is_share=False)
_COSTS = dict(zip(COSTS, (_TOKENS, _TOKENS, _RATIO), strict=True))
_COLOURS = ("#000000", "#e69f00", "#0072b2", "#d55e00")  # told apart with any colour vision


def write_report(scaling: Scaling, folder: str | Path) -> None:
    """Write `scaling.txt`, `scaling.png` and `scaling.json` into a folder, which is made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scaling.txt").write_text(f"{format_scaling(scaling)}\n", encoding="utf-8")
    draw_scaling(scaling).savefig(folder / "scaling.png", format="png", dpi=120)
    (folder / "scaling.json").write_text(json.dumps(as_json(scaling), indent=2, allow_nan=False), encoding="utf-8")


def format_scaling(scaling: Scaling) -> str:
    """The curves, the costs and the sweep as plain text."""
    curves = [
        ["n", *METHODS.values()],
        *([str(n), *(_ACCURACY.with_interval(scaling.accuracy[name][n]) for name in METHODS)] for n in scaling.tokens),
    ]
    costs = [
        ["n", "best of n", "step beam", "ratio"],
        *(
            [str(n), *(form.with_interval(cost[name]) for name, form in _COSTS.items())]
            for n, cost in scaling.tokens.items()
        ),
    ]
    sweep = [["w", f"best of {scaling.sweep_n}"]]
    sweep += [[f"{weight:.1f}", _ACCURACY.with_interval(estimate)] for weight, estimate in scaling.sweep.items()]
    parts = [
        f"{scaling.questions} questions, {scaling.paths} paths each",
        f"accuracy in percent [95 % interval], step weight {scaling.step_weight:g}\n{aligned(curves)}",
        f"tokens sampled a question\n{aligned(costs)}",
        f"accuracy in percent by step weight\n{aligned(sweep)}",
        *(["\n".join(f"{count} {name}" for name, count in scaling.counts.items())] if scaling.counts else []),
    ]
    return "\n\n".join(parts)


def draw_scaling(scaling: Scaling) -> Figure:
    """Left the accuracy of each method over n (Fig. 5), right that of best-of-n over the step weight (Fig. 3)."""
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    over_n, over_weight = figure.subplots(1, 2)
    for colour, (name, label) in zip(_COLOURS, METHODS.items(), strict=True):
        _draw(over_n, scaling.accuracy[name], colour, label)
    sizes = list(scaling.tokens)
    over_n.set_xscale("log", base=2)
    over_n.set_xticks(sizes, [str(n) for n in sizes])
    over_n.minorticks_off()
    style_axes(over_n, "Inference-time scaling", "n, samples a question or candidates a step", "share right")
    over_n.legend(fontsize=8, frameon=False)
    _draw(over_weight, scaling.sweep, _COLOURS[2], "")
    style_axes(over_weight, f"Best of {scaling.sweep_n}", "weight of the step scores, w", "share right")
    figure.supxlabel(
        f"{scaling.questions} questions, {scaling.paths} paths each; shaded: 95 % intervals over questions",
        fontsize=9,
        color="#555555",
    )
    return figure


def as_json(scaling: Scaling) -> dict[str, Any]:
    """The numbers as JSON values; what is not known is null."""
    return {
        "questions": scaling.questions,
        "paths": scaling.paths,
        "step_weight": scaling.step_weight,
        "accuracy": {
            name: [{"n": n, **estimate.as_json()} for n, estimate in curve.items()]
            for name, curve in scaling.accuracy.items()
        },
        "tokens": [
            {"n": n, **{name: estimate.as_json() for name, estimate in cost.items()}}
            for n, cost in scaling.tokens.items()
        ],
        "sweep_n": scaling.sweep_n,
        "sweep": [{"step_weight": weight, **estimate.as_json()} for weight, estimate in scaling.sweep.items()],
        "counts": scaling.counts,
    }


def _draw(axes: Axes, curve: Mapping[Any, Estimate], colour: str, label: str) -> None:
    places = list(curve)
    axes.plot(places, [curve[x].value for x in places], color=colour, marker="o", markersize=4, label=label)
    low, high = zip(*(curve[x].interval for x in places), strict=True)
    axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
