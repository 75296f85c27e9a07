"""Read a benchmark's rows from the Hub, a copy of its repository, a file, or a loaded dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, concatenate_datasets, get_dataset_config_names, load_dataset
from datasets.exceptions import DatasetsError

from ...data.folders import is_missing_path
from ...data.row_sources import LINE, Source, json_columns, read_source, undecoded
from ...data.rows import DataError
from ...data.user_text import parse_unique
from .adapter import Benchmark, BenchmarkError

_LOADING_ERRORS = (OSError, ValueError, RuntimeError, DatasetsError)


def read_table(benchmark: Benchmark, source: Any, split: str, rows: int) -> Source:
    """Read the stored rows, images not decoded, and check that all needed columns are there.

    Args:
        source: None for the Hub, or for drawing the miniature; a Hub id, a folder, a file, a Dataset or a DatasetDict.
        split: one, or several joined by "+", of a source that has splits.
        rows: how many to draw of what is drawn.

    Raises:
        BenchmarkError: it cannot be read, or lacks a split, a configuration or a column.
    """
    table = _open(benchmark, source, split, rows)
    present = json_columns(table.dataset, table.name) if table.is_json else table.dataset.column_names
    for column in benchmark.columns:
        names = (column,) if isinstance(column, str) else column
        if not any(name in present for name in names):
            missing = " or ".join(repr(name) for name in names)
            raise BenchmarkError(
                f"{benchmark.name}: {table.name} has no column {missing}; it has {list(present)}. Expected the columns "
                f"as published at {benchmark.source}"
            )
    return table if table.is_json else table._replace(dataset=undecoded(table.dataset))


def _open(benchmark: Benchmark, source: Any, split: str, rows: int) -> Source:
    if source is None and benchmark.draw is not None:
        return Source(benchmark.draw(split, rows), "drawn rows", Path.cwd())
    if source is None and not benchmark.hub:
        raise BenchmarkError(f"{benchmark.name} cannot be loaded from the Hub. {_where(benchmark)}")
    if source is None:
        return _repository(benchmark, benchmark.hub, split)
    if isinstance(source, DatasetDict):
        splits = split.split("+")
        if missing := [each for each in splits if each not in source]:
            there = f"it has {list(source)}"
            raise BenchmarkError(f"{benchmark.name}: the DatasetDict has no split {missing[0]!r}; {there}")
        return Source(concatenate_datasets([source[each] for each in splits]), "the DatasetDict", Path.cwd())
    if isinstance(source, Dataset):
        return _checked(benchmark, source, split)
    if not isinstance(source, str | os.PathLike):
        raise BenchmarkError(f"{benchmark.name}: cannot load rows from a {type(source).__name__}. {_where(benchmark)}")
    if is_missing_path(str(source)):
        raise BenchmarkError(f"{benchmark.name}: {str(source)!r} does not exist here. {_where(benchmark)}")
    path = Path(source).expanduser()
    if path.is_file():
        return _keyed_rows(path) or _checked(benchmark, path, split)
    if path.is_dir() and not any(path.rglob("*.parquet")):
        return _checked(benchmark, path, split)
    return _repository(benchmark, str(path if path.is_dir() else source), split)


def _checked(benchmark: Benchmark, source: Path | Dataset, split: str) -> Source:
    try:
        return read_source(source, split)
    except DataError as error:
        raise BenchmarkError(f"{benchmark.name}: {error}\n{_where(benchmark)}") from error


def _keyed_rows(path: Path) -> Source | None:
    """Read a .json file of one object, name → row, as MathVista and LogicVista are published."""
    if path.suffix != ".json":
        return None
    try:
        rows = parse_unique(path.read_text(encoding="utf-8-sig"))
    except ValueError:
        return None  # lines of JSON, broken, or with a name twice: `read_source` says where
    if not isinstance(rows, dict) or not rows or not all(isinstance(row, dict) for row in rows.values()):
        return None
    lines = Dataset.from_dict({LINE: [json.dumps(row, ensure_ascii=False) for row in rows.values()]})
    return Source(lines, path.stem, path.parent, is_json=True)


def _repository(benchmark: Benchmark, path: str, split: str) -> Source:
    """Read and concatenate all configurations and splits of a Hub repository, or of a copy in a folder."""
    try:
        parts = [
            _load_part(benchmark, place, config, part)
            for place, config in _configurations(benchmark, path)
            for part in split.split("+")
        ]
        dataset = concatenate_datasets(parts)
    except _LOADING_ERRORS as error:
        if isinstance(error, BenchmarkError):
            raise
        raise BenchmarkError(f"{benchmark.name}: could not load {path!r}: {error}\n{_where(benchmark)}") from error
    folder = Path(path)
    return Source(dataset, path, folder if folder.is_dir() else Path.cwd())


def _load_part(benchmark: Benchmark, path: str, config: str | None, split: str) -> Dataset:
    try:
        return load_dataset(path, config, split=split)
    except ValueError as error:
        if "split" not in str(error):
            raise
        raise BenchmarkError(f"{benchmark.name}: {path!r} has no split {split!r}: {error}") from error


def _configurations(benchmark: Benchmark, path: str) -> list[tuple[str, str | None]]:
    """Yield (path, configuration) of each part to load."""
    configs = list(benchmark.configs)
    if configs and Path(path).is_dir() and any((Path(path) / config).is_dir() for config in configs):
        _check_complete(benchmark, path, [config for config in configs if not (Path(path) / config).is_dir()])
        if not (Path(path) / "README.md").is_file():
            return [(str(Path(path) / config), None) for config in configs]
    present = get_dataset_config_names(path)
    if not configs or (len(present) == 1 and present[0] not in configs):  # a copy with all of it in one
        return [(path, present[0] if len(present) == 1 else None)]
    _check_complete(benchmark, path, [config for config in configs if config not in present], present)
    return [(path, config) for config in configs]


def _check_complete(benchmark: Benchmark, path: str, missing: Sequence[str], present: Sequence[str] = ()) -> None:
    """Refuse an incomplete copy of a benchmark."""
    if missing:
        available = f"; it has {list(present)}" if present else ""
        raise BenchmarkError(f"{benchmark.name}: {path!r} lacks the configurations {list(missing)}{available}")


def _where(benchmark: Benchmark) -> str:
    return (
        f"The data are published at {benchmark.source}. Fetch them where there is network, and give the copy as "
        "source: a folder of the parquet files, one .parquet file, or a .json or .jsonl file with image_root, the "
        "folder that its images start from."
    )
