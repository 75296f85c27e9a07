"""`mmreason serve-prm`: a process reward model behind HTTP."""

from __future__ import annotations

import argparse
import socket
from typing import Any

from . import options, parsers


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "serve-prm",
        help="serve a process reward model",
        description="Serve a process reward model of Chain-of-Step: POST http://HOST:PORT/score.",
        epilog="example: mmreason serve-prm runs/chain_of_step/prm/model --port 8001",
    )
    command.add_argument("model", help="path or Hub id of a checkpoint that ProcessRewardTrainer made")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter for it")
    command.add_argument(
        "--dtype", choices=options.DTYPE_CHOICES, default="auto", help="dtype of the weights; auto keeps the saved one"
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on; there is no authentication")
    command.add_argument("--port", type=parsers.port, default=8001, help="port to listen on; 0 takes a free one")
    command.add_argument("--batch-size", type=parsers.count, default=8, help="rows that go through the model at a time")
    command.add_argument(
        "--max-waiting",
        type=parsers.count,
        default=1024,
        help="rows scored or waiting; further requests get status 503 with Retry-After",
    )
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from ...chain_of_step.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason serve-prm: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
    options.check_folders("serve-prm", arguments.model, arguments.adapter)
    with options.exit_on("serve-prm", OSError), socket.create_server((arguments.host, arguments.port)):
        pass  # a port in use ends the command before anything is loaded
    names = ("adapter", "dtype", "host", "port", "batch_size", "max_waiting")
    with options.exit_on("serve-prm", OSError, ValueError):  # the model does not exist, or is no process reward model
        serve(arguments.model, **{name: getattr(arguments, name) for name in names})
