"""Rows for every trainer and every evaluation: prompt, images, answer, choices, id, category.

    rows = load_rows("data/train.jsonl", columns={"prompt": "problem", "answer": "solution"})
    trainer = AdaPOTrainer(model, args=config, train_dataset=rows.dataset)

Every row is checked before training; the bad ones are named and, by default, left out.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, Features, Image, List, Value

from .image_size import PixelBounds
from .mixed_sources import MIXTURES, mixed, read_mixture
from .row_cache import cache_arguments
from .row_columns import SourceColumns, find_columns, left_out_columns
from .row_kinds import KINDS, RowKindName
from .row_sources import LINE, json_columns, json_features, parse_line, read_source, undecoded
from .row_values import NUMBER, RefusedValue, cell, number_as_text
from .row_warnings import (
    warn_of_context,
    warn_of_several_answers,
    warn_of_unlisted_choices,
    warn_of_unlisted_letters,
)
from .rows import MESSAGES, TOLERANCE, DataError, RowProblem, RowReader
from .unseen_media import is_media_column
from .video import VIDEO_NAMES

logger = logging.getLogger(__name__)


def checked_features(kind: RowKindName = "questions") -> dict[str, Any]:
    """The type of each column of checked rows."""
    return {
        "prompt": MESSAGES,
        "images": List(Image(mode="RGB")),
        **KINDS[kind].features,
        "id": Value("string"),
        "category": Value("string"),
        "problems": List({"column": Value("string"), "reason": Value("string"), "message": Value("string")}),
    }


class LoadedRows(NamedTuple):
    """The usable rows, the problems of the others, and what was read.

    Attributes:
        dataset: the usable rows.
        problems: why each of the others is none.
        columns: our name → the source's column.
        left_out: the source's columns that were not read.
    """

    dataset: Dataset
    problems: list[RowProblem]
    columns: Mapping[str, str] = {}
    left_out: Sequence[str] = ()


def load_rows(
    source: str | os.PathLike | Dataset | DatasetDict,
    *,
    split: str = "train",
    columns: Mapping[str, str | None] | None = None,
    keep_columns: Sequence[str] = (),
    image_root: str | os.PathLike | None = None,
    video_frames: int | None = None,
    system_prompt: str | None = None,
    on_error: Literal["drop", "raise"] = "drop",
    num_proc: int | None = None,
    max_rows: int | None = None,
    seed: int | None = None,
    kind: RowKindName = "questions",
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> LoadedRows:
    """Load, check and normalise the rows of a data source.

    The dataset has exactly these columns, or those of another kind, and those of `keep_columns`:

    - `prompt`: messages with string contents, with `<image>` where images stand inside the text, and without where all
      come first.
    - `images`: PIL images in RGB, upright, transparent parts white, decoded on access; `[]` without images.
    - `answer`: a string; or a list of acceptable strings in every row if any row of the source has several. Without a
      column of answers, the last turn of the assistant in `messages` or `conversations`.
    - `choices`: letter → text, or None.
    - `id`: the row's own, or "<source>-<index>".
    - `category`: a string or None.
    - `tolerance`, if the source has such a column: the share of the right number by which an answer may be off, as 0.05
      for charts, or None. `Grader` and every reward that grades go by it.

    The first call decodes every image. Later calls read what it wrote (`row_cache`), unless rows, arguments, this
    package, or path, size or time of change of an image differ.

    A row with media that the model would not see is a bad row: audio, video without `video_frames`, or an image in a
    column that is not read while the row has no other. With `images` in `columns`, images in other columns are ignored;
    with None, all media.

    Args:
        source: a Hub id, a .parquet, .jsonl, .json, .csv or .tsv file, a folder of such files, an image folder with a
            metadata file, or an already loaded dataset (of a DatasetDict, `split` is taken); or a .yaml file that names
            several of these with weights (`mixed_sources`).
        split: which split to take. A single file is one split, whatever it is called.
        columns: our name → the source's column, for example {"prompt": "problem"}; by default found by `SYNONYMS`.
            None says that the source has none: {"answer": None} for data without labels, whose `answer` is then None.
            One column for both `prompt` and `answer` is read as conversations.
        keep_columns: further columns to keep as they are. All others are left out.
        image_root: the folder that relative paths start from; by default that of the data file.
        video_frames: read each video in the columns `video` (one: a path, bytes, or a list of images) and `videos` (a
            list of them) as at most so many frames, spread evenly over it; they follow the row's images, or stand where
            the prompt has `<video>`. `columns` may name other columns for these two.
        system_prompt: put before every prompt as a system message.
        on_error: "drop" leaves bad rows out and logs one warning; "raise" raises if there is any.
        num_proc: processes that check rows, as in `datasets.Dataset.map`.
        max_rows: take no more rows than this, before they are checked.
        seed: seed of a random choice of `max_rows`, in the order of the source; `None` takes the first.
        kind: "questions"; or, in the place of `answer` and `choices`, "completions" with `completion` (a string) for
            supervised training, "preferences" with `chosen` and `rejected` (messages) for DPO, or "steps" with `steps`
            and `step_labels` for a process reward model.
        min_pixels, max_pixels: enlarge smaller images and shrink larger ones to so many pixels, width × height; frames
            of videos, too.

    Raises:
        DataError: the source cannot be read, a required column is missing or ambiguous, no row can be used, or, with
            on_error="raise", any row cannot.
    """
    if on_error not in ("drop", "raise"):
        raise DataError(f"load_rows: on_error is {on_error!r}; expected 'drop' or 'raise'")
    if max_rows is not None and max_rows < 1:
        raise DataError(f"load_rows: max_rows is {max_rows}; expected at least 1")
    if video_frames is not None and video_frames < 1:
        raise DataError(f"load_rows: video_frames is {video_frames}; expected at least 1")
    if kind not in KINDS:
        raise DataError(f"load_rows: kind is {kind!r}; expected one of {list(KINDS)}")
    pixels = PixelBounds(min_pixels, max_pixels)
    if pixels.problem:
        raise DataError(f"load_rows: {pixels.problem}")
    reading = _Reading(
        split,
        columns or {},
        list(keep_columns),
        image_root,
        video_frames,
        system_prompt,
        on_error,
        num_proc,
        kind,
        pixels,
    )
    if isinstance(source, str | os.PathLike) and str(source).endswith(MIXTURES):
        return _load_mixture(Path(source).expanduser(), reading, max_rows, seed)
    return _load_source(source, reading, max_rows, seed)


def load_completions(source: str, split: str = "train", **reading: Any) -> Dataset:
    """Load rows for supervised training.

    Args:
        source: parquet files or a Hub id with `prompt` and `completion`, such as this package's commands write, which
            are read unchanged; or whatever `load_rows` reads as completions, such as JSON lines or conversations.
        **reading: arguments of `load_rows`; with any that is not None, it reads every source.

    Raises:
        DataError: as `load_rows`.
    """
    given = {name: value for name, value in reading.items() if value is not None}
    if not given and not source.endswith(MIXTURES):
        table = read_source(source, split)
        if not table.is_json and {"prompt", "completion"} <= set(table.dataset.column_names):
            return table.dataset
    return load_rows(source, split=split, kind="completions", **given).dataset


@dataclass(frozen=True)
class _Reading:
    """How the rows of a source are read: arguments of `load_rows`, and the beginning of their ids."""

    split: str
    columns: Mapping[str, str | None]
    keep_columns: list[str]
    image_root: str | os.PathLike | None
    video_frames: int | None
    system_prompt: str | None
    on_error: str
    num_proc: int | None
    kind: RowKindName
    pixels: PixelBounds
    id_prefix: str = ""

    @property
    def names(self) -> list[str]:
        """Our names of columns that a source may have."""
        own = ["prompt", "images", *KINDS[self.kind].names, "id", "category"]
        videos = VIDEO_NAMES if self.video_frames is not None else ()
        return [*own, *([TOLERANCE] if self.kind == "questions" else []), *videos]


def _load_mixture(path: Path, reading: _Reading, max_rows: int | None, seed: int | None) -> LoadedRows:
    """Load all rows of the sources that a YAML file names, and mix them by their weights."""
    parts = read_mixture(path)
    loaded = {
        part.name: _load_source(part.source, replace(reading, **part.reading, id_prefix=f"{part.name}/"), None, None)
        for part in parts
    }
    rows = {name: one.dataset for name, one in loaded.items()}
    return LoadedRows(
        mixed(rows, {part.name: part.weight for part in parts}, max_rows, seed),
        [problem for one in loaded.values() for problem in one.problems],
        {f"{name}/{ours}": column for name, one in loaded.items() for ours, column in one.columns.items()},
        [f"{name}/{column}" for name, one in loaded.items() for column in one.left_out],
    )


def _load_source(source: Any, reading: _Reading, max_rows: int | None, seed: int | None) -> LoadedRows:
    table = read_source(source, reading.split)
    positions = _positions(len(table.dataset), max_rows, seed)
    raw = table.dataset.select(positions)
    if len(raw) == 0:
        raise DataError(f"{table.name} has no rows")
    kind, keep_columns = KINDS[reading.kind], reading.keep_columns
    present = SourceColumns.of(json_columns(raw, table.name) if table.is_json else raw.features)
    columns = find_columns(present, reading.columns, table.name, reading.names, required=kind.required, ends=kind.ends)
    for column in keep_columns:
        if column not in present.outer:
            raise DataError(f"{table.name} has no column {column!r} to keep; it has {present.outer}")
        if column in (*reading.names, *kind.features, "problems"):
            raise DataError(f"keep_columns cannot hold {column!r}: the result has its own column of that name")
    left_out = left_out_columns(present, [*columns.values(), *keep_columns])
    if left_out:
        logger.info("%s: left out the columns %s (keep_columns keeps some)", table.name, left_out)
        warn_of_context(left_out, table.name)

    unread = left_out
    if "images" in reading.columns:  # which images the model sees has been decided; `None`: no media at all
        unread = [column for column in left_out if "images" in columns and is_media_column(column)]
    reader = RowReader(
        columns,
        Path(table.image_root if reading.image_root is None else reading.image_root).expanduser().absolute(),
        table.name,
        reading.system_prompt,
        tuple(unread),
        {} if table.is_json else {column: cell(raw.features, column) for column in columns.values()},
        reading.video_frames or 0,
        reading.kind,
        reading.id_prefix,
        reading.pixels,
    )
    checked = _check_rows(raw, positions, reader, table.is_json, keep_columns, reading.num_proc)
    made = ["prompt", "images", *kind.features, "id", "category", *([TOLERANCE] if TOLERANCE in columns else [])]
    dataset, problems = _sort_out(checked, positions, [*made, *keep_columns], table.name, reading.on_error)
    return LoadedRows(dataset, problems, columns, left_out)


def _positions(rows: int, max_rows: int | None, seed: int | None) -> Sequence[int]:
    """Positions of the rows to read, in ascending order."""
    if max_rows is None or max_rows >= rows or seed is None:
        return range(rows if max_rows is None else min(max_rows, rows))
    return sorted(np.random.default_rng(seed).permutation(rows)[:max_rows].tolist())


def _check_rows(
    raw: Dataset, positions: Sequence[int], reader: RowReader, is_json: bool, keep: list[str], num_proc: int | None
) -> Dataset:
    """Return one checked row for every row of `raw`: our columns, the kept ones, and `problems`."""
    columns = raw.features
    kept_features = json_features(raw, keep) if is_json else {column: columns[column] for column in keep}
    keeps = is_json or raw.cache_files  # of rows that are in memory alone nothing goes to disk
    own_features = {
        **checked_features(reader.kind),
        **({TOLERANCE: Value("float64")} if TOLERANCE in reader.columns else {}),
    }
    caching = cache_arguments(raw, reader, keep, is_json) if keeps else {"load_from_cache_file": False}
    return (raw if is_json else undecoded(raw)).map(
        _check_row,
        with_indices=True,
        fn_kwargs={"positions": positions, "reader": reader, "keep": keep if is_json else None},
        features=Features({**own_features, **kept_features}),
        remove_columns=[column for column in raw.column_names if column not in keep],
        num_proc=num_proc,
        # rows held in memory before writing; a row may hold megabytes of images
        writer_batch_size=max(100 // (reader.video_frames or 1), 1),
        desc="Checking rows",
        **caching,
    )


def _check_row(
    row: Mapping[str, Any], index: int, positions: Sequence[int], reader: RowReader, keep: list[str] | None
) -> dict[str, Any]:
    """Check a row, or with `keep` a line of JSON, of which it keeps these columns; otherwise `map` itself does."""
    if keep is None:
        return reader.check(row, positions[index])
    try:
        row = parse_line(row[LINE])
    except RefusedValue as refused:
        return {**reader.check({}, positions[index]), **dict.fromkeys(keep), "problems": [refused.in_column("line")]}
    return {**reader.check(row, positions[index]), **{column: row.get(column) for column in keep}}


def _sort_out(
    checked: Dataset, positions: Sequence[int], names: list[str], source_name: str, on_error: str
) -> tuple[Dataset, list[RowProblem]]:
    """Separate good rows from bad ones, and report the bad ones according to `on_error`."""
    if "choices" in names:
        checked = _without_numbers_of_choices(checked)
    problems, summary = row_problems(checked, positions, source_name)
    good = [row for row, row_problems in enumerate(checked["problems"]) if not row_problems]
    if problems:
        if on_error == "raise" or not good:
            raise DataError(f"{summary}:\n{list_first(problems, 20)}", problems)
        counts = Counter(problem.reason for problem in problems).most_common()
        reasons = ", ".join(f"{count} × {reason}" for reason, count in counts)
        logger.warning("%s and were left out (%s):\n%s", summary, reasons, list_first(problems, 5))
    dataset = (with_plain_answers(checked) if "answer" in names else checked).select_columns(names)
    usable = dataset.select(good) if problems else dataset
    if "choices" in names:
        warn_of_unlisted_choices(usable, source_name)
        warn_of_unlisted_letters(usable, source_name)
    if "completion" in names:
        warn_of_several_answers(usable, source_name)
    return usable, problems


def _without_numbers_of_choices(checked: Dataset) -> Dataset:
    """Refuse all answers to questions with choices if each is a whole number, and one in twenty or more is no choice.

    These are numbers of choices, as AI2D has them as text, and where choices are numbers themselves, some are the text
    of a wrong one.
    """
    if checked.data["choices"].null_count == len(checked):
        return checked
    problems = checked["problems"][:]
    columns = [one["column"] for row in problems for one in row if one["reason"] == NUMBER]
    cells = zip(checked["answer"][:], checked["choices"][:], problems, strict=True)
    usable = [(answers[0], choices, row) for answers, choices, row in cells if choices and answers and not row]
    if not usable or 20 * len(columns) < len(usable) or not all(answer.isdecimal() for answer, _, _ in usable):
        return checked
    for answer, choices, row in usable:
        row.append(number_as_text(answer, choices).in_column(columns[0]))
    return checked.remove_columns("problems").add_column("problems", problems, feature=checked.features["problems"])


def row_problems(checked: Dataset, positions: Sequence[int], source_name: str) -> tuple[list[RowProblem], str]:
    """The problems of checked rows, at these positions of the source, and a sentence with the number of bad rows."""
    checked_rows = zip(positions, checked["id"], checked["problems"], strict=True)
    problems = [RowProblem(row, id_, **problem) for row, id_, refused in checked_rows for problem in refused]
    bad_count = len({problem.row for problem in problems})
    count = len(set(positions)) if problems else len(checked)  # a row may hold several questions
    return problems, f"{source_name}: {bad_count} of {count} rows cannot be used"


def list_first(problems: list[RowProblem], count: int) -> str:
    """A line for each of the first `count` problems, and one that counts the others."""
    lines = [str(problem) for problem in problems[:count]]
    if len(problems) > count:
        lines.append(f"… and {len(problems) - count} more")
    return "\n".join(lines)


def with_plain_answers(checked: Dataset) -> Dataset:
    """Turn the lists of answers into strings if no row has more than one."""
    answers = checked["answer"][:]
    if any(len(row) > 1 for row in answers):
        return checked
    plain = pa.array([row[0] if row else None for row in answers], pa.string())
    return checked.remove_columns("answer").add_column("answer", plain, feature=Value("string"))
