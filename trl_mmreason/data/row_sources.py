"""Read unchecked rows from a Hub id, files, folders, or a loaded dataset."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from datasets import (
    Audio,
    Dataset,
    DatasetDict,
    Features,
    Image,
    LargeList,
    List,
    Video,
    load_dataset,
    load_dataset_builder,
    load_from_disk,
)
from datasets.exceptions import DatasetsError

from .folders import is_missing_path
from .row_columns import CONVERSATIONS, SYNONYMS
from .row_values import RefusedValue
from .rows import DataError
from .unseen_media import unseen_media
from .user_text import parse_unique

logger = logging.getLogger(__name__)

_LINES = (".jsonl", ".json", ".csv", ".tsv")  # read line by line
SUFFIXES = (".parquet", *_LINES)
_ACCEPTED = (
    f"A source is a Hub id, a file ({', '.join(SUFFIXES)}), a folder of such files, an image folder with "
    "metadata.jsonl, metadata.csv or metadata.parquet, or a datasets.Dataset. A configuration of a Hub id follows "
    "a colon, owner/name:configuration."
)
_OTHER_SPLITS = ("validation", "valid", "val", "dev", "test", "eval", "evaluation")
_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # hold no rows
LINE = "text"  # the only column of a source whose rows are lines of JSON
_PROMPTS = {"prompt", *SYNONYMS["prompt"], *CONVERSATIONS}
_TOO_MANY = "\0"  # name of the fields of a row of CSV that its header does not name


class Source(NamedTuple):
    dataset: Dataset
    name: str
    image_root: Path
    # JSON and CSV are read line by line instead of by datasets' own loaders: those guess one type for a column of a
    # whole file, so that one odd row spoils it ("007" and 7 become 7 and 7) or stops the loading.
    is_json: bool = False


def read_source(source: str | os.PathLike | Dataset | DatasetDict, split: str) -> Source:
    if isinstance(source, DatasetDict):
        if split not in source:
            raise DataError(f"the DatasetDict has no split {split!r}; it has {list(source)}")
        source = source[split]
    if isinstance(source, Dataset):
        if source.format["type"] == "custom":
            raise DataError("the dataset has a transform, which would be lost; apply it with map instead")
        return Source(source.with_format(None), "rows", Path.cwd())
    if not isinstance(source, str | os.PathLike):
        raise DataError(f"cannot load rows from a {type(source).__name__}. {_ACCEPTED}")
    if not str(source):
        raise DataError(f"the source is empty, {source!r}. {_ACCEPTED}")
    path = Path(source).expanduser()
    saved = ({"state.json", "dataset_info.json"}, {"dataset_dict.json"})  # files that save_to_disk writes
    if any(all((path / file).is_file() for file in files) for files in saved):
        return read_source(load_from_disk(path), split)._replace(name=path.name, image_root=path)
    if path.is_file():
        return _read_files([path], path.stem)
    if path.is_dir():
        return _read_folder(path, split)
    name, _, config = str(source).rpartition(":") if ":" in str(source) else (str(source), "", "")
    if path.suffix in SUFFIXES or is_missing_path(name):  # the Hub need not be asked
        raise DataError(f"{str(source)!r} does not exist here (looked from {Path.cwd()}). {_ACCEPTED}")
    root = Path(name) if Path(name).is_dir() else Path.cwd()
    return Source(_load(str(source), name, config or None, split=split), str(source), root)


def read_completions(source: str, split: str = "train") -> Dataset:
    """Read rows with completions, such as this package's commands write, unchanged.

    Raises:
        DataError: the source cannot be read, or its rows have no `prompt` or no `completion`.
    """
    read = read_source(source, split)
    columns = read.dataset.column_names
    if read.is_json or not {"prompt", "completion"} <= set(columns):
        content = "lines of JSON or CSV" if read.is_json else f"the columns {columns}"
        raise DataError(
            f"{source} has {content}, expected a parquet file, a folder of them or a Hub id, with `prompt` and "
            "`completion` among the columns"
        )
    return read.dataset


def _read_folder(folder: Path, split: str) -> Source:
    """Read an image folder, a folder of JSON or CSV, or one in datasets' own layout or with a card of its files."""
    for inner in [folder / split, folder] if split == "train" else [folder / split]:
        for suffix in (".jsonl", ".csv", ".parquet"):
            metadata = inner / f"metadata{suffix}"
            if metadata.is_file():
                return _read_files([metadata], folder.name)
    card = folder / "README.md"
    if card.is_file() and "data_files" in card.read_text(encoding="utf-8"):
        return _read_by_card(folder, split)
    _refuse_mixed(folder)
    for suffix in _LINES:
        files = sorted(folder.glob(f"*{suffix}"))
        if files and not any(folder.rglob("*.parquet")):
            return _read_files(_files_of_split(files, split), folder.name)
    return Source(_load(str(folder), str(folder), split=split), folder.name, folder)


def _read_by_card(folder: Path, split: str) -> Source:
    """Read the files that the data set's card names for the split, whatever they are called."""
    by_split = _load(str(folder), str(folder), loader=load_dataset_builder).config.data_files or {}
    files = [Path(file) for file in by_split.get(split, ())]
    if len({file.suffix for file in files}) == 1 and files[0].suffix in _LINES:
        return _read_files(files, folder.name)._replace(image_root=folder)
    return Source(_load(str(folder), str(folder), split=split), folder.name, folder)


def _refuse_mixed(folder: Path) -> None:
    """Refuse files of several kinds: only one kind would be read, silently."""
    kinds: dict[str, list[str]] = {}
    for file in sorted({*folder.glob("*"), *folder.rglob("*.parquet")}):
        if file.suffix in SUFFIXES and file.name not in _ABOUT:
            kinds.setdefault(file.suffix, []).append(str(file.relative_to(folder)))
    if len(kinds) > 1:
        named = [
            f"{len(files)} {kind} ({', '.join(files[:3] + ['…'] * (len(files) > 3))})" for kind, files in kinds.items()
        ]
        raise DataError(
            f"{str(folder)!r} holds files of several kinds, expected one kind: {'; '.join(named)}. Name one of the "
            "files, or put each kind into a folder of its own."
        )


def _files_of_split(files: list[Path], split: str) -> list[Path]:
    """Select the files named after the split (`test-1.jsonl`, `math_test.jsonl`), or for "train" those after none."""
    splits = {"train", split, *_OTHER_SPLITS}
    split_of = {}
    for file in files:
        words = re.split(r"[-_. ]", file.stem.lower())
        words += [word.strip(string.digits) for word in words]  # `test2.jsonl` is of the split test2, or else of test
        split_of[file] = next(filter(splits.__contains__, words), "")
    named = [file for file in files if split_of[file] == split]
    if split == "train":
        of_none = [file for file in files if not split_of[file]]
        if named and of_none:
            logger.warning(
                f"{files[0].parent}: {', '.join(file.name for file in named)} are read for the split 'train'; "
                f"{', '.join(file.name for file in of_none)} are left out, as their names say no split. Put "
                "'train' into them to read them, too."
            )
        named = named or of_none
    if not named:
        raise DataError(f"{files[0].parent} has no file for the split {split!r}; it has {[f.name for f in files]}")
    return named


def _read_files(files: list[Path], name: str) -> Source:
    """Read files of one kind and one folder."""
    suffix, folder = files[0].suffix, files[0].parent
    if suffix not in SUFFIXES:
        raise DataError(f"{str(files[0])!r} has an unknown ending. {_ACCEPTED}")
    if not any(file.stat().st_size for file in files):
        raise DataError(f"{str(files[0])!r} is empty; expected rows")
    paths = [str(file) for file in files]
    if suffix == ".parquet":
        return Source(_load(name, "parquet", data_files=paths, split="train"), name, folder)
    if suffix == ".jsonl":
        lines = _load(name, "text", data_files=paths, split="train", encoding="utf-8-sig")
    else:
        read = _read_json if suffix == ".json" else _read_csv
        lines = Dataset.from_dict({LINE: [line for file in files for line in read(file)]})
    if suffix == ".jsonl" and next((line for line in lines[LINE] if line.strip()), "").lstrip().startswith("["):
        raise DataError(
            f"{str(files[0])!r} holds an array of JSON, expected an object in each line. Fix: rename it to "
            f"{files[0].stem}.json."
        )
    filled = [index for index, line in enumerate(lines[LINE]) if line.strip()]
    return Source(lines if len(filled) == len(lines) else lines.select(filled), name, folder, is_json=True)


def _load(source_name: str, *args: Any, loader: Callable[..., Any] = load_dataset, **kwargs: Any) -> Any:
    try:
        return loader(*args, **kwargs)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise DataError(f"{source_name!r} is not in UTF-8 ({error.__cause__}). Fix: save it as UTF-8.") from error
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        raise DataError(f"could not load {source_name!r}: {error}{cause}\n{_ACCEPTED}") from error


def _read_json(file: Path) -> list[str]:
    """Return JSON lines from a file with one array of objects, one object that holds them, or JSON lines."""
    text = _read_utf8(file)
    if not text.lstrip().startswith("["):
        rows = _rows_of_object(text, file)
        return text.split("\n") if rows is None else [json.dumps(row) for row in rows]
    try:
        rows = parse_unique(text)
    except ValueError as error:
        raise DataError(f"{str(file)!r} is not valid JSON: {error}") from error
    return [json.dumps(row) for row in rows]  # in ASCII: half a surrogate pair is its row's problem


def _rows_of_object(text: str, file: Path) -> list[Any] | None:
    """The rows of a file that is one object; None if it is none, as a file of JSON lines.

    They are its only list of questions, as DocVQA has under `data` and CLEVR under `questions`; or its values, which
    are questions by their ids, as in ScienceQA and MathVista. Any other object is a row.
    """
    try:
        value = parse_unique(text)
    except json.JSONDecodeError:
        return None
    except ValueError as error:
        raise DataError(f"{str(file)!r} is not valid JSON: {error}") from error
    if isinstance(value, dict) and _are_columns(value):
        fix = f'with pandas df.to_json("{file.stem}.jsonl", orient="records", lines=True)'
        raise DataError(f"{str(file)!r} holds a table by its columns, expected rows. Fix: write objects, {fix}")
    if not isinstance(value, dict) or not _PROMPTS.isdisjoint(value):
        return [value]
    if value and _are_questions([*value.values()]):
        return [{"id": key, **row} for key, row in value.items()]
    lists = [key for key, inner in value.items() if isinstance(inner, list) and _are_questions(inner)]
    others = {key: inner for key, inner in value.items() if key not in lists}
    has_media = unseen_media(others, [], fix=str) is not None  # several questions about one image are a row
    return list(value[lists[0]]) if len(lists) == 1 and not has_media else [value]


def _are_columns(table: dict[str, Any]) -> bool:
    """Whether an object is a table by columns: as pandas' `to_json` writes it, its "split", or a list for each."""
    cells = [*table.values()]
    if {"columns", "index", "data"} == {*table}:
        return True
    if len(cells) < 2 or not all(cells):
        return False
    if all(isinstance(cell, dict) for cell in cells):
        return all([*cell] == [str(row) for row in range(len(cell))] for cell in cells)
    lists = all(isinstance(cell, list) for cell in cells) and len({len(cell) for cell in cells}) == 1
    return lists and not any(isinstance(one, dict) for cell in cells for one in cell)


def _are_questions(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(one, dict) and not _PROMPTS.isdisjoint(one) for one in values)


def _read_csv(file: Path) -> list[str]:
    """Return JSON lines from a CSV file with a header, or a TSV file, with tabs; all values are strings.

    Where Windows writes decimal commas, Excel separates the fields of CSV by semicolons.
    """
    text = _read_utf8(file)
    limit = csv.field_size_limit(max(len(text), 1))  # by default 131,072 characters, fewer than an image in base64 has
    try:
        header = text.partition("\n")[0]
        commas = ";" if ";" in header and "," not in header else ","
        separator = "\t" if file.suffix == ".tsv" else commas
        reader = csv.DictReader(io.StringIO(text, newline=""), restkey=_TOO_MANY, delimiter=separator)
        if twice := sorted(name for name, count in Counter(reader.fieldnames or ()).items() if count > 1):
            raise DataError(f"{str(file)!r} has several columns of the name {twice[0]!r}; rename all but one")
        return [json.dumps(row, ensure_ascii=False) for row in reader]
    finally:
        csv.field_size_limit(limit)


def _read_utf8(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(file)!r} is not in UTF-8 ({error}). Fix: save it as UTF-8.") from error


def undecoded(dataset: Dataset) -> Dataset:
    """Make columns of images give the stored {"bytes", "path"} instead of PIL images."""
    for column, feature in dataset.features.items():
        if (stored := _stored(feature)) != feature:
            dataset = dataset.cast_column(column, stored)
    return dataset


def _stored(feature: Any) -> Any:
    """A feature whose media, however deep, are not decoded; itself if it has none."""
    if isinstance(feature, Image | Audio | Video):
        return type(feature)(decode=False)
    if isinstance(feature, List | LargeList):
        inner = _stored(feature.feature)
        return feature if inner == feature.feature else type(feature)(inner)
    return {name: _stored(inner) for name, inner in feature.items()} if isinstance(feature, dict) else feature


def parse_line(line: str) -> dict[str, Any]:
    try:
        row = parse_unique(line)
    except ValueError as error:
        raise RefusedValue("line is not JSON", f"{error}; the line begins {line[:60]!r}") from error
    if not isinstance(row, dict):
        raise RefusedValue("line is no object", f'expected {{"column": value, …}}; the line begins {line[:60]!r}')
    if _TOO_MANY in row:
        fields, columns = len(row) - 1 + len(row[_TOO_MANY]), len(row) - 1
        message = f"the row has {fields} fields and the header {columns}; put text with a separator in quotation marks"
        raise RefusedValue("too many fields", message)
    if "\\ud" in line.lower():
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            message = f"half a surrogate pair ({error.object[error.start]!r}) is no character; write the row again"
            raise RefusedValue("line is not Unicode", message) from error
    return row


def parsed_lines(lines: Dataset) -> Iterable[dict[str, Any]]:
    """Yield the parsable lines; `_check_json_line` reports the others."""
    for line in lines[LINE]:
        try:
            yield parse_line(line)
        except RefusedValue:
            continue


def json_columns(lines: Dataset, source_name: str) -> dict[str, dict[str, None]]:
    """The columns that any line has, each with the fields of its records, in order."""
    columns: dict[str, dict[str, None]] = {}
    for row in parsed_lines(lines):
        for column, value in row.items():
            fields = columns.setdefault(column, {})
            if isinstance(value, dict):
                fields.update(dict.fromkeys(value))
    if not columns:
        first, fix = lines[0][LINE], ""
        try:
            parse_line(first)
        except RefusedValue as refused:
            if refused.reason == "too many fields":
                raise DataError(f"{source_name}: no row can be read, and of the first {refused}") from refused
            cause = refused.__cause__
            if first.lstrip().startswith("{") and isinstance(cause, json.JSONDecodeError):
                is_cut = cause.pos >= len(first.rstrip())
                fix = ". Fix: rename it to .json, if its lines are one object" if is_cut else f" ({cause})"
        raise DataError(f"{source_name}: no line is a JSON object; the first begins {first[:60]!r}{fix}")
    return columns


def json_features(lines: Dataset, keep: list[str]) -> dict[str, Any]:
    """Infer the types of the kept columns; mixed types in one column are an error."""
    features = {}
    for column in keep:
        values = [row.get(column) for row in parsed_lines(lines)]
        try:
            schema = pa.schema({column: pa.array(values).type})
        except pa.ArrowException as error:
            raise DataError(f"cannot keep the column {column!r}, it has values of different types: {error}") from error
        features[column] = Features.from_arrow_schema(schema)[column]
    return features
