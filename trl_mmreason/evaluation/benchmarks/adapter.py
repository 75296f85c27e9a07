"""Describe a benchmark: the source of its rows, and the function from a row to a question.

An adapter is a function from a row to a `Question`. What it cannot use it refuses with `UnusableCell`, which names the
column; the loader names the benchmark and the row.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets import Dataset

from ...data.row_values import RefusedValue, read_label
from ...data.rows import DataError, Row
from ...grading.tolerance import Tolerance
from .prompt import INSTRUCTION, images_named

ScoreFunction = Callable[[Sequence[Row], Sequence[bool | None]], dict[str, float]]

QUESTION_IN_IMAGE = "The question is in the picture."
_LONGEST_LIST = 100_000  # characters of a list in text form
_LETTER = re.compile(r"\(?([A-Za-z])\)?[.:]?")
_NUMBERED = re.compile(r"image_(\d{1,2})")


class BenchmarkError(DataError):
    """A benchmark cannot be loaded; `problems` lists the bad rows, if there are any."""


class UnusableCell(RefusedValue):
    """An unusable cell: its column, a short reason to count by, and the whole message."""

    def __init__(self, column: str, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.column = column


class Question(NamedTuple):
    """One question of a benchmark.

    Attributes:
        id: None where the rows have none; they are then numbered.
        question: without the choices, where they could be told from it.
        images: the source's column → its image, or a list of them, as they are stored; in order.
        answer: the gold answer: the letter where there are choices; a list of which any one is right.
        choices: letter → text.
        category: category of the row, for the table of categories.
        hint: background, or the form of the answer, which a solver is told besides the question.
        group: the problem that several rows are variants, versions or steps of.
        tolerance: how far a number may be off.
        choices_shown: whether the prompt lists the choices; they may be in the image already.
    """

    id: str | None
    question: str
    images: Mapping[str, Any]
    answer: str | list[str]
    choices: dict[str, str] | None = None
    category: str | None = None
    hint: str = ""
    group: str | None = None
    tolerance: Tolerance | None = None
    choices_shown: bool = True


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A benchmark and how to read it.

    Attributes:
        name: on the command line.
        title: title for readers.
        hub: its data set on the Hub; "" where that cannot be read as rows.
        split: split of that data set; several joined by "+".
        columns: required columns; of a tuple of names, one.
        read: one row of the source → the question.
        source: where the data are published.
        paper: its number on arXiv.
        rows: number of rows; 0 where it is not published.
        id_column: names a row that cannot be used; "" where the rows have no names.
        configs: configurations of the Hub data set, to be concatenated.
        keep: which rows of the source belong to this benchmark; all by default.
        questions_per_row: questions in a row of the source; `read` is told the number of its one, from 1, as `part`.
        instruction: the end of the prompt.
        has_variants: the rows of a group are variants of one problem, and the worst case over them is reported.
        scores: further scores of the benchmark's own: rows with id, group and category, and whether each is right → by
            name.
        answers_in_prose: whether its authors extract answers from free text; see `grading/prose.py`.
        draw: makes the rows of a benchmark that is not stored anywhere, from a split and their number.
    """

    name: str
    title: str
    hub: str
    split: str
    columns: Sequence[str | tuple[str, ...]]
    read: Callable[[Row], Question]
    source: str
    paper: str = ""
    rows: int
    id_column: str = "id"
    configs: Sequence[str] = ()
    keep: Callable[[Row], bool] | None = None
    questions_per_row: int = 1
    instruction: str = INSTRUCTION
    has_variants: bool = False
    scores: ScoreFunction | None = None
    answers_in_prose: bool = False
    draw: Callable[[str, int], Dataset] | None = None


def on_hub(repository: str) -> dict[str, Any]:
    """The fields of a `Benchmark` that is published as a data set on the Hub."""
    return {"hub": repository, "source": f"https://huggingface.co/datasets/{repository}"}


# ---------------------------------------------------------------------------------------------------------------- cells


def label(row: Row, *columns: str) -> str | None:
    """The text of the first of these columns that holds any; numbers become text."""
    for column in columns:
        try:
            if text := read_label(row.get(column)):
                return text
        except RefusedValue as refused:
            raise UnusableCell(column, refused.reason, refused.message) from refused
    return None


def text(row: Row, *columns: str) -> str:
    """The text of the first of these columns that holds any; a row without text is refused."""
    value = label(row, *columns)
    if value is None:
        column = next((name for name in columns if name in row), columns[0])
        raise UnusableCell(column, "empty", f"it holds {row.get(column)!r}; every row needs a string there")
    return value


def listed(row: Row, column: str) -> list[str]:
    """Read a list of strings, possibly stored as one string ("['a', 'b']"); empty if there is none."""
    value = row.get(column)
    if isinstance(value, str) and value.strip().startswith("[") and len(value) <= _LONGEST_LIST:
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise UnusableCell(column, "not a list", f"{value[:60]!r} is no list in text form: {error}") from error
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise UnusableCell(column, "not a list", f"got {str(value)[:60]!r} ({type(value).__name__}); expected a list")
    return [label({column: one}, column) or "" for one in value]


def lettered(texts: Sequence[str], column: str) -> dict[str, str] | None:
    """Letter → text, without the letters of empty texts; `None` without choices."""
    choices = {place: one for place, one in enumerate(texts) if one}
    if any(place >= len(string.ascii_uppercase) for place in choices):
        message = f"it holds {max(choices) + 1} choices; expected at most 26, one for each letter"
        raise UnusableCell(column, "too many choices", message)
    return {string.ascii_uppercase[place]: one for place, one in choices.items()} or None


def letter(row: Row, column: str, choices: Mapping[str, str]) -> str:
    """The letter of the right choice."""
    answer = text(row, column)
    match = _LETTER.fullmatch(answer)
    if match is None or match[1].upper() not in choices:
        message = f"the answer is {answer!r} but the choices are {', '.join(choices)}"
        raise UnusableCell(column, "letter not among the choices", message)
    return match[1].upper()


def required_choices(options: Sequence[str], column: str) -> dict[str, str]:
    """Letter → text, for benchmarks in which every question has choices; a row without choices is refused."""
    if choices := lettered(options, column):
        return choices
    raise UnusableCell(column, "empty", "it holds no choices; every question of this benchmark has some")


def letter_or_text(row: Row, column: str, choices: Mapping[str, str] | None) -> str:
    """The letter of the right choice; without choices the answer itself."""
    return letter(row, column, choices) if choices else text(row, column)


def usual_question(
    row: Row,
    images: Mapping[str, Any],
    choices: dict[str, str] | None,
    *,
    question: str | None = None,
    id_column: str = "id",
    category: str = "subject",
) -> Question:
    """The question of a row that has its text, unless given here, and its answer in the columns of these names."""
    asked = text(row, "question") if question is None else question
    answer = letter_or_text(row, "answer", choices)
    return Question(text(row, id_column), asked, images, answer, choices, label(row, category))


def is_one_of(row: Row, column: str, names: Sequence[str]) -> bool:
    """Whether the column holds one of these names, ignoring case; for `Benchmark.keep`."""
    return (label(row, column) or "").casefold() in names


def image(row: Row, *columns: str) -> dict[str, Any]:
    """The image in the first of these columns that the source has."""
    column = next((name for name in columns if name in row), columns[0])
    return {column: row.get(column)}


def numbered_images(row: Row, *texts: str | None) -> dict[str, Any]:
    """The columns `image_1`, `image_2`, … that hold an image or that a tag in `texts` names."""
    present = {int(match[1]) for column in row if (match := _NUMBERED.fullmatch(column)) and row[column]}
    named = images_named(one for one in texts if one)
    return {f"image_{number}": row.get(f"image_{number}") for number in sorted(present | named)}


def image_numbers(columns: Iterable[str], count: int) -> list[int]:
    """The numbers by which tags name `count` images: those of `image_2`, …; else 1, 2, 3, …"""
    numbers = [int(match[1]) for column in columns if (match := _NUMBERED.fullmatch(column))]
    return numbers or list(range(1, count + 1))
