"""`mmreason serve`: a model behind OpenAI's chat API."""

from __future__ import annotations

import argparse
from typing import Any

from . import options, serving


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "serve",
        help="serve a model behind OpenAI's chat API",
        description="Serve a model, with vision or text-only, behind OpenAI's chat API, at http://HOST:PORT/v1.",
        epilog="example: mmreason serve runs/adapo --port 8000",
    )
    serving.add_arguments(
        command,
        model="path or Hub id of a checkpoint; clients ask for it by this name",
        port=8000,
        batch_size=32,
        batch="answers in one batch",
    )
    command.set_defaults(run=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    with serving.packages_named("serve"):
        from ..sampling.serve import serve
    settings = serving.settings("serve", arguments)
    with options.exit_on("serve", OSError, ValueError):  # there is no such model, or its files cannot be read
        serve(arguments.model, **settings)
