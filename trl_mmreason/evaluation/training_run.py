"""Report of a training run, from its output folder.

Read are the history in `trainer_state.json`, TRL's tables of completions (`log_completions=True`), the questions and
images that `GroupGRPOTrainer` puts beside them, and the configuration files. Nothing is unpickled.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from .curves import all_panels, training_plots
from .logged_completions import read_logged_completions, tables_of
from .metrics import Metric
from .report import Mark, ReportTable, TableRow, side_by_side, write_report

logger = logging.getLogger(__name__)

TRAINING_REPORT = "training.html"  # `report.html` is what the examples write, with the answers before and after
_STATE = "trainer_state.json"
_MEANS = "Means over the first and the last tenth of the logged values; shares in percent."
_DRAWN = "Drawn: a line from the start to the end, and a dot at the end."
_FROM_STATE = ("global_step", "max_steps", "epoch", "num_train_epochs", "train_batch_size", "logging_steps")
_FROM_CONFIG = {
    "config.json": ("model_type", "architectures", "dtype", "transformers_version"),
    "adapter_config.json": ("base_model_name_or_path", "peft_type", "r", "lora_alpha", "target_modules"),
}


def is_training_run(folder: Path) -> bool:
    """Whether the folder holds files of a trainer that a report can show."""
    return bool(_states(folder) or tables_of(folder))


def write_training_report(folders: Mapping[str, Path], output: Path, *, shown: int) -> None:
    """Write the report of a run, or of several side by side.

    Args:
        folders: name of the run → a trainer's `output_dir`; the first is what the others are compared with.
        shown: how many completions of all runs at most, from steps that are spread over each; groups are whole.
    """
    states = {name: read_state(folder) for name, folder in folders.items()}
    histories = {name: state.get("log_history", []) for name, state in states.items()}
    several = len(folders) > 1
    logged = {
        name: read_logged_completions(folder, shown // len(folders), name if several else "")
        for name, folder in folders.items()
    }
    notes = [
        (name, note)
        for name, state in states.items()
        for note in [*([] if state else [f"There is no {_STATE}, so there are no curves."]), *logged[name].notes]
    ]
    settings = {name: _settings(folder, states[name]) for name, folder in folders.items()}
    write_report(
        output,
        title=f"{'Training runs' if several else 'Training run'} {', '.join(folders)}",
        command="",
        settings=side_by_side(settings),
        tables=[progress_table(histories)],
        trajectories=[trajectory for completions in logged.values() for trajectory in completions.trajectories],
        plots=training_plots(histories),
        notes=[f"{name}: {note}" if several else note for name, note in notes],
    )


def read_state(folder: Path) -> dict[str, Any]:
    """The latest trainer state in the folder or its checkpoints; empty without any. Torn ones are left out."""
    states = filter(None, map(_whole_json, _states(folder)))
    return max(states, key=lambda state: state["global_step"], default={})


def progress_table(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> ReportTable:
    """Build a table of each metric: of one run at its start and end, of several at the end, with the change."""
    rows = []
    for metric, by_run in _metrics(histories):
        cells = [
            ("", "") if one is None else (metric.text(one.end), metric.text(one.change, signed=True)) for one in by_run
        ]
        if len(histories) == 1 and by_run[0] is not None:
            cells = [(text, "") for text in (metric.text(by_run[0].start), *cells[0])]
        rows.append(TableRow(metric.label, cells, [one and one.mark(metric) for one in by_run]))
    note = f"{_MEANS} {_DRAWN}"
    if len(histories) == 1:
        return ReportTable("Start and end of training", ["", "start", "end", "change"], rows, note, ["end"])
    note = f"The end of each run, and its change since the start in small letters. {note}"
    return ReportTable("Comparison", ["", *histories], rows, note, list(histories))


class _Progress(NamedTuple):
    """A metric over a run: its means over the first and the last tenth of the logged values."""

    start: float
    end: float

    @property
    def change(self) -> float:
        return self.end - self.start

    def mark(self, metric: Metric) -> Mark | None:
        drawn = metric.is_share and min(self) >= 0 and max(self) <= 1
        return Mark(self.end, min(self), max(self)) if drawn else None


def _metrics(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[Metric, list[_Progress | None]]]:
    """Every logged metric, and its progress in each run; `None` for a run without it."""
    names = dict.fromkeys(name for history in histories.values() for entry in history for name in entry)
    evaluations = [name.removesuffix("runtime") for name in names if re.fullmatch("eval_(.+_)?runtime", name)]
    for begins, panel in product(["", *evaluations], all_panels()):
        for name, label in panel.series.items():
            progress = [_progress(history, f"{begins}{name}") for history in histories.values()]
            known = [abs(value) for one in progress if one is not None for value in one]
            if known:
                title = panel.title if len(panel.series) == 1 else f"{panel.title}: {label}"
                title = f"{begins.removesuffix('_')}: {title}" if begins else title
                yield Metric(title, panel.is_share, None if panel.is_share else _decimals(max(known))), progress


def _progress(history: Sequence[Mapping[str, Any]], name: str) -> _Progress | None:
    logged = [float(entry[name]) for entry in history if entry.get(name) is not None]
    values = [value for value in logged if math.isfinite(value)]
    tenth = math.ceil(len(values) / 10)
    return _Progress(fmean(values[:tenth]), fmean(values[-tenth:])) if values else None


def _decimals(size: float) -> int:
    """Number of decimals that show three digits of a number of this size."""
    return 2 if size == 0 else min(max(2 - math.floor(math.log10(size)), 0), 6)


def _states(folder: Path) -> list[Path]:
    return [path for path in (folder / _STATE, *folder.glob(f"checkpoint-*/{_STATE}")) if path.is_file()]


def _whole_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty, and a warning, where the file was not written to its end."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:  # the process was killed, or the disk was full
        logger.warning("%s is cut off, and left out", path)
        return {}


def _settings(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Read the run's settings from its text files; `training_args.bin` is a pickle and is not opened."""
    settings = {name: state[name] for name in _FROM_STATE if state.get(name) is not None}
    newest = sorted(folder.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)[-1:]
    for file, names in _FROM_CONFIG.items():
        path = next((place / file for place in (folder, *newest) if (place / file).is_file()), None)
        values = {} if path is None else _whole_json(path)
        for name in names:
            if values.get(name) is not None:
                value = values[name]
                settings[name] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return settings
