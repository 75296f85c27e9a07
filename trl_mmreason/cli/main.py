"""The command `mmreason`."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence

from .. import __version__
from ..data.user_text import suggestion
from ..scripts.refusals import exit_on_refusal
from ..training.documented import HelpFormatter
from .commands import (
    annotate,
    doctor,
    evaluate,
    merge_command,
    new,
    prefilter_command,
    reflect,
    report_command,
    revise,
    rows_command,
    step_f1,
    steps,
    train,
    trajectories,
)

COMMANDS = (
    *(train, new, doctor, rows_command, prefilter_command, reflect, revise),
    *(steps, annotate, trajectories, evaluate, step_f1, merge_command, report_command),
)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line, with a sub-command for each of `COMMANDS`.

    The help of a sub-command is its module's docstring: a title, the description and an example.
    """
    parser = argparse.ArgumentParser(prog="mmreason", description="Teach vision-language models to reason.")
    parser.add_argument("--version", action="version", version=f"trl-mmreason {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2].removesuffix("_command").replace("_", "-")
        title, description, example = re.split(r"\n{2,}", str(module.__doc__).strip())
        command = commands.add_parser(
            name,
            help=title[0].lower() + title[1:].rstrip("."),
            description=description,
            epilog=example,
            formatter_class=HelpFormatter,
        )
        module.add(command)
        command.set_defaults(run=module.run, program=f"mmreason {name}", parser=command)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run a sub-command; its options are written with - or with _, as those of `train` are."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] != ["train"]:  # whose options are the method's
        given = [re.sub(r"^--[\w-]+", lambda option: option[0].replace("_", "-"), one) for one in given]
        home = os.path.expanduser("~/")  # which shells put behind a space alone
        given = [re.sub(r"^(--[\w-]+=)~/", lambda option: option[1] + home, one) for one in given]
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(given)
    if "run" not in arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if unknown:
        near = suggestion(unknown[0].partition("=")[0], (f"--{name.replace('_', '-')}" for name in vars(arguments)))
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
    arguments.command_line = shlex.join(["mmreason", *given])  # for reports
    with exit_on_refusal(arguments.program):
        arguments.run(arguments)


if __name__ == "__main__":
    main()
