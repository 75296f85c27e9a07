"""Merge the stores of several machines' shares.

Merge several stores into one that holds every unit once. Then run the command that filled them, without --share, on the
merged store: it asks nothing again and writes the result. Stores with different settings, or with different results for
the same unit, are refused. A killed merge changes no store and leaves no partial output.

example: mmreason merge machine0.sqlite machine1.sqlite --output data/kept.parquet.sqlite
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...scripts.refusals import WrongArgument


def add(command: ArgumentParser) -> None:
    command.add_argument("store", nargs="+", help="file that a command filled with its --share")
    command.add_argument("--output", required=True, help="new file for the merged store")


def run(arguments: Namespace) -> None:
    from ...jobs.merge_stores import merge_stores

    try:
        merged = merge_stores(arguments.store, arguments.output)
    except OSError as error:  # of a disk
        raise WrongArgument(str(error)) from error
    print(f"{merged}\n{arguments.output}")  # noqa: T201 - what the command is asked for
