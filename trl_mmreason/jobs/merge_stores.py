"""Merge the stores of several machines' shares into one.

merge_stores(["a/answers.sqlite", "b/answers.sqlite"], "answers.sqlite")

A killed merge leaves the inputs as they were and no output; the same call then starts afresh.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby, islice, repeat
from pathlib import Path
from typing import NamedTuple

from ..data.folders import atomic_path, sync_to_disk
from .store import Record, Store, differences

RECORDS_A_TRANSACTION = 1000
CONFLICTS_LISTED = 5


class MergeConflict(ValueError):
    """The stores cannot be merged: settings of a stage or results of a unit differ; the message names which."""


class StageCount(NamedTuple):
    """Numbers of a stage's units and failures in the merged store."""

    units: int
    failed: int


class Merged(NamedTuple):
    """Counts of each merged stage, in the order of the stages' creation."""

    stages: dict[str, StageCount]

    def __str__(self) -> str:
        return "\n".join(
            f"{stage}: {units} units" + (f", {failed} failed" if failed else "")
            for stage, (units, failed) in self.stages.items()
        )


def merge_stores(inputs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Merged:
    """Write a store with every unit of several stores, once; one that failed in some of them and is done in another is
    done.

    Args:
        inputs: paths of two stores or more, of the same work with the same settings.
        output: path of the merged store, where no file may be.

    Raises:
        ValueError: an input is missing or comes twice, or the output exists.
        MergeConflict: the stores differ in the settings of a stage or in the result of a unit.
        StoreError: a file is no store, or the output cannot be written.
    """
    paths, target = [Path(path) for path in inputs], Path(output)
    _check_paths(paths, target)
    with ExitStack() as opened, atomic_path(target) as unfinished:
        _remove(unfinished)  # left by a killed merge
        opened.callback(_remove, unfinished)
        stores = [opened.enter_context(Store(path)) for path in paths]
        with Store(unfinished) as merged:
            result = _merge(stores, merged)
    sync_to_disk(target.parent, inner=False)
    return result


def _check_paths(paths: Sequence[Path], target: Path) -> None:
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise ValueError(f"there is no store {', '.join(missing)}; expected files that a command filled")
    if len({path.resolve() for path in paths}) < max(len(paths), 2):
        raise ValueError(f"got the stores {', '.join(map(str, paths)) or 'none'}; expected two or more different files")
    if target.exists():
        raise ValueError(f"the output {target} exists already. Fix: give another path, or delete it first")


def _merge(stores: Sequence[Store], merged: Store) -> Merged:
    conflicts: list[str] = []
    counts: dict[str, StageCount] = {}
    for stage, settings in _stages(stores).items():
        merged.open_stage(stage, settings)
        holders = [store for store in stores if stage in store.stages()]
        records = _united(stage, holders, conflicts)
        units = failed = 0
        while batch := list(islice(records, RECORDS_A_TRANSACTION)):
            merged.save(stage, batch)
            units += len(batch)
            failed += sum(record.status == "failed" for record in batch)
        counts[stage] = StageCount(units, failed)
    if conflicts:
        listed = conflicts[:CONFLICTS_LISTED] + ["…"] * (len(conflicts) > CONFLICTS_LISTED)
        raise MergeConflict(
            f"{len(conflicts)} units have different results in different stores, and only one can be kept:\n"
            + "\n".join(f"  {line}" for line in listed)
            + "\nFix: leave one of these stores out, and do its share again with the settings and models of the others."
        )
    return Merged(counts)


def _stages(stores: Sequence[Store]) -> dict[str, dict]:
    """Stage → settings; raises unless all stores agree."""
    first: dict[str, tuple[Store, dict]] = {}
    for store in stores:
        for stage, settings in store.stages().items():
            origin, then = first.setdefault(stage, (store, settings))
            changed = "".join(f"  {line}\n" for line in differences(then, settings))
            if changed:
                raise MergeConflict(
                    f"stage {stage!r} has other settings in {store.path} than in {origin.path}, and results must not "
                    f"mix:\n{changed}Fix: leave one of them out, and do its share again with the settings of the other."
                )
    return {stage: settings for stage, (_, settings) in first.items()}


def _united(stage: str, stores: Sequence[Store], conflicts: list[str]) -> Iterator[Record]:
    """Yield each unit of the stage once, ordered by (id, index); append contradictions to `conflicts`."""
    streams = [zip(store.records(stage), repeat(store)) for store in stores]  # noqa: B905 - one of them is endless
    together = heapq.merge(*streams, key=lambda pair: pair[0][:2])
    for (id_, index), pairs in groupby(together, key=lambda one: one[0][:2]):
        held = list(pairs)
        done = [(record, store) for record, store in held if record.status == "done"]
        chosen, owner = (done or held)[0]
        for record, store in done[1:]:
            if record.payload != chosen.payload:
                difference = next(differences(chosen.payload, record.payload))
                conflicts.append(
                    f"stage {stage!r}, id {json.dumps(id_, ensure_ascii=False)}, sample {index}: {owner.path.name} in "
                    f"{owner.path.parent} and {store.path.name} in {store.path.parent} differ in {difference}"
                )
        yield chosen


def _remove(path: Path) -> None:
    """Delete a store's file and SQLite's journal beside it."""
    for ending in ("", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
