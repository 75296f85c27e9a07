"""Read the rows of a rollout once, though TRL asks for them many times.

TRL's sampler repeats a row for each generation of its group, and a whole generation batch for each micro-batch that is
trained on it, of which only the first is used. `datasets` decodes the images each time.
"""

from __future__ import annotations

from typing import Any

import datasets
import torch

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
        rows: of the data set.
        numbered: whether each row gets a column with its place.
    """

    def __init__(self, rows: datasets.Dataset, *, numbered: bool = False) -> None:
        self.rows, self.numbered = rows, numbered
        self._places: list[int] = []
        self._batch: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]

    def __getitems__(self, places: list[int]) -> list[dict[str, Any]]:
        """The rows at these places; torch's DataLoader asks for a batch so."""
        if places != self._places:
            distinct = list(dict.fromkeys(places))
            rows = map(with_plain_images, self.rows.__getitems__(distinct))
            read = dict(zip(distinct, rows, strict=True))
            if self.numbered:
                read = {place: {**row, PLACE: place} for place, row in read.items()}
            self._places, self._batch = list(places), [read[place] for place in places]
        return [dict(row) for row in self._batch]


class RowsOfRolloutsMixin:
    """For a `GRPOTrainer`: reads each row once, and goes on in a later epoch where a resumed run stopped."""

    _train_sampler: Any = None  # TRL's; `None` for a stream

    def _get_dataloader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dataset, datasets.Dataset):
            oversampling = getattr(self.args, "oversampling", 0)  # type: ignore[attr-defined]
            dataset = RowsReadOnce(dataset, numbered=bool(oversampling and kwargs.get("is_training")))
        return super()._get_dataloader(dataset, *args, **kwargs)  # type: ignore[misc]

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        self._train_sampler = super()._get_train_sampler(*args, **kwargs)  # type: ignore[misc]
        return self._train_sampler

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The sampler draws the order of each epoch from a generator of its own, which a resumed run begins anew.
        if kwargs["epoch"] == kwargs["epochs_trained"] and getattr(self._train_sampler, "shuffle", False):
            for _ in range(kwargs["epoch"]):
                torch.randperm(self._train_sampler.num_samples, generator=self._train_sampler.generator)
        super()._run_epoch(*args, **kwargs)  # type: ignore[misc]
