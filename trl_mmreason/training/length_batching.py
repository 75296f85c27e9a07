"""Length batching: sort the rows of an optimizer step by length, so that micro-batches have less padding to compute.

`batches_by_length` is the rule for rollouts (`training/padding.py`) and for supervised rows (`LengthBatchingMixin`).
The length of a supervised row is unknown before it is collated, as an image takes as many tokens as it has patches. So
the batches of an optimizer step are taken apart and joined again. The data loader gives whole batches all the same: its
workers hand over each tensor as an open file, of which there may not be many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import pad
from transformers import Trainer

from ..generation.batch import TOKEN_FIELDS
from ..generation.image_fields import concatenate

ROW_SIZES = "row_sizes"
"""Entry of a batch: field → (B,), how many entries of the dimension that counts rows are those of each row."""

Row = dict[str, Tensor]
"""A batch of one row."""


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Row numbers sorted by length, longest first; equally long rows keep their order."""
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])


def batches_by_length(lengths: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Row numbers of micro-batches of these sizes, the longest rows first.

    Example:
        >>> batches_by_length([3, 9, 4, 8, 2], [2, 2, 1])
        [[1, 3], [2, 0], [4]]
    """
    order = iter(longest_first(lengths))
    return [list(islice(order, size)) for size in sizes]


@dataclass(frozen=True)
class Layout:
    """How a collator pads.

    Attributes:
        pad_token_id: padding of `input_ids`.
        side: where tokens are padded.
        by_token: field with a value for each token, beside a model's inputs → its padding.
        others: field of other values, of which rows may have more or fewer → its padding, on the right; 0 by default.
        axes: field → the dimension along which rows are joined; the first by default (`image_axes`).
    """

    pad_token_id: int
    side: Literal["left", "right"] = "right"
    by_token: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)

    def widened(self, name: str, value: Tensor, tokens: int) -> Tensor:
        """A field of a row, padded to so many tokens if it has a value for each."""
        if not self._has_tokens(name):
            return value
        padding = self.pad_token_id if name == "input_ids" else self.by_token.get(name, 0)
        missing = tokens - value.shape[1]
        return pad(value, (missing, 0) if self.side == "left" else (0, missing), value=padding)

    def cut(self, name: str, value: Tensor, tokens: int) -> Tensor:
        """The opposite."""
        if not self._has_tokens(name):
            return value
        return value[:, -tokens:] if self.side == "left" else value[:, :tokens]

    def _has_tokens(self, name: str) -> bool:
        return name in TOKEN_FIELDS or name in self.by_token


def collate_rows(collate: Callable[[list[Any]], Mapping[str, Tensor]], layout: Layout, rows: Sequence[Any]) -> Any:
    """Collate rows into a batch that can be taken apart: what `collate` makes of them, and `ROW_SIZES`."""
    alone = [dict(collate([row])) for row in rows]
    batch = join_rows(alone, layout)
    sizes = {
        name: torch.tensor([row[name].shape[layout.axes.get(name, 0)] if name in row else 0 for row in alone])
        for name in batch
    }
    return {**batch, ROW_SIZES: sizes}


def join_rows(rows: Sequence[Row], layout: Layout) -> dict[str, Tensor]:
    """Join rows into one batch; what some of them lack, as images, is that of the others."""
    tokens = max(row["input_ids"].shape[1] for row in rows)

    def join(name: str) -> Tensor:
        values = [layout.widened(name, row[name], tokens) for row in rows if name in row]
        return concatenate(values, layout.others.get(name, 0), layout.axes.get(name, 0))

    return {name: join(name) for name in dict.fromkeys(name for row in rows for name in row)}


def split_rows(batch: Mapping[str, Any], layout: Layout) -> list[Row]:
    """Take a batch of `collate_rows` apart, without the padding of its tokens."""
    sizes = {name: each.tolist() for name, each in batch[ROW_SIZES].items()}
    parts = {name: batch[name].split(each, layout.axes.get(name, 0)) for name, each in sizes.items()}
    return [
        {name: layout.cut(name, part[number], tokens) for name, part in parts.items() if sizes[name][number]}
        for number, tokens in enumerate(batch["attention_mask"].sum(1).tolist())
    ]


def sort_rows(batches: Sequence[Mapping[str, Any]], layout: Layout) -> list[dict[str, Tensor]]:
    """Make as large batches of the same rows, sorted by length, longest first, from those of `collate_rows`."""
    parts = [split_rows(batch, layout) for batch in batches]
    rows = [row for part in parts for row in part]
    numbers = batches_by_length([row["input_ids"].shape[1] for row in rows], [len(part) for part in parts])
    return [join_rows([rows[number] for number in batch], layout) for batch in numbers]


class LengthBatchingMixin(Trainer):
    """Sort the rows of an optimizer step by length where the update stays the same; a base before `SFTTrainer`."""

    data_collator: Any

    def batch_layout(self) -> Layout | None:
        """How `data_collator`, which gives tensors alone, pads; `None` leaves rows as they come."""
        return getattr(self.data_collator, "layout", None)

    def get_train_dataloader(self) -> Any:
        """As `Trainer`'s; where rows are sorted, a batch also says how it is taken apart."""
        layout = self.batch_layout()
        if layout is None or not self._sorts_rows():
            return super().get_train_dataloader()
        collate, self.data_collator = self.data_collator, partial(collate_rows, self.data_collator, layout)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = collate

    def get_batch_samples(self, *args: Any) -> tuple[list[Any], Any]:
        """The micro-batches of an optimizer step, sorted by length, longest rows first, and the number of labels."""
        batches, items = super().get_batch_samples(*args)
        layout = self.batch_layout()
        if layout is None or not batches or ROW_SIZES not in batches[0]:
            return batches, items
        return sort_rows(batches, layout), items

    def _sorts_rows(self) -> bool:
        """Whether a micro-batch has padding to save, and the loss is a sum over rows, whichever share a micro-batch."""
        padded = self.args.train_batch_size > 1 and self.args.gradient_accumulation_steps > 1
        # A subclass whose loss is a mean over the micro-batch says so to `Trainer` by `loss_is_scaled_for_ga`.
        averaged = self.aux_loss_enabled or getattr(self, "loss_is_scaled_for_ga", None) is False
        adds_up = self.compute_loss_func is None and not averaged
        # That strategy makes micro-batches of different sizes, and `dispatch_batches` cuts batches itself.
        as_loaded = self.args.train_sampling_strategy == "batch_rebalance" or self.accelerator.dispatch_batches
        return padded and adds_up and isinstance(self.train_dataset, Dataset) and not as_loaded
