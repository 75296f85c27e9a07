"""The report of a training run, from what its trainer left in the output folder.

Read are the history in `trainer_state.json`, TRL's tables of completions (`log_completions=True`), the questions and
pictures that `GroupGRPOTrainer` puts beside them, and the configuration files. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from .curves import all_panels, plot_curves
from .logged_completions import read_completions, tables_of
from .metrics import Metric
from .report import Table, write_report

_STATE = "trainer_state.json"
_FROM_STATE = ("global_step", "max_steps", "epoch", "num_train_epochs", "train_batch_size", "logging_steps")
_FROM_CONFIG = {
    "config.json": ("model_type", "architectures", "dtype", "transformers_version"),
    "adapter_config.json": ("base_model_name_or_path", "peft_type", "r", "lora_alpha", "target_modules"),
}


def is_training_run(folder: Path) -> bool:
    """Whether a trainer has written into the folder what a report can be made of."""
    return bool(_states(folder) or tables_of(folder))


def write_training_report(folder: Path, output: Path, *, shown: int) -> None:
    """Write the report of a run.

    Args:
        folder: a trainer's `output_dir`.
        output: the HTML file to write.
        shown: how many completions at most, from steps that are spread over the run.
    """
    state = read_state(folder)
    history = state.get("log_history", [])
    logged = read_completions(folder, shown)
    known = any(
        isinstance(entry.get(name), float | int) for entry in history for p in all_panels() for name in p.series
    )
    with TemporaryDirectory() as scratch:
        curves = Path(scratch) / "curves.png"
        if known:
            plot_curves(history, curves)
        write_report(
            output,
            title=f"Training run {folder.resolve().name}",
            command="",
            settings=_settings(folder, state),
            tables=[progress_table(history)],
            trajectories=logged.trajectories,
            curves_png=curves if known else None,
            notes=[*([] if history else [f"There is no {_STATE}, so there are no curves."]), *logged.notes],
        )


def read_state(folder: Path) -> dict[str, Any]:
    """The trainer's state, of the folder or a checkpoint in it, that got furthest; empty without any."""
    states = [json.loads(path.read_text(encoding="utf-8")) for path in _states(folder)]
    return max(states, key=lambda state: state["global_step"], default={})


def progress_table(history: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate each metric at the start and at the end of the run: what the curves show, in numbers.

    Args:
        history: `trainer.state.log_history`.
    """
    rows = []
    for panel in all_panels():
        for name, label in panel.series.items():
            logged = [float(entry[name]) for entry in history if entry.get(name) is not None]
            values = [value for value in logged if math.isfinite(value)]
            if not values:
                continue
            tenth = math.ceil(len(values) / 10)
            start, end = fmean(values[:tenth]), fmean(values[-tenth:])
            metric = Metric(
                panel.title if len(panel.series) == 1 else f"{panel.title}: {label}",
                panel.is_share,
                None if panel.is_share else _decimals(max(abs(start), abs(end))),
            )
            texts = [metric.text(start), metric.text(end), metric.text(end - start, signed=True)]
            rows.append((metric.label, [(text, "") for text in texts]))
    note = "Means over the first and the last tenth of the logged values; shares in percent."
    return Table("Start and end of training", ["", "start", "end", "change"], rows, note)


def _decimals(size: float) -> int:
    """As many as show three digits of a number that large."""
    return 2 if size == 0 else min(max(2 - math.floor(math.log10(size)), 0), 6)


def _states(folder: Path) -> list[Path]:
    return [path for path in (folder / _STATE, *folder.glob(f"checkpoint-*/{_STATE}")) if path.is_file()]


def _settings(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the run in files that anybody can read; `training_args.bin` is a pickle and stays closed."""
    found = {name: state[name] for name in _FROM_STATE if state.get(name) is not None}
    newest = sorted(folder.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)[-1:]
    for file, names in _FROM_CONFIG.items():
        path = next((place / file for place in (folder, *newest) if (place / file).is_file()), None)
        values = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        for name in names:
            if values.get(name) is not None:
                value = values[name]
                found[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return found
