"""`mmreason serve-prm`: a process reward model behind HTTP."""

from __future__ import annotations

import argparse
from typing import Any

from . import options, parsers, serving


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "serve-prm",
        help="serve a process reward model",
        description="Serve a process reward model of Chain-of-Step: POST http://HOST:PORT/score.",
        epilog="example: mmreason serve-prm runs/chain_of_step/prm/model --port 8001",
    )
    serving.add_arguments(
        command,
        model="path or Hub id of a checkpoint that ProcessRewardTrainer made",
        port=8001,
        batch_size=8,
        batch="rows that go through the model at a time",
    )
    command.add_argument(
        "--max-waiting",
        type=parsers.count,
        default=1024,
        help="rows scored or waiting; further requests get status 503 with Retry-After",
    )
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    with serving.packages_named("serve-prm"):
        from ..chain_of_step.serve import serve
    settings = serving.settings("serve-prm", arguments)
    with options.exit_on("serve-prm", OSError, ValueError):  # no such model, or no process reward model
        serve(arguments.model, max_waiting=arguments.max_waiting, **settings)
