"""Process every unit of work once, across killed runs and parallel processes.

def answer(units):
    requests = [Request(row["prompt"], row["images"], seed=derive_seed(0, row["id"], index)) for row, index in units]
    …
    return [{"text": "…", "finish_reason": "stop"}, Failure("the image is too large"), …]

with Store("runs/answers.sqlite") as store:
    summary = run(store, "first answers", rows, answer, settings=engine.settings, n=8)
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tqdm.auto import tqdm

from ..generation.engine import Failure, UnsuitableEngine
from ..generation.patience import rank_and_size
from .store import Record, Store, Unit

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

Payload = dict[str, Any]
Work = Callable[[list[tuple[Any, int]]], Sequence["Payload | Failure"]]

# An engine counts as gone when at least so many units, over two batches or more, raised one after the other.
_BREAKDOWN_UNITS = 8
_FAILURES_LISTED = 20
SECONDS_PER_LINE = 60.0  # of progress, where stderr is no terminal


class Summary(NamedTuple):
    """Counts of a run in this process's share: total = done + skipped + failed.

    Attributes:
        total: all units.
        done: units done by this run.
        skipped: units done before.
        failed: units that failed in this run, or before and were left alone.
        truncated: units of `done` that reached their length limit.
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
    """Process the unfinished units of a stage, and save them batch by batch.

    A killed run loses the batch in flight; the same call resumes from there. Under several processes each takes every
    `world_size`-th row with all its samples; all may share the file.

    A unit for which `work` returns a `Failure` is tried again after all others, and by the next run if none was done.
    If `work` raises, the units of the batch are tried again one by one, and those that raise alone fail. If nothing but
    exceptions comes for two batches and eight units, or from the whole run, then the engine is gone: the run raises the
    last one, and the next run tries these units again. KeyboardInterrupt, SystemExit and `UnsuitableEngine` end the run
    at once.

    Args:
        rows: rows, each with a unique string `id`.
        work: takes [(row, index), …] and returns for each a dict of JSON values or a `Failure`. A payload whose
            `finish_reason` is "length", or whose `finish_reasons` hold it, counts as truncated.
        settings: what determines the results (engine, sampling parameters, prompt …) as JSON; a stage that has units
            of others is refused.
        n: units per row: its samples 0 … n − 1.
        batch_size: units per call of `work`.
        retries: number of retries of a unit before it is recorded as failed.
        retry_failed: whether to try those again that an earlier run recorded as failed, although others were done.
        rank: rank of this process; by default accelerate's, else the launcher's, else 0.
        world_size: number of processes, likewise.
        description: description of the progress bar; the stage by default.

    Raises:
        SettingsChanged: the stage has units of other settings.
        StoreError: the store cannot be written to.
    """
    if n < 1 or batch_size < 1 or retries < 0:
        raise ValueError(
            f"run: got n={n}, batch_size={batch_size}, retries={retries}; expected n ≥ 1, batch_size ≥ 1, retries ≥ 0"
        )
    rank, world_size = rank_and_size(rank, world_size)
    ids = unique_ids(rows)

    def share() -> Iterator[_Task]:
        for position in range(rank, len(ids), world_size):
            for index in range(n):
                yield _Task(position, Unit(ids[position], index))

    store.open_stage(stage, settings)
    # A byte a unit: there may be many millions, but few of them failed.
    finished = bytearray(store.holds(stage, (task.unit for task in share())))
    failures = store.failed(stage)
    if failures:
        places = {task.unit: place for place, task in enumerate(share()) if task.unit in failures}
        failures = {unit: failures[unit] for unit in places}
        if retry_failed or len(places) == sum(finished):
            failures = {}
            for place in places.values():
                finished[place] = False
    total, before = len(finished), sum(finished)
    skipped = before - len(failures)
    with Progress(description or stage, total, before, len(failures), quiet=rank > 0) as progress:
        runner = _Runner(store, stage, rows, work, retries, progress, failures)
        runner.do((task for task, known in zip(share(), finished, strict=True) if not known), batch_size)
    if failures:
        _warn(stage, failures, total)
    return Summary(total, progress.done, skipped, len(failures), progress.truncated)


class _Task(NamedTuple):
    position: int  # position of the row
    unit: Unit
    failures: int = 0


UnitOutcome = Payload | Failure | Exception


@dataclass
class _Runner:
    """Runs tasks through `work` and saves the results.

    Attributes:
        failures: unit → reason of those given up, here or before.
        again: tasks to try once more, after all others.
        raised: records of units that raised since `work` last returned. They are saved when it returns again: if it
            never does, the engine failed and not they.
    """

    store: Store
    stage: str
    rows: Any
    work: Work
    retries: int
    progress: Progress
    failures: dict[Unit, str]
    again: deque[_Task] = field(default_factory=deque)
    raised: list[Record] = field(default_factory=list)
    batches_raised: int = 0
    has_returned: bool = False

    def do(self, tasks: Iterator[_Task], batch_size: int) -> None:
        error: Exception | None = None
        while batch := self._next(tasks, batch_size):
            outcomes = self._outcomes(batch)
            records = self._records(batch, outcomes)
            errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            if len(errors) < len(batch):
                self._save(self.raised + records)
                self.raised, self.batches_raised, self.has_returned = [], 0, True
                continue
            error = errors[-1]
            self.raised += records
            self.batches_raised += 1
            if self.batches_raised > 1 and len(self.raised) >= _BREAKDOWN_UNITS:
                self._stop(error)
        if error is not None and len(self.raised) > 1 and not self.has_returned:
            self._stop(error)
        self._save(self.raised)

    def _next(self, tasks: Iterator[_Task], batch_size: int) -> list[_Task]:
        batch = list(islice(tasks, batch_size))
        while self.again and len(batch) < batch_size:
            batch.append(self.again.popleft())
        return batch

    def _outcomes(self, batch: list[_Task]) -> list[UnitOutcome]:
        together = self._attempt(batch)
        if not isinstance(together, Exception):
            return together
        logger.warning("%s: a batch of %d raised; its units are tried alone", self.stage, len(batch), exc_info=together)
        outcomes: list[UnitOutcome] = []
        for task in batch:
            alone = self._attempt([task])
            outcomes += [alone] if isinstance(alone, Exception) else alone
        return outcomes

    def _attempt(self, batch: list[_Task]) -> list[UnitOutcome] | Exception:
        try:  # reading a row may decode its images, and raise too
            rows = {position: self.rows[position] for position in {task.position for task in batch}}
            results = self.work([(rows[task.position], task.unit.index) for task in batch])
        except UnsuitableEngine:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a unit makes `work` raise costs that unit only
            _release(error)
            return error
        _check_results(results, len(batch))
        return list(results)

    def _records(self, batch: list[_Task], outcomes: list[UnitOutcome]) -> list[Record]:
        """Return the records of finished tasks; append the others to `again`."""
        records = []
        for task, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Failure) and task.failures < self.retries:
                self.again.append(task._replace(failures=task.failures + 1))
            elif isinstance(outcome, Failure):
                records.append(Record(*task.unit, "failed", {}, str(outcome.reason)))
            elif isinstance(outcome, Exception):
                records.append(Record(*task.unit, "failed", {}, f"{type(outcome).__name__}: {outcome}"))
            else:
                records.append(Record(*task.unit, "done", outcome))
        return records

    def _save(self, records: list[Record]) -> None:
        if not records:
            return
        self.store.save(self.stage, records)
        self.failures.update((Unit(r.id, r.index), r.reason) for r in records if r.status == "failed")
        self.progress.add(record.payload if record.status == "done" else None for record in records)

    def _stop(self, error: Exception) -> NoReturn:
        logger.error(
            "%s: the last %d units all raised, so the engine seems to be gone. They are not recorded as failed: the "
            "next run tries them again. (If they are at fault, let `work` return a Failure for them.)",
            self.stage,
            len(self.raised),
        )
        raise error


def _release(error: BaseException | None) -> None:
    """Release what the frames of an error hold, such as tensors of a batch that was too large for memory."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _check_results(results: Any, expected: int) -> None:
    if not isinstance(results, Sequence) or len(results) != expected:
        got = len(results) if isinstance(results, Sequence) else type(results).__name__
        raise TypeError(f"run: `work` got {expected} units and returned {got}; expected a list of one result a unit")
    for result in results:
        if not isinstance(result, dict | Failure):
            raise TypeError(f"run: `work` returned a {type(result).__name__} for a unit; expected a dict or a Failure")


def unique_ids(rows: Any) -> list[str]:
    """Collect the rows' ids, and refuse repeated ones.

    Raises:
        ValueError: there are none, one is no string, or one comes twice.
    """
    columns = getattr(rows, "column_names", None)
    if columns is not None and "id" not in columns:
        raise ValueError(f"run: the rows have the columns {columns}; expected one named 'id', as load_rows makes it")
    # The column alone, so that no image is decoded.
    ids = [row.get("id") for row in rows] if columns is None else rows["id"][:]
    for position, id_ in enumerate(ids):
        if not isinstance(id_, str):
            raise ValueError(f"run: row {position} has the id {id_!r} ({type(id_).__name__}); expected a string")
    if repeated := repeated_ids(ids):
        raise ValueError(f"run: ids must be unique, or results could not be told apart: {repeated}")
    return ids


def repeated_ids(ids: list[str]) -> str:
    """Those that come several times, and how often, as text; "" if all are unique."""
    # Neighbours among the sorted ones: of many millions a set would take as much memory as the ids.
    again = Counter(one for one, other in pairwise(sorted(ids)) if one == other)
    repeated = [f"{id_!r} ({times + 1} times)" for id_, times in again.items()]
    return ", ".join(repeated[:5]) + (f" and {len(repeated) - 5} more" if len(repeated) > 5 else "")


def _warn(stage: str, failures: Mapping[Unit, str], total: int) -> None:
    first = islice(failures.items(), _FAILURES_LISTED)
    listed = [f"  {id_}, sample {index}: {reason}" for (id_, index), reason in first]
    if len(failures) > _FAILURES_LISTED:
        listed.append(f"  … and {len(failures) - _FAILURES_LISTED} more")
    text = "%s: %d of %d units failed (retry_failed=True tries them again):\n%s"
    logger.warning(text, stage, len(failures), total, "\n".join(listed))


class Progress:
    """Shows count, rate, time left and the shares truncated and failed: as a bar on a terminal, else as a line per
    minute. `before` of the `total` units are finished already, of which some have failed."""

    def __init__(self, description: str, total: int, before: int, failed: int, *, quiet: bool = False) -> None:
        self.description, self.total, self.failed = description, total, failed
        self.done = self.truncated = 0
        self._before = self._finished = before
        is_bar = sys.stderr.isatty() and not quiet
        self._writes_lines = not (quiet or is_bar)
        self._bar = tqdm(
            desc=description, total=total, initial=before, unit="sample", smoothing=0.05, disable=not is_bar
        )
        self._start = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, payloads: Iterable[Payload | None]) -> None:
        """Count finished units; `None` is one that failed."""
        for payload in payloads:
            self._finished += 1
            self.failed += payload is None
            if payload is not None:
                self.done += 1
                self.truncated += "length" in (payload.get("finish_reason"), *(payload.get("finish_reasons") or ()))
        shares = f"{self.truncated / max(self.done, 1):.1%} truncated, {self.failed} failed"
        self._bar.set_postfix_str(shares, refresh=False)
        self._bar.update(self._finished - self._bar.n)
        now = time.monotonic()
        if self._writes_lines and now - self._last_line >= SECONDS_PER_LINE:
            self._last_line = now
            rate = (self._finished - self._before) / (now - self._start)
            left = tqdm.format_interval((self.total - self._finished) / rate) if rate else "?"
            count = f"{self.description}: {self._finished} of {self.total} units"
            print(f"{count}, {rate:.3g} per second, {left} left, {shares}", file=sys.stderr, flush=True)  # noqa: T201
