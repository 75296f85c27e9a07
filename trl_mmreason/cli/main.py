"""The command `mmreason`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from .. import __version__
from ..scripts.refusals import REFUSALS, refusal
from ..training.documented import HelpFormatter
from .commands import (
    annotate,
    doctor,
    evaluate,
    merge,
    prefilter,
    reflect,
    report,
    revise,
    steps,
    train,
    trajectories,
)

COMMANDS = (
    train,
    doctor,
    prefilter,
    reflect,
    revise,
    steps,
    annotate,
    trajectories,
    evaluate,
    merge,
    report,
)


class _CommandParser(argparse.ArgumentParser):
    """Sub-command parser that shows only informative defaults."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **settings})


def main(argv: Sequence[str] | None = None) -> None:
    """Run a sub-command."""
    parser = argparse.ArgumentParser(prog="mmreason", description="Teach vision-language models to reason.")
    parser.add_argument("--version", action="version", version=f"trl-mmreason {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_CommandParser)
    for command in COMMANDS:
        command.add(commands)
    arguments = parser.parse_args(argv)
    if "run" not in arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    arguments.command_line = shlex.join(["mmreason", *(sys.argv[1:] if argv is None else argv)])  # for reports
    try:
        arguments.run(arguments)
    except REFUSALS as error:
        if (line := refusal(error)) is None:
            raise
        raise SystemExit(f"{arguments.command_line.partition(' --')[0]}: {line}") from error
    except KeyboardInterrupt:
        sys.exit(130)  # a shell's status of an interrupted command; finished work is kept


if __name__ == "__main__":
    main()
