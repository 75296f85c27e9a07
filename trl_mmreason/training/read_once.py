"""Read the rows of a rollout once, though TRL asks for them many times.

TRL's sampler repeats a row for each generation of its group, and a whole generation batch for each micro-batch that is
trained on it, of which only the first is used. `datasets` decodes the images each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import datasets
import torch
from transformers import Trainer

from ..data.images import with_plain_images

PLACE = "_place_in_data"
"""Column for the place of a row in its data set."""


def numbered(rows: datasets.Dataset, place: int) -> dict[str, Any]:
    """A row that knows its place."""
    return {**with_plain_images(rows[place]), PLACE: place}


class RowsReadOnce(torch.utils.data.Dataset):
    """Rows of a data set, each read once a batch; of equal batches in a row only the first is read.

    Equal rows share their images, as they have one prompt. With a random transform of the data set a group gets one
    outcome of it.

    Args:
        numbered: whether each row gets a column with its place.
        kept: batches that are kept until others have been read.
    """

    def __init__(self, rows: datasets.Dataset, *, numbered: bool = False, kept: int = 1) -> None:
        self.rows, self.numbered, self.kept = rows, numbered, kept
        self._batches: dict[tuple[int, ...], list[dict[str, Any]]] = {}  # places → rows, those read last at the end

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        """The rows at these places; torch's DataLoader asks for a batch so."""
        if (key := tuple(places)) not in self._batches:
            while len(self._batches) >= self.kept:
                del self._batches[next(iter(self._batches))]
            distinct = list(dict.fromkeys(places))
            rows = map(with_plain_images, self.rows.__getitems__(distinct))
            read = dict(zip(distinct, rows, strict=True))
            if self.numbered:
                read = {place: {**row, PLACE: place} for place, row in read.items()}
            self._batches[key] = [read[place] for place in places]
        return [dict(row) for row in self._batches[key]]


class PlacesInOrder:
    """The rows of each rollout, as numbers of rows of the data set, over all epochs.

    Args:
        sampler: TRL's, not iterated yet.
        rows: of a rollout, over all processes.
    """

    def __init__(self, sampler: Any, rows: int) -> None:
        self._sampler, self._rows = sampler, rows
        sampler.repeat_count = 1  # a rollout comes once here, not once a micro-batch
        self._epoch: Iterator[int] = iter(())
        self._next = 0

    def of(self, rollout: int) -> list[int]:
        """The rows of a rollout, from 0 on; rollouts are asked for in order."""
        if rollout < self._next:
            raise ValueError(f"PlacesInOrder: rollout {rollout} was asked for after rollout {self._next - 1}")
        places: list[int] = []
        while self._next <= rollout:
            places = list(islice(self._epoch, self._rows))
            if not places:
                self._epoch = iter(self._sampler)  # draws the order of the next epoch
                continue
            self._next += 1
        return places


class RowsOfRolloutsMixin(Trainer):
    """For a `GRPOTrainer`: reads each row once, and goes on in a later epoch where a resumed run stopped."""

    _train_sampler: Any = None  # TRL's; `None` for a stream
    _train_rows: RowsReadOnce
    _places: PlacesInOrder

    def _get_dataloader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        rows = dataset
        if isinstance(dataset, datasets.Dataset):
            training = kwargs.get("is_training", False)
            ahead = training and getattr(self.args, "generate_ahead", False)
            numbered = bool(training and getattr(self.args, "oversampling", 0))
            rows = RowsReadOnce(dataset, numbered=numbered, kept=2 if ahead else 1)
            if ahead:
                self._train_rows = rows
        return super()._get_dataloader(rows, *args, **kwargs)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self.args, "generate_ahead", False):
            sampler = super()._get_train_sampler(*args, **kwargs)
            self._places = PlacesInOrder(sampler, self.args.generation_batch_size)
        self._train_sampler = super()._get_train_sampler(*args, **kwargs)
        return self._train_sampler

    def rows_of_rollout(self, rollout: int) -> list[dict[str, Any]]:
        """With `generate_ahead`: the rows that the data loader will give this process for a rollout, from 0 on."""
        size = self.args.generation_batch_size // self.accelerator.num_processes
        first = self.accelerator.process_index * size
        return self._train_rows.__getitems__(self._places.of(rollout)[first : first + size])

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The sampler draws the order of each epoch from a generator of its own, which a resumed run begins anew.
        if kwargs["epoch"] == kwargs["epochs_trained"] and getattr(self._train_sampler, "shuffle", False):
            for _ in range(kwargs["epoch"]):
                torch.randperm(self._train_sampler.num_samples, generator=self._train_sampler.generator)
        super()._run_epoch(*args, **kwargs)
