"""`mmreason report`: a page to look at training runs or evaluations."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import options, parsers


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "report",
        help="write an HTML page about training runs or evaluations",
        description="Write one self-contained HTML file: settings, numbers, training curves, and the model's answers "
        "with pictures, verdicts, rewards and advantages, which can be filtered, sorted and searched. RUN is the "
        "output folder of a trainer, which gets training.html, or of `mmreason evaluate`, which gets "
        "report.html. Several of a kind are compared: evaluations of the same questions, or training runs. A trainer "
        "logs the completions with log_completions=True.",
        epilog="example: mmreason report before=runs/before/ai2d after=runs/after/ai2d --output compared.html",
    )
    command.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="output folder of a trainer or of an evaluation, or NAME=FOLDER to name it in the page",
    )
    command.add_argument("--output", type=Path, help="file to write; by default in the first RUN")
    command.add_argument(
        "--shown",
        type=parsers.count,
        default=100,
        help="completions of training (whole groups, at least one), or questions of an evaluation, in the page",
    )
    command.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> None:
    folders = _named(arguments.runs)
    for folder in folders.values():
        if not folder.is_dir():
            raise SystemExit(f"mmreason report: there is no folder {folder}")
    if arguments.output and not arguments.output.parent.is_dir():
        raise SystemExit(f"mmreason report: --output {arguments.output}: there is no folder {arguments.output.parent}")
    if arguments.output and arguments.output.is_dir():
        raise SystemExit(f"mmreason report: --output {arguments.output} is a folder, expected a file to write")
    others = [folder for folder in folders.values() if not (folder / "samples.jsonl").is_file()]
    if not others:
        from ...data.rows import DataError
        from ...evaluation.evaluation_report import write_evaluation_report

        with options.exit_on("report", DataError, ValueError):
            print(write_evaluation_report(folders, arguments.output, arguments.shown))  # noqa: T201 - as below
        return

    from ...evaluation.training_run import TRAINING_REPORT, is_training_run, write_training_report

    if len(others) < len(folders):
        raise SystemExit(
            "mmreason report: evaluations and training runs cannot be compared, and there is no samples.jsonl in "
            f"{', '.join(map(str, others))}; give folders of one kind"
        )
    for folder in others:
        if not is_training_run(folder):
            raise SystemExit(
                f"mmreason report: {folder} has neither the samples.jsonl of an evaluation, nor what a trainer leaves "
                "in its output_dir: trainer_state.json, checkpoint-*/trainer_state.json or "
                f"completions/completions_*.parquet{_evaluations_inside(folder)}"
            )
    output = arguments.output or others[0] / TRAINING_REPORT
    write_training_report(folders, output, shown=arguments.shown)
    print(output)  # noqa: T201 - what the command is asked for


def _evaluations_inside(folder: Path) -> str:
    """The fix for the `--output` folder of `mmreason evaluate`, which holds a folder for each benchmark."""
    inside = [str(path.parent) for path in sorted(folder.glob("*/samples.jsonl"))]
    return f". Fix: give an evaluation inside it: {', '.join(inside)}" if inside else ""


def _named(runs: Sequence[str]) -> dict[str, Path]:
    """Name → folder of each run: the name that was given, else the folder's own, or its path where names repeat."""
    parts = [("", "", run) if Path(run).is_dir() or "=" not in run else run.partition("=") for run in runs]
    short = [name or Path(folder).resolve().name for name, _, folder in parts]
    names = [
        brief if short.count(brief) == 1 else name or folder
        for brief, (name, _, folder) in zip(short, parts, strict=True)
    ]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise SystemExit(f"mmreason report: two runs are called {repeated}; give NAME=FOLDER with a name for each")
    return {name: Path(folder) for name, (_, _, folder) in zip(names, parts, strict=True)}
