"""Show what would be loaded from a source.

Check every row as training does, print which columns are read and left out and how many rows cannot be used for which
reason, and write an HTML page with these and ten rows with their images. SOURCE is whatever dataset_name takes. Nothing
is trained or sampled; training reads the checked rows from the cache afterwards.

example: mmreason rows data/train.jsonl --columns '{"answer": "solution"}' --output rows.html
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from . import parsers
from .command_options import READING, add_reading, check_output

KIND_NAMES = ("questions", "completions", "preferences", "steps")  # of `row_kinds.KINDS`, which takes long to import


def add(command: ArgumentParser) -> None:
    add = command.add_argument
    add("source", metavar="SOURCE", help="Hub id, local file or folder")
    add("--split", default="train", help="split of SOURCE to read")
    kinds = "what the rows are for: questions to be rewarded, completions to learn, preferences of DPO, labelled steps"
    add("--kind", choices=KIND_NAMES, default="questions", help=kinds)
    add_reading(command)
    add("--max-rows", type=parsers.count, metavar="N", help="check no more rows than N, chosen at random")
    add("--shown", type=parsers.count, default=10, metavar="N", help="rows in the page")
    add("--output", type=Path, default=Path("rows.html"), help="page to write")


def run(arguments: Namespace) -> None:
    from ...data.row_loading import load_rows
    from ...evaluation.metrics import aligned
    from ...evaluation.rows_page import column_lines, counts_line, problem_counts, write_rows_page
    from ...jobs.run import repeated_ids

    output = arguments.output
    check_output(output)
    reading = {name: getattr(arguments, name) for name in ("split", "kind", *READING)}
    loaded = load_rows(arguments.source, max_rows=arguments.max_rows, seed=0, **reading)
    lines = [counts_line(loaded, arguments.source), aligned([("column", "read as"), *column_lines(loaded)])]
    if counts := problem_counts(loaded):
        lines.append(aligned([("reason", "rows"), *counts]))  # the warning of `load_rows` has the first of them
    if repeated := repeated_ids(loaded.dataset["id"][:]):
        fix = """--columns '{"id": null}' numbers the rows"""
        lines.append(f"ids are not unique, which evaluations refuse: {repeated}. Fix: {fix}")
    write_rows_page(output, loaded, name=arguments.source, command=arguments.command_line, shown=arguments.shown)
    print("\n\n".join([*lines, str(output)]))  # noqa: T201 - what the command is asked for
