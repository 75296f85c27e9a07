"""Write an HTML page about training runs or evaluations.

Write one self-contained HTML file: settings, numbers, training curves, and the model's answers with images, verdicts,
rewards and advantages, which can be filtered, sorted and searched. RUN is the output folder of a trainer, which gets
training.html, or of `mmreason evaluate`, which gets report.html. Several of a kind are compared: evaluations of the
same questions, or training runs. A trainer logs the completions with log_completions=True.

example: mmreason report before=runs/before/ai2d after=runs/after/ai2d --output compared.html
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from ...scripts.refusals import WrongArgument
from .command_options import check_output
from .parsers import count


def add(command: ArgumentParser) -> None:
    runs = "output folder of a trainer or of an evaluation, or NAME=FOLDER to name it in the page"
    command.add_argument("runs", nargs="+", metavar="RUN", help=runs)
    command.add_argument("--output", type=Path, help="file to write; by default in the first RUN")
    shown = "completions of training (whole groups, at least one), or questions of an evaluation, in the page"
    command.add_argument("--shown", type=count, default=100, help=shown)


def run(arguments: Namespace) -> None:
    folders, output = _named(arguments.runs), arguments.output
    for folder in folders.values():
        if not folder.is_dir():
            raise WrongArgument(f"there is no folder {folder}")
    if output:
        check_output(output)
    others = [folder for folder in folders.values() if not (folder / "samples.jsonl").is_file()]
    if not others:
        from ...evaluation.evaluation_report import write_evaluation_report

        try:
            print(write_evaluation_report(folders, output, arguments.shown))  # noqa: T201 - as below
        except ValueError as error:  # of a file that is cut, too
            raise WrongArgument(str(error)) from error
        return

    from ...evaluation.training_run import TRAINING_REPORT, is_training_run, write_training_report

    if len(others) < len(folders):
        raise WrongArgument(
            "evaluations and training runs cannot be compared, and there is no samples.jsonl in "
            f"{', '.join(map(str, others))}; give folders of one kind"
        )
    for folder in others:
        if not is_training_run(folder):
            inside = ", ".join(str(path.parent) for path in sorted(folder.glob("*/samples.jsonl")))
            raise WrongArgument(
                f"{folder} has neither the samples.jsonl of an evaluation, nor what a trainer leaves in its "
                "output_dir: trainer_state.json, checkpoint-*/trainer_state.json or completions/completions_*.parquet"
                + (f". Fix: give an evaluation inside it: {inside}" if inside else "")
            )
    output = output or others[0] / TRAINING_REPORT
    write_training_report(folders, output, shown=arguments.shown)
    print(output)  # noqa: T201 - what the command is asked for


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
        raise WrongArgument(f"two runs are called {repeated}; give NAME=FOLDER with a name for each")
    return {name: Path(folder) for name, (_, _, folder) in zip(names, parts, strict=True)}
