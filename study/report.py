"""Report of one part of the study: arms, verdicts, curves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trl_mmreason.data.folders import write_whole
from trl_mmreason.evaluation.curves import COLOURS, running_mean, style_axes
from trl_mmreason.evaluation.metrics import Metric, aligned, metric_of, number_as_json
from trl_mmreason.evaluation.question_table import QuestionTable

from .claims import Judged

_POINTS, _NUMBER = Metric("points"), Metric("number", is_share=False)
_COLOURS = (*COLOURS, "#999999", "#f0e442", "#882255")


def format_arms(outcomes: Mapping[int, Mapping[str, QuestionTable]], metrics: Sequence[str]) -> str:
    """Format one line for each arm: the mean over seeds of each metric, and the lowest and highest seed."""
    seeds = list(outcomes)
    lines = [["mean [lowest, highest seed]", *(metric_of(name).label for name in metrics)]]
    for arm in outcomes[seeds[0]]:
        reached = [outcomes[seed][arm].values() for seed in seeds]
        lines.append([arm, *(_over_seeds([each.get(name, nan) for each in reached], name) for name in metrics)])
    return aligned(lines)


def format_by_seed(measured: Mapping[int, Mapping[str, float]]) -> str:
    """Format one line for each share that belongs to no question: the mean over seeds, and every seed's."""
    names = dict.fromkeys(name for each in measured.values() for name in each)
    lines = [["mean, by seed", "mean", *map(str, measured)]]
    for name in names:
        values = [each.get(name, nan) for each in measured.values()]
        lines.append([name, *map(_POINTS.text, (float(np.nanmean(values)), *values))])
    return aligned(lines)


def format_claims(judged: Sequence[Judged]) -> str:
    """Format one line for each claim: the measurement and the verdict."""
    lines = [["claim", "paper", "measured [95 % interval]", "verdict"]]
    for each in judged:
        measured = form_of(each.claim.unit).with_interval(each.measured, signed=True)
        lines.append([each.claim.text, each.claim.paper, measured, each.verdict])
    return aligned(lines)


def form_of(unit: str) -> Metric:
    """The format of a claim's sum."""
    return _POINTS if unit == "share" else _NUMBER


def claims_as_json(
    settings: Mapping[str, Any], judged: Sequence[Judged], table: str, decide: Mapping[str, Any]
) -> dict[str, Any]:
    """Claims, verdicts, settings and the rule for the last seed as JSON values, null for NaN."""
    return {
        "settings": dict(settings),
        "decide": dict(decide),
        "arms": table,
        "claims": [
            {
                "claim": each.claim.text,
                "place": each.claim.place,
                "paper": each.claim.paper,
                "contrast": [list(term) for term in each.claim.contrast],
                "unit": each.claim.unit,
                **each.measured.as_json(),
                "by_seed": [number_as_json(value) for value in each.by_seed],
                "values": {name: number_as_json(value) for name, value in each.values.items()},
                "verdict": each.verdict,
            }
            for each in judged
        ],
    }


def draw_histories(
    histories: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
    panels: Mapping[str | tuple[str, ...], tuple[str, str]],
    path: Path,
) -> None:
    """Draw the training curves, each arm's mean over seeds, into a PNG file.

    Args:
        histories: arm → the log history of every seed.
        panels: logged name, or the names under which arms log the same thing → title and unit.
        path: the file to write.
    """
    figure = Figure(figsize=(4.8 * len(panels), 3.8), layout="constrained")
    for axes, (names, (title, unit)) in zip(
        np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True
    ):
        styles = cycle(product(("-", "--"), _COLOURS))
        for (dashes, colour), (arm, runs) in zip(styles, histories.items(), strict=False):
            steps, values = mean_curve(runs, (names,) if isinstance(names, str) else names)
            if steps:
                axes.plot(steps, running_mean(values, 3), dashes, color=colour, label=arm)
        style_axes(axes, title, "training step", unit)
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = min(5, 2 * len(panels))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8, frameon=False
    )
    figure.savefig(path, format="png", dpi=120)


def mean_curve(runs: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str]) -> tuple[list[int], list[float]]:
    """The mean over seeds up to the shortest run; of several names the first that an entry has.

    Seeds may log at different steps, as a round of DPO ends before the next logged step, or there are no more pairs: a
    step that another seed did not log has that one's value between its neighbours.
    """
    curves = [_curve(run, names) for run in runs]
    if not all(curves):
        return [], []
    first, last = max(map(min, curves)), min(map(max, curves))
    steps = sorted({step for curve in curves for step in curve if first <= step <= last})
    means = np.mean([np.interp(steps, list(curve), list(curve.values())) for curve in curves], axis=0)
    return steps, means.tolist()


def _curve(run: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[int, float]:
    """Step → logged value."""
    found = ((entry["step"], entry[name]) for entry in run for name in reversed(names) if entry.get(name) is not None)
    return {step: float(value) for step, value in found}


def _over_seeds(values: Sequence[float], name: str) -> str:
    form = metric_of(name)
    known = [value for value in values if not np.isnan(value)]
    if not known:
        return "n/a"
    return f"{form.text(float(np.mean(known)))} [{form.text(min(known))}, {form.text(max(known))}]"


def write_part(
    folder: Path, settings: Mapping[str, Any], judged: Sequence[Judged], table: str, decide: Mapping[str, Any]
) -> None:
    """Write `table.txt`, `claims.txt` and `claims.json`."""
    write_whole(folder / "table.txt", f"{table}\n")
    write_whole(folder / "claims.txt", f"{format_claims(judged)}\n")
    write_json(folder / "claims.json", claims_as_json(settings, judged, table, decide))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the result of `claims_as_json`."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
