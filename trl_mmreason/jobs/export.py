"""Export a stage's results as a `datasets.Dataset`, for parquet, the Hub and the trainers."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Value, concatenate_datasets

from .store import EXPORTED_COLUMNS, Record, Store

logger = logging.getLogger(__name__)

RECORDS_A_BATCH = 1000  # records in memory at once, to find out the types of columns
IDS_A_BATCH = 10_000
ROWS_A_BATCH = 64  # in memory at once when read or copied; a row may hold megabytes of pictures

_UNIT_FEATURES = {"id": Value("string"), "index": Value("int64")}


def to_dataset(store: Store, stage: str, rows: Dataset | None = None) -> Dataset:
    """Return one row for every finished unit, ordered by (id, index).

    Its columns are `id`, `index`, those of `rows`, and the keys of the payloads; a key that a payload lacks is None.
    Pictures of `rows` are copied as they are stored, never decoded. Units that failed, and those whose row is not among
    `rows`, are left out with a warning. The files lie in the cache folder of the library datasets.

    Args:
        store: to read from; a run may continue meanwhile.
        stage: stage of the store.
        rows: rows with unique ids; their columns are joined to each of their samples.

    Raises:
        ValueError: a key holds values of types that no column can hold together, or is also a column of `rows`.
        StoreError: the store has no such stage, or cannot be read.
    """
    features, surveyed, fingerprint = _survey(store, stage)
    failed = len(store.failed(stage))
    if failed:
        logger.warning("%s: %d units failed and are left out", stage, failed)
    if rows is not None:
        _check_rows(rows, features)
    samples = _samples(store, stage, features, surveyed, fingerprint)
    return samples if rows is None else _joined(stage, samples, rows)


def join_source_columns(results: Dataset, rows: Dataset, positions: Sequence[int], columns: Sequence[str]) -> Dataset:
    """Join results with their source rows, copied as stored, pictures undecoded.

    Args:
        results: one row a position.
        rows: what they were made of.
        positions: positions in `rows`, in any order and with repetitions.
        columns: the columns of the result. What `results` lacks is copied from `rows`; what neither has is left out.
    """
    copied = rows.with_format(None).select_columns(
        [column for column in columns if column in rows.column_names and column not in results.column_names]
    )
    order = [column for column in columns if column in (*results.column_names, *copied.column_names)]
    if not copied.column_names:
        return results.select_columns(order)
    if not positions:  # concatenating nothing would lose columns
        return no_rows({**results.features, **copied.features}).select_columns(order)
    copied = copied.select(positions).flatten_indices(writer_batch_size=ROWS_A_BATCH)
    return concatenate_datasets([results, copied], axis=1).select_columns(order)


def no_rows(features: Mapping[str, Any]) -> Dataset:
    """Make a dataset that has these columns and no row."""
    return Dataset.from_dict({column: [] for column in features}, features=Features(features))


def _survey(store: Store, stage: str) -> tuple[Features, array[int], str]:
    """Return the common features of all payloads, the hash of each finished unit, and a fingerprint of the contents."""
    schema = pa.schema([])
    hashes = array("q")  # 8 bytes per unit: there may be many millions
    digest = hashlib.sha256()
    for batch in _batches(store.records(stage)):
        columns: dict[str, list[Any]] = {}
        for record in batch:
            hashes.append(hash((record.id, record.index)))
            digest.update(repr(record).encode())
            for key, value in record.payload.items():
                columns.setdefault(key, []).append(value)
        for key, values in columns.items():
            schema = _widened(schema, key, values, stage)
    digest.update(str(schema).encode())
    return Features({**_UNIT_FEATURES, **Features.from_arrow_schema(schema)}), hashes, digest.hexdigest()[:32]


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    done = (record for record in records if record.status == "done")
    for _, batch in groupby(enumerate(done), lambda numbered: numbered[0] // RECORDS_A_BATCH):
        yield [record for _, record in batch]


def _widened(schema: pa.Schema, key: str, values: list[Any], stage: str) -> pa.Schema:
    """Widen a schema to these values of a payload's key: an integer may become a float, None anything."""
    try:
        column = pa.schema([(key, pa.array(values).type)])
        return pa.unify_schemas([schema, column], promote_options="permissive")
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(
            f"to_dataset: the values of {key!r} in stage {stage!r} do not fit into one column ({error}); give them one "
            "type when they are made, or write them as JSON strings"
        ) from error


def _samples(store: Store, stage: str, features: Features, surveyed: array[int], fingerprint: str) -> Dataset:
    def examples() -> Iterator[dict[str, Any]]:
        """Yield the surveyed units in the same order; a parallel run may add others, of other types."""
        empty, number = dict.fromkeys(features), 0
        for id_, index, status, payload, _ in store.records(stage):
            if status == "done" and number < len(surveyed) and hash((id_, index)) == surveyed[number]:
                number += 1
                yield {**empty, "id": id_, "index": index, **payload}

    if not surveyed:
        return no_rows(features)
    # The fingerprint is of the contents: equal contents are written once, different ones never share a file.
    return Dataset.from_generator(examples, features=features, fingerprint=fingerprint)


def _check_rows(rows: Dataset, features: Features) -> None:
    if not isinstance(rows, Dataset):
        raise TypeError(
            f"to_dataset: rows is a {type(rows).__name__}; expected a Dataset (Dataset.from_list makes one)"
        )
    if "id" not in rows.column_names:
        raise ValueError(f"to_dataset: rows has the columns {rows.column_names}; expected one named 'id'")
    if len(set(rows["id"][:])) < len(rows):
        raise ValueError("to_dataset: the ids of rows are not unique; give the rows that the stage was run on")
    both = sorted((set(rows.column_names) & set(features)) - {"id"})
    if both:
        raise ValueError(
            f"to_dataset: {both} are columns of rows and of the samples; rename those of rows (rename_column) or leave "
            "them out (remove_columns)"
        )


def _joined(stage: str, samples: Dataset, rows: Dataset) -> Dataset:
    positions = {id_: position for position, id_ in enumerate(rows["id"][:])}
    row_positions = [
        positions.get(id_) for batch in samples.select_columns("id").iter(IDS_A_BATCH) for id_ in batch["id"]
    ]
    matched = [number for number, position in enumerate(row_positions) if position is not None]
    if len(matched) < len(row_positions):
        logger.warning(
            "%s: %d samples are left out, whose ids are not in rows", stage, len(row_positions) - len(matched)
        )
        samples = samples.select(matched).flatten_indices()
    rows = rows.with_format(None).remove_columns("id")
    payload_columns = [column for column in samples.column_names if column not in EXPORTED_COLUMNS]
    order = [*EXPORTED_COLUMNS, *rows.column_names, *payload_columns]
    if not matched:
        return no_rows({**samples.features, **rows.features}).select_columns(order)
    repeated = rows.select([row_positions[number] for number in matched])
    # Writes a file even if `rows` is in memory: with many samples per row its pictures might not fit there again.
    copied = repeated.map(
        batched=True,
        batch_size=ROWS_A_BATCH,
        writer_batch_size=ROWS_A_BATCH,
        features=rows.features,
        cache_file_name=str(Path(samples.cache_files[0]["filename"]).with_name(f"rows-{repeated._fingerprint}.arrow")),
        desc="Joining rows",
    )
    return concatenate_datasets([samples, copied], axis=1).select_columns(order)
