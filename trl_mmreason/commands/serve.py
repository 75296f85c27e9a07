"""`mmreason serve`: a model behind OpenAI's chat API."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "serve",
        help="serve a model behind OpenAI's chat API",
        description="Serve a vision-language model behind OpenAI's chat API, at http://HOST:PORT/v1.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", help="path or Hub id of a checkpoint; clients ask for it by this name")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter to put on it")
    command.add_argument("--dtype", default="auto", help="of the weights; auto as they are saved")
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; whoever reaches it may use the model without a key"
    )
    command.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    command.add_argument("--batch-size", type=int, default=32, help="answers in one batch")
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from ..sampling.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason serve: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
    try:
        serve(
            arguments.model,
            adapter=arguments.adapter,
            dtype=arguments.dtype,
            host=arguments.host,
            port=arguments.port,
            batch_size=arguments.batch_size,
        )
    except OSError as error:  # there is no such model, or its files cannot be read
        raise SystemExit(f"mmreason serve: {error}") from error
