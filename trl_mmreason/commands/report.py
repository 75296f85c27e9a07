"""`mmreason report`: a page to look at a training run or an evaluation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..documented import HelpFormatter
from . import options

_TRAINING_REPORT = "training.html"  # `report.html` is what the examples write, with the answers before and after


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "report",
        help="make a page of a training run or of evaluations, to be opened in a browser",
        description="Write one self-contained HTML file: settings, numbers, training curves, and what the model wrote, "
        "with pictures, verdicts and scores, to be filtered and searched. FOLDER is the output folder of a trainer, "
        f"which gets {_TRAINING_REPORT}, or of `mmreason evaluate`, which gets report.html; of these several can be "
        "compared. A trainer logs what it writes with log_completions=True.",
        epilog="example: mmreason report runs/before/mathvista runs/after/mathvista --output compared.html",
        formatter_class=HelpFormatter,
    )
    command.add_argument("folder", nargs="+", type=Path, help="output folder of a trainer or of evaluations")
    command.add_argument("--output", type=Path, help="file to write; in FOLDER by default")
    command.add_argument(
        "--shown",
        type=options.count,
        default=100,
        help="completions of a run, or questions of an evaluation, in the page",
    )
    command.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> None:
    folders: list[Path] = arguments.folder
    for folder in folders:
        if not folder.is_dir():
            raise SystemExit(f"mmreason report: there is no folder {folder}")
    if arguments.output and not arguments.output.parent.is_dir():
        raise SystemExit(f"mmreason report: --output {arguments.output}: there is no folder {arguments.output.parent}")
    if all((folder / "samples.jsonl").is_file() for folder in folders):
        from ..evaluation.evaluation_report import write_evaluation_report
        from ..rows import DataError

        with options.exit_on("report", DataError, ValueError):
            print(write_evaluation_report(folders, arguments.output, arguments.shown))  # noqa: T201 - as below
        return

    from ..evaluation.training_run import is_training_run, write_training_report

    if len(folders) > 1:
        missing = [str(folder) for folder in folders if not (folder / "samples.jsonl").is_file()]
        raise SystemExit(
            f"mmreason report: only evaluations can be compared, and {', '.join(missing)} has no samples.jsonl; give a "
            "training run by itself"
        )
    (folder,) = folders
    if not is_training_run(folder):
        raise SystemExit(
            f"mmreason report: {folder} has neither the samples.jsonl of an evaluation, nor what a trainer leaves in "
            "its output_dir: trainer_state.json, checkpoint-*/trainer_state.json or completions/completions_*.parquet"
        )
    output = arguments.output or folder / _TRAINING_REPORT
    write_training_report(folder, output, shown=arguments.shown)
    print(output)  # noqa: T201 - what the command is asked for
