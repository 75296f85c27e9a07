"""What the commands share that put a model behind HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def add_arguments(
    command: argparse.ArgumentParser,
    *,
    model: str,
    port: int,
    batch_size: int,
    batch: str,
    dtypes: Sequence[str] | None = None,
) -> None:
    """Declare the model and where it listens.

    Args:
        model: what it is.
        port, batch_size: their defaults.
        batch: what the batch size counts.
        dtypes: the names to choose from; `None` for any.
    """
    command.add_argument("model", help=model)
    command.add_argument("--adapter", help="path or Hub id of a LoRA adapter to put on it")
    command.add_argument("--dtype", choices=dtypes, default="auto", help="of the weights; auto as they are saved")
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; whoever reaches it may use the model without a key"
    )
    command.add_argument("--port", type=int, default=port, help="0 takes a free one")
    command.add_argument("--batch-size", type=int, default=batch_size, help=batch)


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Collect the arguments of `add_arguments`, but for the model, by the names that servers have for them."""
    return {name: getattr(arguments, name) for name in ("adapter", "dtype", "host", "port", "batch_size")}


@contextmanager
def packages_named(name: str) -> Iterator[None]:
    """End the command in a line if the extra `server` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise SystemExit(
            f'mmreason {name}: the package {error.name} is missing. Install it: pip install "trl-mmreason[server]"'
        ) from error
