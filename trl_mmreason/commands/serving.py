"""Options shared by the commands that serve a model over HTTP."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import options, parsers


def add_arguments(
    command: argparse.ArgumentParser,
    *,
    model: str,
    port: int,
    batch_size: int,
    batch: str,
) -> None:
    """Declare the model, its host and its port.

    Args:
        model: what it is.
        port, batch_size: their defaults.
        batch: what the batch size counts.
    """
    command.add_argument("model", help=model)
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter for it")
    command.add_argument(
        "--dtype", choices=options.DTYPE_CHOICES, default="auto", help="dtype of the weights; auto keeps the saved one"
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on; there is no authentication")
    command.add_argument("--port", type=parsers.port, default=port, help="port to listen on; 0 takes a free one")
    command.add_argument("--batch-size", type=parsers.count, default=batch_size, help=batch)


def settings(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the arguments of `add_arguments`, but for the model, as servers name them.

    A model that is not there, or a port in use, ends the command `name` before anything is loaded.
    """
    options.check_folders(name, arguments.model, arguments.adapter)
    with options.exit_on(name, OSError), socket.create_server((arguments.host, arguments.port)):
        pass
    return {each: getattr(arguments, each) for each in ("adapter", "dtype", "host", "port", "batch_size")}


@contextmanager
def packages_named(name: str) -> Iterator[None]:
    """End the command with one line if the extra `server` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason {name}: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
