"""Results joined with the rows of a data set that they were made of, whose images are neither copied nor decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, concatenate_datasets

ROWS_A_BATCH = 64  # in memory at once when read or copied; a row may hold megabytes of images


class JoinedRows(Sequence):
    """Rows that each belong to a row of a data set, such as the steps of its chains; images are not copied.

    Args:
        rows: the data set.
        positions: position of the row that each belongs to.
        columns: what each has of its own, `id` among it, in the place of the data set's.
    """

    def __init__(self, rows: Dataset, positions: Sequence[int], columns: Mapping[str, Sequence[Any]]) -> None:
        self.rows, self.positions, self.columns = rows, positions, columns
        self.column_names = [*columns, *(name for name in rows.column_names if name not in columns)]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, place: Any) -> Any:
        """A whole row, or one of the rows' own columns."""
        if isinstance(place, str):
            return self.columns[place]
        own = {name: values[place] for name, values in self.columns.items()}
        return {**self.rows[self.positions[place]], **own}

    def select_columns(self, names: Sequence[str]) -> Dataset:
        """Copy these columns, none of which holds images, into a new data set."""
        if not self.positions:  # concatenating nothing would lose columns
            return Dataset.from_dict({name: [] for name in names})
        own = Dataset.from_dict({name: list(self.columns[name]) for name in names if name in self.columns})
        shared = self.rows.select_columns([name for name in names if name not in self.columns]).select(self.positions)
        parts = [part for part in (shared.flatten_indices(), own) if part.column_names]
        return concatenate_datasets(parts, axis=1)


def join_source_columns(results: Dataset, rows: Dataset, positions: Sequence[int], columns: Sequence[str]) -> Dataset:
    """Join results with their source rows, copied as stored, images undecoded.

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
