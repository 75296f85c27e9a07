"""`mmreason merge`: one store of what several machines have sampled, each its share."""

from __future__ import annotations

import argparse
from typing import Any

from . import options


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "merge",
        help="merge the stores of several machines' shares",
        description="Merge several stores into one that holds every unit once. Then run the command that filled them, "
        "without --share, on the merged store: it asks nothing again and writes the result. Stores with different "
        "settings, or with different results for the same unit, are refused. A killed merge changes no store and "
        "leaves no partial output.",
        epilog="example: mmreason merge machine0.sqlite machine1.sqlite --output data/kept.parquet.sqlite",
    )
    command.add_argument("store", nargs="+", help="file that a command filled with its --share")
    command.add_argument("--output", required=True, help="new file for the merged store")
    command.set_defaults(run=_merge)


def _merge(arguments: argparse.Namespace) -> None:
    from ...jobs.merge_stores import MergeConflict, merge_stores
    from ...jobs.store import StoreError

    with options.exit_on("merge", MergeConflict, StoreError, ValueError, OSError):
        merged = merge_stores(arguments.store, arguments.output)
    print(f"{merged}\n{arguments.output}")  # noqa: T201 - what the command is asked for
