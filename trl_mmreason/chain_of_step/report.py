"""Tables and plots of Chain-of-Step's stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..evaluation.curves import style_axes
from ..evaluation.metrics import Metric, aligned

_SHARE = Metric("accuracy")
_MEASURES = {
    "accuracy": "Accuracy",
    "trajectory_score": "Trajectory score",
    "steps": "Steps a chain",
    "step_tokens": "Tokens a step",
}
_SETS = {"train": ("#0072b2", "sampled, training questions"), "eval": ("#d55e00", "greedy, other questions")}


def format_process_reward(metrics: Mapping[str, float]) -> str:
    """Format one line a set of held-out chains, as in Table 3, with the AUROC.

    Args:
        metrics: result of `ProcessRewardTrainer.evaluate` with a dict of data sets.
    """
    suffix = "_step_accuracy"
    sets = [name.removeprefix("eval_").removesuffix(suffix) for name in metrics if name.endswith(suffix)]
    columns = [f"{part}_{kind}" for kind in ("accuracy", "auroc") for part in ("step", "answer")]
    lines = [["", "step acc", "answer acc", "step AUROC", "answer AUROC"]]
    for name in sets:
        shown = (metrics.get(f"eval_{name}_{column}", nan) for column in columns)
        lines.append([name, *map(_SHARE.text, shown)])
    return f"process reward model, in percent\n{aligned(lines, right=True)}"


def plot_rounds(rounds: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw accuracy, score and lengths over the rounds of DPO (Fig. 6 and more) into a PNG file.

    Args:
        rounds: rounds of `IterativeDPOTrainer`.
        path: the file to write.
    """
    figure = Figure(figsize=(8.4, 5.8), layout="constrained")
    for axes, (measure, title) in zip(figure.subplots(2, 2).flat, _MEASURES.items(), strict=True):
        for name, (colour, label) in _SETS.items():
            points = [(entry["round"], entry[name][measure]) for entry in rounds if measure in entry.get(name, {})]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style_axes(axes, title, "rounds of DPO")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    figure.savefig(path, format="png", dpi=120)
