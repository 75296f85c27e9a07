"""A table and a picture of how the rules of selection compare, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure

from ..evaluation.metrics import Metric, aligned

_ACCURACY = Metric("accuracy")
_TOKENS = Metric("tokens", is_share=False)


class Result(NamedTuple):
    """What a policy came to with one seed.

    Attributes:
        accuracy: share of right answers, in [0, 1].
        tokens: mean length of an answer; NaN if the engine counts none.
        rows: that it was trained on; `None` for a policy that was not.
    """

    accuracy: float
    tokens: float
    rows: int | None


def format_results(results: Mapping[str, Sequence[Result]], seeds: Sequence[int]) -> str:
    """One line a policy: rows trained on, accuracy with each seed and on average in percent, length of an answer.

    Args:
        results: name of the policy → one result a seed.
        seeds: in the same order.
    """
    lines = [["accuracy in percent", "rows", *(f"seed {seed}" for seed in seeds), "mean", "tokens"]]
    for name, found in results.items():
        rows = "-" if found[0].rows is None else str(round(fmean(result.rows or 0 for result in found)))
        mean = _ACCURACY.text(fmean(result.accuracy for result in found))
        tokens = _TOKENS.text(fmean(result.tokens for result in found))
        lines.append([name, rows, *(_ACCURACY.text(result.accuracy) for result in found), mean, tokens])
    return aligned(lines, right=True)


def plot_results(results: Mapping[str, Sequence[Result]], path: str | Path) -> None:
    """Draw the mean accuracy of each policy as a bar, and that of each seed as a point, into a PNG file.

    Args:
        results: name of the policy → one result a seed.
        path: the file to write.
    """
    figure = Figure(figsize=(8.0, 0.9 + 0.45 * len(results)), layout="constrained")
    axes = figure.subplots()
    for place, found in enumerate(results.values()):
        shares = [100 * result.accuracy for result in found]
        axes.barh(place, fmean(shares), color="#56b4e9", zorder=1)
        axes.plot(shares, [place] * len(shares), linestyle="", marker="o", markersize=5, color="#0072b2", zorder=2)
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set_xlabel("accuracy in percent: mean, and each seed")
    axes.grid(axis="x", alpha=0.25, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=120)
