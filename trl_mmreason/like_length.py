"""Put rows of like length into one micro-batch of supervised training, so that less padding is computed.

Only the model's processor tells how long a row is, as a picture takes as many tokens as it has patches. So rows are
collated one by one, and what an optimizer step sees is sorted and joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from .sampling.generation import concatenate

Batch = Mapping[str, Tensor]


def one_by_one(collate: Callable[[list[Any]], Batch], rows: Sequence[Any]) -> list[Batch]:
    """Collate each row into a batch of its own."""
    return [collate([row]) for row in rows]


def sort_rows(batches: Sequence[Sequence[Batch]], padding: Mapping[str, float]) -> list[dict[str, Tensor]]:
    """Make as large batches of the same rows, sorted by length, longest first.

    Args:
        batches: micro-batches of one optimizer step, of rows as of `one_by_one`.
        padding: as for `join_rows`.
    """
    rows = sorted((row for batch in batches for row in batch), key=lambda row: -row["input_ids"].shape[1])
    ends = accumulate(len(batch) for batch in batches)
    return [join_rows(rows[end - len(batch) : end], padding) for batch, end in zip(batches, ends, strict=True)]


def join_rows(rows: Sequence[Batch], padding: Mapping[str, float]) -> dict[str, Tensor]:
    """Join batches of one row each as TRL's collator makes a batch of them, padded on the right.

    Args:
        rows: batches with `input_ids` (1, T). What has the shape of a row's `input_ids` has a value a token; if some
            rows lack it, they get the padding.
        padding: padding of these fields by name; 0 by default.
    """
    tokens = max(row["input_ids"].shape[1] for row in rows)
    names = dict.fromkeys(name for row in rows for name in row)

    def join(name: str) -> Tensor:
        values = [row[name] for row in rows if name in row]
        if not any(name in row and row[name].shape == row["input_ids"].shape for row in rows):
            return concatenate(values)
        value = padding.get(name, 0)
        values = [row[name] if name in row else values[0].new_full(row["input_ids"].shape, value) for row in rows]
        return concatenate([pad(each, (0, tokens - each.shape[1]), value=value) for each in values])

    return {name: join(name) for name in names}
