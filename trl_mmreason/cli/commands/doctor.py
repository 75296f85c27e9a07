"""`mmreason doctor`: will it work here?"""

from __future__ import annotations

import argparse
import platform
from typing import Any

from ... import __version__
from .train import SCRIPTS


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "doctor",
        help="check versions, GPUs, memory and a model's chat template",
        description="Check the installed versions, the GPUs and the private methods that are relied on; for a "
        "configuration or a model, also its requirements, the memory of training, and whether its chat template and "
        "its processor support two turns. Prints one line a finding. Exit status 1 if something will not work.",
        epilog="example: mmreason doctor --config adapo/your_model.yaml --model Qwen/Qwen2.5-VL-3B-Instruct",
    )
    command.add_argument("--config", metavar="FILE", help="configuration of a method, or the name of a shipped recipe")
    command.add_argument(
        "--method",
        choices=tuple(SCRIPTS),
        help="method of --config; by default that of the file's folder, or the first that takes the file",
    )
    command.add_argument("--model", metavar="PATH", help="path or Hub id of a model; by default that of --config")
    command.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> None:
    from ..doctor import examine

    print(f"ok    trl-mmreason {__version__}, Python {platform.python_version()}")  # noqa: T201 - as below
    if arguments.method and not arguments.config:
        raise SystemExit("mmreason doctor: --method has no effect without --config, whose method it is")
    methods, failed = (arguments.method,) if arguments.method else tuple(SCRIPTS), 0
    for finding in examine(arguments.config, arguments.model, methods):
        print(finding, flush=True)  # noqa: T201 - what the command is asked for
        failed += finding.level == "FAIL"
    if failed:
        raise SystemExit(f"mmreason doctor: {failed} of these will not work")
