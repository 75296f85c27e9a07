"""One HTML page about the rows of a source: columns that are read, problems, and some rows with their images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from ..data.folders import write_whole
from ..data.row_kinds import KINDS
from ..data.row_loading import LoadedRows
from ..data.rows import Row
from .report import page_images, page_template

_SHOWN_PROBLEMS = 100


class WordTable(NamedTuple):
    """A table of words.

    Attributes:
        title: heading of the table.
        header: names of the columns.
        lines: cells of each line.
    """

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


def column_lines(loaded: LoadedRows) -> list[tuple[str, str]]:
    """The source's columns, each with the name that it is read as, or "left out"."""
    read = [(column, name) for name, column in loaded.columns.items()]
    return [*read, *((column, "left out") for column in loaded.left_out)]


def problem_counts(loaded: LoadedRows) -> list[tuple[str, str]]:
    """Reasons why rows cannot be used, each with the number of rows, the most frequent first."""
    rows = {(problem.reason, problem.row, problem.id) for problem in loaded.problems}
    return [(reason, str(count)) for reason, count in Counter(reason for reason, *_ in rows).most_common()]


def counts_line(loaded: LoadedRows, name: str) -> str:
    """A sentence with the number of usable rows, and of those without an image where others have one."""
    bad = len({(problem.row, problem.id) for problem in loaded.problems})
    tables = loaded.dataset.select_columns(["images"]).with_format("arrow").iter(1000)
    alone = sum(pc.sum(pc.equal(pc.list_value_length(table["images"]), 0)).as_py() or 0 for table in tables)
    blind = f", {alone} of them without an image" if 0 < alone < len(loaded.dataset) else ""
    return f"{name}: {len(loaded.dataset)} of {len(loaded.dataset) + bad} rows can be used{blind}"


def write_rows_page(path: str | Path, loaded: LoadedRows, *, name: str, command: str, shown: int = 10) -> None:
    """Write the page.

    Args:
        name: names the source.
        command: the command line that asked for the page.
        shown: number of rows to show, evenly spread over all.
    """
    problems = [
        (str(one.row), one.id, one.column, one.reason, one.message) for one in loaded.problems[:_SHOWN_PROBLEMS]
    ]
    further = len(loaded.problems) - len(problems)
    tables = [
        WordTable("Columns", ("column", "read as"), column_lines(loaded)),
        WordTable("Rows that cannot be used", ("reason", "rows"), problem_counts(loaded)),
        WordTable("Their problems", ("row", "id", "column", "reason", "problem"), problems),
    ]
    total = len(loaded.dataset)
    places = sorted({place * total // shown for place in range(shown)}) if total > shown else range(total)
    page = page_template("rows.html").render(
        title=name,
        command=command,
        notes=[counts_line(loaded, name), *([f"{further} further problems are not shown"] if further else [])],
        tables=[table for table in tables if table.lines],
        rows=[_shown(row) for row in loaded.dataset.select(places)],
    )
    write_whole(path, page)


def _shown(row: Row) -> dict[str, Any]:
    """The template's values for a row."""
    parts = [(message["role"], message["content"]) for message in row["prompt"]]
    own = [name for kind in KINDS.values() for name in kind.features if name in row and name != "step_labels"]
    for name in dict.fromkeys(own):
        parts += _parts(name, row)
    about = [row["id"], row["category"], f"{len(row['images'])} image(s)"]
    return {"id": row["id"], "images": page_images(row["images"]), "about": about, "parts": parts}


def _parts(name: str, row: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Label and text of what a column of a row holds."""
    value = row[name]
    if name == "steps":
        labels = ["no label" if label is None else f"{label:g}" for label in row["step_labels"]]
        return [
            (f"step {k}: {label}", text) for k, (text, label) in enumerate(zip(value, labels, strict=True), start=1)
        ]
    if name in ("chosen", "rejected"):
        return [(name, message["content"]) for message in value]
    if name == "choices":
        return [("choices", "\n".join(f"({letter}) {text}" for letter, text in value.items()))] if value else []
    return [(name, "\nor ".join(value) if isinstance(value, list) else str(value))]
