"""Do every unit of work once, however often the run is killed and however many processes share it.

    def answer(units):
        requests = [Request(row["prompt"], row["images"], seed=seed_of(0, row["id"], index)) for row, index in units]
        …
        return [{"text": "…", "finish_reason": "stop"}, Failure("the picture is too large"), …]

    with Store("runs/answers.sqlite") as store:
        summary = run(store, "first answers", rows, answer, settings=engine.settings, n=8)
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from .engine import Failure
from .progress import Progress, is_truncated
from .store import Record, Store, Unit

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Summary", "run"]

logger = logging.getLogger(__name__)

Work = Callable[[list[tuple[Any, int]]], "list[dict[str, Any] | Failure]"]

# An engine counts as gone when at least so many units, over two batches or more, raised one after the other.
BREAKDOWN_UNITS = 8
FAILURES_LISTED = 20


class Summary(NamedTuple):
    """How a run ended, for this process's share: total = done + skipped + failed.

    Attributes:
        total: units.
        done: by this run.
        skipped: that were done before.
        failed: in this run, or before and left alone.
        truncated: of `done`, those that ended by reaching the bound of their length.
    """

    total: int
    done: int
    skipped: int
    failed: int
    truncated: int


def run(
    store: Store,
    stage: str,
    rows: Dataset | Sequence[Mapping[str, Any]],
    work: Work,
    *,
    settings: Mapping[str, Any],
    n: int = 1,
    batch_size: int = 32,
    retries: int = 2,
    retry_failed: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    description: str | None = None,
) -> Summary:
    """Do all units of a stage that are not done yet, and save them batch by batch.

    A killed run loses the batch in flight; the same call goes on from there. Under several processes each takes every
    `world_size`-th row with all its samples, so that an engine reads its prompt and pictures once; all may share the
    file.

    A unit for which `work` returns a `Failure` is tried again behind all others. If `work` raises, the batch is tried
    again unit by unit, and only those that raise alone fail. If nothing but exceptions comes for two batches (and at
    least eight units), or from the whole run, then the engine is gone: the run raises the last one, and these units are
    tried again by the next run. KeyboardInterrupt and SystemExit end the run at once.

    Args:
        store: where results go.
        stage: of the store.
        rows: each with a unique text `id`.
        work: takes [(row, index), …] and returns for each a dict of JSON values or a `Failure`. A payload whose
            `finish_reason` is "length", or whose `finish_reasons` hold it, counts as truncated.
        settings: what determines the results (engine, decoding, prompt version …) as JSON; a stage that was begun with
            others is refused.
        n: units of a row: its samples 0 … n − 1.
        batch_size: units handed to `work` at once.
        retries: how often a unit is tried again before it is recorded as failed.
        retry_failed: whether to try those again that an earlier run recorded as failed.
        rank: of this process; by default that of accelerate's state, or of the launcher's environment, or 0.
        world_size: the number of processes, likewise.
        description: beside the progress bar; the stage by default.

    Raises:
        SettingsChanged: the stage was begun with other settings.
        StoreError: the store cannot be written to.
    """
    if n < 1 or batch_size < 1 or retries < 0:
        raise ValueError(
            f"run: got n={n}, batch_size={batch_size}, retries={retries}; expected n ≥ 1, batch_size ≥ 1, retries ≥ 0"
        )
    rank, world_size = _place(rank, world_size)
    ids = _ids(rows)
    share = [(position, Unit(ids[position], index)) for position in range(rank, len(ids), world_size) for index in range(n)]
    store.open_stage(stage, settings)
    finished = store.finished(stage)
    failed_before = store.failed(stage)
    done_before = finished.difference(failed_before)
    left_out = done_before if retry_failed else finished
    pending = deque(_Task(position, unit) for position, unit in share if unit not in left_out)
    known = {unit: reason for _, unit in share if (reason := failed_before.get(unit)) and not retry_failed}
    ...
