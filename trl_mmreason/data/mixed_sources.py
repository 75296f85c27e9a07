"""Several sources with weights, named in one YAML file, as one data set.

    sources:
      - {source: geometry.jsonl, weight: 0.7}
      - {source: FanqingM/MMK12, weight: 0.3, columns: {answer: answer}}

A source gets the share weight / Σ weights of the rows. As many rows are drawn as can be without repeating one, or
`max_rows`. Which rows of a source, and the order of all, follow from the seed alone: a resumed run has the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from datasets import Dataset, List, Value, concatenate_datasets

from .folders import is_missing_path
from .rows import TOLERANCE, DataError
from .user_text import parse_unique_yaml, suggestion

MIXTURES = (".yaml", ".yml")
_DIGITS = 10**6  # resolution of a share


@dataclass(frozen=True)
class Part:
    """One source of a mixture.

    Attributes:
        source: what `load_rows` takes; relative paths start at the YAML file's folder.
        weight: above 0.
        name: names it in ids and messages; by default the file's or folder's name, or the Hub id.
        split, columns, image_root, video_frames: arguments of `load_rows`, instead of the caller's.
    """

    source: str
    weight: float
    name: str = ""
    split: str | None = None
    columns: Mapping[str, str | None] | None = None
    image_root: str | None = None
    video_frames: int | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of `load_rows` that this source sets."""
        own = {name: getattr(self, name) for name in ("split", "columns", "image_root", "video_frames")}
        return {name: value for name, value in own.items() if value is not None}


def read_mixture(path: Path) -> list[Part]:
    """Read the file.

    Raises:
        DataError: it is not there, is not YAML, or has other keys or values than `Part`.
    """
    if not path.is_file():
        raise DataError(f"{str(path)!r} does not exist here (looked from {Path.cwd()})")
    try:
        content = parse_unique_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{str(path)!r} is not YAML: {error}") from error
    rows = content.get("sources") if isinstance(content, Mapping) and content.keys() == {"sources"} else None
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{str(path)!r} holds {str(content)[:80]!r}; expected one key, sources, with a list of sources")
    parts = [_part(row, path, number) for number, row in enumerate(rows, start=1)]
    names = [part.name for part in parts]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{str(path)!r}: two sources are called {repeated!r}; give each a name of its own with name: …")
    return parts


def _part(row: Any, path: Path, number: int) -> Part:
    where = f"{str(path)!r}, source {number}"
    known = [field.name for field in fields(Part)]
    if not isinstance(row, Mapping) or not {"source", "weight"} <= row.keys():
        raise DataError(f"{where}: got {str(row)[:80]!r}; expected at least source: … and weight: …")
    if unknown := sorted(map(str, row.keys() - set(known))):
        raise DataError(f"{where}: there is no {unknown[0]!r}{suggestion(unknown[0], known)}; expected {known}")
    part = Part(**row)
    if isinstance(part.weight, bool) or not isinstance(part.weight, int | float) or not 0 < part.weight < math.inf:
        raise DataError(f"{where}: weight is {part.weight!r}; expected a number above 0")
    source = str(part.source)
    beside = path.parent / source
    if beside.exists() or is_missing_path(source):
        source = str(beside)
    root = part.image_root and str(path.parent / Path(part.image_root).expanduser())
    return replace(part, source=source, image_root=root, name=part.name or Path(str(part.source)).stem)


def mixed(
    datasets: Mapping[str, Dataset], weights: Mapping[str, float], max_rows: int | None, seed: int | None
) -> Dataset:
    """Draw rows of each data set by its weight, and put all into one random order.

    Args:
        datasets: name → rows of `load_rows`.
        weights: name → weight.
        max_rows: number of rows to draw; by default the most that need no row twice.
        seed: seed of the draw; `None` is 0.

    Raises:
        DataError: a source has fewer rows than its share of `max_rows`, or their columns do not go together.
    """
    sizes = {name: len(rows) for name, rows in datasets.items()}
    counts = share_counts(sizes, weights, max_rows)
    if short := next((name for name, count in counts.items() if count > sizes[name]), None):
        most = sum(share_counts(sizes, weights).values())
        raise DataError(
            f"{max_rows} rows need {counts[short]} of {short!r}, which has {sizes[short]} usable ones. Fix: at most "
            f"{most} rows, or a smaller weight for it"
        )
    drawn = []
    for place, (name, rows) in enumerate(datasets.items()):
        order = np.random.default_rng([seed or 0, place]).permutation(len(rows))
        drawn.append(rows.select(sorted(order[: counts[name]].tolist())))
    together = _together(datasets, drawn)
    return together.select(np.random.default_rng([seed or 0, len(drawn)]).permutation(len(together)))


def one_after_the_other(datasets: Mapping[str, Dataset]) -> Dataset:
    """All rows of several sets, with the set's name as their category and before their ids.

    Raises:
        DataError: their columns do not go together.
    """
    parts = []
    for name, rows in datasets.items():
        columns = {"category": [name] * len(rows), "id": [f"{name}/{id_}" for id_ in rows["id"]]}
        for column, values in columns.items():
            rows = _with_column(rows, column, pa.array(values), Value("string"))
        parts.append(rows)
    return _together(datasets, parts)


def _together(names: Iterable[str], parts: list[Dataset]) -> Dataset:
    try:
        return concatenate_datasets(_alike(parts))
    except ValueError as error:
        raise DataError(f"the sources {list(names)} have columns of different types: {error}") from error


def share_counts(sizes: Mapping[str, int], weights: Mapping[str, float], total: int | None = None) -> dict[str, int]:
    """Number of rows of each part; fractions go to the largest remainders.

    Args:
        sizes: name → number of rows that a part has.
        weights: name → weight.
        total: number of rows of the whole; by default the largest for which every part has enough.
    """
    sum_of_weights = sum(weights[name] for name in sizes)
    exact = {name: Fraction(weights[name] / sum_of_weights).limit_denominator(_DIGITS) for name in sizes}
    exact = {name: max(share, Fraction(1, _DIGITS)) for name, share in exact.items()}
    exact = {name: share / sum(exact.values()) for name, share in exact.items()}
    if total is None:
        total = math.floor(min(sizes[name] / share for name, share in exact.items()))
    counts = {name: math.floor(total * share) for name, share in exact.items()}
    by_remainder = sorted(sizes, key=lambda name: counts[name] - total * exact[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _alike(parts: list[Dataset]) -> list[Dataset]:
    """Parts with the same columns: lists of answers and tolerances in all, if in any."""
    if any(isinstance(part.features.get("answer"), List) for part in parts):
        parts = [_with_answer_lists(part) for part in parts]
    if any(TOLERANCE in part.column_names for part in parts):
        none = [pa.nulls(len(part), pa.float64()) for part in parts]
        parts = [
            part if TOLERANCE in part.column_names else _with_column(part, TOLERANCE, empty, Value("float64"))
            for part, empty in zip(parts, none, strict=True)
        ]
    return [part.select_columns(parts[0].column_names) for part in parts]


def _with_answer_lists(part: Dataset) -> Dataset:
    if isinstance(part.features["answer"], List):
        return part
    answers = pa.array([[] if one is None else [one] for one in part["answer"]], pa.list_(pa.string()))
    return _with_column(part, "answer", answers, List(Value("string")))


def _with_column(rows: Dataset, name: str, values: pa.Array, feature: Any) -> Dataset:
    if name in rows.column_names:
        rows = rows.remove_columns(name)
    return rows.add_column(name, values, feature=feature)
