"""The command `mmreason`. What a sub-command needs is imported when it runs, so that `mmreason --help` answers at once.

A sub-command is a function that declares its arguments and one that runs it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> None:
    """Run a sub-command."""
    parser = argparse.ArgumentParser(prog="mmreason", description="Teach vision-language models to reason.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_serve(commands)
    arguments = parser.parse_args(argv)
    arguments.run(arguments)


def _add_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="serve a model behind OpenAI's chat API",
        description="Serve a vision-language model behind OpenAI's chat API, at http://HOST:PORT/v1.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.add_argument("model", help="path or Hub id of a checkpoint; clients ask for it by this name")
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter to put on it")
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; nothing asks for a key, so any other than this one lets others use the model",
    )
    command.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    command.add_argument("--batch-size", type=int, default=32, help="answers in one batch")
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    try:
        from .sampling.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason serve: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
    serve(
        arguments.model,
        adapter=arguments.adapter,
        host=arguments.host,
        port=arguments.port,
        batch_size=arguments.batch_size,
    )


if __name__ == "__main__":
    main()
