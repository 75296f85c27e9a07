"""Grade stored samples: while others are sampled, when all are there, and again where a judge was silent."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import compress, count, islice, tee
from typing import Any

from datasets import Dataset

from ..generation.patience import rank_and_size, wait_for_all
from ..generation.protocols import RowSample
from ..grading import Grader, JudgeGrader
from ..grading.grader import grader_settings
from ..grading.reward import grade_answers
from ..grading.version import grader_version
from .run import run
from .source_rows import JoinedRows
from .store import Record, Store, Unit

_MOST_WAITING = 8  # batches
TEXTS = ("id", "prompt", "answer", "choices", "category", "hint", "group", "tolerance")  # all but the images


def verdict_stage(stage: str, grader: Grader | JudgeGrader) -> str:
    """Name of the stage with this grader's verdicts on the answers of another stage."""
    return stage_beside(stage, "verdicts", _settings(grader)["grader"])


def stage_beside(stage: str, kind: str, made_by: str) -> str:
    """Name of the stage that holds verdicts or scores, `made_by` one party, of another stage's answers."""
    name = f"{kind}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"
    return name if stage == "answers" else f"{stage}-{name}"


def _settings(grader: Grader | JudgeGrader) -> dict[str, str]:
    return {"grader": f"{grader_settings(grader)} {grader_version()}"}


def unit_name(row: Mapping[str, Any], index: int) -> str:
    """Id of a sample's verdicts and scores; it contains the tolerance."""
    tolerance = row.get("tolerance")
    return f"{row['id']}#{index}" + (f" {json.dumps(tolerance, sort_keys=True)}" if tolerance else "")


def named_rows(rows: Dataset | JoinedRows) -> Dataset:
    """The columns that `unit_name` reads."""
    return rows.select_columns([name for name in ("id", "tolerance") if name in rows.column_names])


def grade_payloads(
    rows: Sequence[Mapping[str, Any]], payloads: Sequence[Mapping[str, Any]], grader: Grader | JudgeGrader
) -> list[dict[str, Any]]:
    """Grade every turn of each sample in one batch."""
    turns = [(row, turn) for row, payload in zip(rows, payloads, strict=True) for turn in payload["turns"]]
    texts = [turn.get("graded", turn["text"]) for _, turn in turns]
    verdicts = (verdict._asdict() for verdict in grade_answers(grader, [row for row, _ in turns], texts))
    fields = ({"answer": verdict.pop("extracted"), **verdict} for verdict in verdicts)
    return [{"turns": list(islice(fields, len(payload["turns"])))} for payload in payloads]


class StoredSamples(Sequence):
    """The samples of a stage as rows for grading or scoring, read on demand."""

    column_names = ("id",)

    def __init__(self, store: Store, stage: str, n: int, rows: Dataset | JoinedRows) -> None:
        self.store, self.stage, self.n, self.rows = store, stage, n, rows
        units, queried = tee((id_, index) for id_ in rows["id"][:] for index in range(n))
        held, failed = store.holds(stage, queried), store.failed(stage)
        # a byte for each sample that there may be, and the numbers of those that there are
        self._done = bytearray(has and unit not in failed for unit, has in zip(units, held, strict=True))
        self._numbers = array("q", compress(count(), self._done))
        self._row = lru_cache(maxsize=1)(rows.__getitem__)  # samples of one question follow each other

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        if place == "id":
            units = ((row, index) for row in named_rows(self.rows) for index in range(self.n))
            return [unit_name(row, index) for row, index in compress(units, self._done)]
        position, index = divmod(self._numbers[place], self.n)
        row = self._row(position)
        (record,) = self.store.find(self.stage, [(row["id"], index)])
        return {"row": row, **record.payload}

    def run(self, stage: str, work: Callable[[list[Any], list[Any]], list[dict[str, Any]]], **running: Any) -> None:
        """Store what `work` returns for rows and samples in another stage, by `run`; wait for all processes."""

        def on_units(units: list[tuple[Any, int]]) -> list[dict[str, Any]]:
            return work([unit["row"] for unit, _ in units], [unit for unit, _ in units])

        run(self.store, stage, self, on_units, **running)
        wait_for_all()


def grade_stored(samples: StoredSamples, grader: Grader | JudgeGrader, **running: Any) -> None:
    """Grade the samples without verdicts by this grader, and store the verdicts."""
    stage, work = verdict_stage(samples.stage, grader), partial(grade_payloads, grader=grader)
    samples.run(stage, work, settings=_settings(grader), description="grading", **running)


@contextmanager
def grading_meanwhile(
    store: Store, stage: str, grader: Grader | JudgeGrader
) -> Iterator[Callable[[Sequence[RowSample]], None]]:
    """Grade a batch in a thread while the engine answers the next one, if the grader runs in other processes.

    Yields a function to call with each batch before it is answered, when the previous one is in the store. The rest is
    left to `grade_stored`: the last batch, batches that came while `_MOST_WAITING` others waited, and those for which
    the grader raised.
    """
    thread, waiting, previous = ThreadPoolExecutor(1), deque[Future](), list[RowSample]()

    def grade_previous_batch(units: Sequence[RowSample]) -> None:
        while waiting and waiting[0].done():
            waiting.popleft()
        if previous and len(waiting) < _MOST_WAITING:
            waiting.append(thread.submit(_grade_batch, store, stage, grader, [*previous]))
        previous[:] = [({name: row[name] for name in TEXTS if name in row}, index) for row, index in units]

    try:
        yield grade_previous_batch if getattr(grader, "works_elsewhere", False) else lambda units: None
    finally:
        thread.shutdown(cancel_futures=True)  # where it is interrupted, too: a judge may be paid for each answer


def _grade_batch(store: Store, stage: str, grader: Grader | JudgeGrader, units: Sequence[RowSample]) -> None:
    """Grade those of these samples that are in the store, and store the verdicts."""
    stored = [(row, record) for row, index in units for record in store.find(stage, [(row["id"], index)])]
    done = [(row, record) for row, record in stored if record.status == "done"]
    verdicts = grade_payloads([row for row, _ in done], [record.payload for _, record in done], grader)
    names = [unit_name(row, record.index) for row, record in done]
    store.open_stage(verdict_stage(stage, grader), _settings(grader))
    records = [Record(name, 0, "done", verdict) for name, verdict in zip(names, verdicts, strict=True)]
    store.save(verdict_stage(stage, grader), records)


# ------------------------------------------------------------------------------------------------------ a silent judge


def forget_silence(store: Store, verdicts: str, running: Mapping[str, Any]) -> None:
    """Delete the verdicts of samples on which a judge gave no readable reply, so that it is asked again.

    They stay if the judge replied on other samples, unless `running`, the arguments of `run`, has `retry_failed`.
    """
    rank, _ = rank_and_size(running.get("rank"), running.get("world_size"))
    if rank == 0 and verdicts in store.stages():

        def graded() -> Iterator[Record]:
            return (record for record in store.records(verdicts) if record.status == "done")

        unread = [Unit(record.id, record.index) for record in graded() if _is_unread(record.payload)]
        if unread and (running.get("retry_failed") or judge_is_silent(record.payload for record in graded())):
            store.delete(verdicts, unread)
    wait_for_all()


def _is_unread(graded: Mapping[str, Any]) -> bool:
    """Whether a sample has an answer about which the judge did not reply, or not so that it can be read."""
    return any(turn["decided_by"] == "unreadable" for turn in graded["turns"])


def judge_is_silent(samples: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a judge was asked about some of these graded samples, and not one of its replies could be read.

    One question alone may itself be the reason for the silence, unless nothing else has a verdict either.
    """
    unread = read = 0
    for sample in samples:
        unread += _is_unread(sample)
        if any(turn["decided_by"] == "judge" for turn in sample["turns"]):
            return False
        read += not _is_unread(sample)
    return unread > 1 or bool(unread and not read)
