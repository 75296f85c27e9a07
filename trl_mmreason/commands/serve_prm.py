"""`mmreason serve-prm`: a process reward model behind HTTP."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "serve-prm",
        help="serve a process reward model",
        description="Serve a process reward model of Chain-of-Step: POST http://HOST:PORT/score.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", help="path or Hub id of a checkpoint that ProcessRewardTrainer made")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter to put on it")
    command.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of the weights; auto as they are saved",
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; whoever reaches it may use the model without a key"
    )
    command.add_argument("--port", type=int, default=8001, help="0 takes a free one")
    command.add_argument("--batch-size", type=int, default=8, help="rows that go through the model at a time")
    command.add_argument(
        "--max-waiting", type=int, default=1024, help="rows scored or waiting; requests beyond are told to come later"
    )
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from ..chain_of_step.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason serve-prm: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
    try:
        serve(
            arguments.model,
            adapter=arguments.adapter,
            dtype=arguments.dtype,
            host=arguments.host,
            port=arguments.port,
            batch_size=arguments.batch_size,
            max_waiting=arguments.max_waiting,
        )
    except (OSError, ValueError) as error:  # no such model, or one that is no process reward model
        raise SystemExit(f"mmreason serve-prm: {error}") from error
