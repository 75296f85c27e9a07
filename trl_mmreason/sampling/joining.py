"""Put what was made of some rows beside these rows, pictures included."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import Dataset, Features, concatenate_datasets

ROWS_A_BATCH = 64  # that are in memory at once when copied; a row may hold megabytes of pictures


def join_source_columns(made: Dataset, rows: Dataset, positions: Sequence[int], columns: Sequence[str]) -> Dataset:
    """Join what was made of some rows with those rows, copied as they are stored, pictures undecoded.

    Args:
        made: one row a position.
        rows: what it was made of.
        positions: in `rows`, in any order and with repetitions.
        columns: the columns of the result. What `made` lacks is copied from `rows`; what neither has is left out.
    """
    copied = rows.with_format(None).select_columns(
        [column for column in columns if column in rows.column_names and column not in made.column_names]
    )
    order = [column for column in columns if column in (*made.column_names, *copied.column_names)]
    if not copied.column_names:
        return made.select_columns(order)
    if not positions:  # concatenating nothing would lose columns
        features = {**made.features, **copied.features}
        return Dataset.from_dict({column: [] for column in order}, features=Features({c: features[c] for c in order}))
    copied = copied.select(positions).flatten_indices(writer_batch_size=ROWS_A_BATCH)
    return concatenate_datasets([made, copied], axis=1).select_columns(order)
