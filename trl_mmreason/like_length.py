"""Put rows of like length into one micro-batch of supervised training, so that less padding is computed.

Only the model's processor tells how long a row is, as a picture takes as many tokens as it has patches. So rows are
sorted after they are collated: what an optimizer step sees is taken apart and joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .sampling.generation import concatenate

ROW_SIZES = "row_sizes"
"""Entry of a batch: field → (B,), how many entries of its first dimension are those of each row."""

Row = dict[str, Tensor]
"""A batch of one row."""
Padding = Mapping[str, float]
"""Field with a value for each token → its padding, which is on the right."""


def collate_rows(collate: Callable[[list[Any]], Mapping[str, Tensor]], padding: Padding, rows: Sequence[Any]) -> Any:
    """Collate rows into a batch that can be taken apart: what `collate` makes of them, and `ROW_SIZES`."""
    alone = [dict(collate([row])) for row in rows]
    batch = join_rows(alone, padding)
    sizes = {name: torch.tensor([len(row[name]) if name in row else 0 for row in alone]) for name in batch}
    return {**batch, ROW_SIZES: sizes}


def join_rows(rows: Sequence[Row], padding: Padding) -> dict[str, Tensor]:
    """Join rows into one batch; what some of them lack, as pictures, is that of the others."""
    tokens = max(row["input_ids"].shape[1] for row in rows)

    def widen(name: str, value: Tensor) -> Tensor:
        return pad(value, (0, tokens - value.shape[1]), value=padding[name]) if name in padding else value

    names = dict.fromkeys(name for row in rows for name in row)
    return {name: concatenate([widen(name, row[name]) for row in rows if name in row]) for name in names}


def split_rows(batch: Mapping[str, Any], padding: Padding) -> list[Row]:
    """Take a batch of `collate_rows` apart, without its padding."""
    sizes = {name: each.tolist() for name, each in batch[ROW_SIZES].items()}
    parts = {name: batch[name].split(each) for name, each in sizes.items()}
    return [
        {
            name: part[number][:, :tokens] if name in padding else part[number]
            for name, part in parts.items()
            if sizes[name][number]
        }
        for number, tokens in enumerate(batch["attention_mask"].sum(1).tolist())
    ]


def sort_rows(batches: Sequence[Mapping[str, Any]], padding: Padding) -> list[dict[str, Tensor]]:
    """Make as large batches of the same rows, sorted by length, longest first, from those of `collate_rows`."""
    parts = [split_rows(batch, padding) for batch in batches]
    rows = sorted((row for part in parts for row in part), key=lambda row: -row["input_ids"].shape[1])
    ends = accumulate(len(part) for part in parts)
    return [join_rows(rows[end - len(part) : end], padding) for part, end in zip(parts, ends, strict=True)]
