"""Worker processes for what needs computer algebra: each has a memory limit and a deadline for every job.

Processes, because neither a thread nor a signal handler can stop arithmetic on huge numbers. Plain child programs,
because `multiprocessing` either runs the user's script again (spawn) or is unsafe next to CUDA and threads (fork). The
parent alone decides when a job has taken too long: it waits on the workers' pipes, and kills.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 60.0
# A worker may be killed from outside while it starts; a program that cannot start fails every time.
_FAILED_STARTS = 5
# What a pipe holds on Linux; a larger job could block the parent on a worker that does not read.
_JOB_BYTES = 60_000
_LOG_BYTES = 2000


class Outcome(NamedTuple):
    """The result of one job.

    Attributes:
        correct: the decision; `None` when there is none.
        status: "decided", or why there is no decision: "size", "unreadable", "timeout", "memory", "crash" or "error".
        detail: one line for a person, empty for a decision.
    """

    correct: bool | None
    status: str
    detail: str = ""


def _environment() -> dict[str, str]:
    """The worker's environment: it imports this package and nothing from the working directory."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *inherited]),
        "PYTHONSAFEPATH": "1",
        "PYTHONHASHSEED": "0",  # the order of terms, and with it what simplification finds, is the same in every run
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


class _Worker:
    """One process, and the job it has, if any."""

    def __init__(self, command: Sequence[str]) -> None:
        # A file takes any amount of text without being read; the worker stops writing there before its first job.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `_close` closes it
        # A session of its own: Ctrl-C in the terminal is for the parent, which then kills. The working directory keeps
        # Python 3.10, which knows no PYTHONSAFEPATH, from importing out of the user's.
        self.process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=_ROOT,
            env=_environment(),
            start_new_session=True,
        )
        self.ready = False
        self.number: int | None = None
        self.index = 0
        self.due = monotonic() + _START_SECONDS
        self._unread = b""

    def give(self, number: int, index: int, line: bytes, deadline_seconds: float) -> None:
        self.number, self.index, self.due = number, index, monotonic() + deadline_seconds
        assert self.process.stdin
        # A dead worker shows by the end of its replies.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line)

    def replies(self) -> list[dict[str, Any]] | None:
        """Replies received so far, once the worker is ready; `None` if it ended."""
        assert self.process.stdout
        chunk = self.process.stdout.read(1 << 16)
        if not chunk:
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if not self.ready and b'{"ready": true}' in lines:
            del lines[: lines.index(b'{"ready": true}') + 1]
            self.ready = True
            self._log.close()
        return [json.loads(line) for line in lines] if self.ready else []

    def stop(self) -> str:
        """Kill it; return how it ended and what it wrote while starting."""
        self.process.kill()
        code = self.process.wait()
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        if not self._log.closed:
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - _LOG_BYTES))
            end += "; it wrote:\n" + self._log.read().decode(errors="replace")
        self._close()
        return end

    def forget(self) -> None:
        """In a forked process: drop the parent's worker without killing it."""
        self._close()
        self.process.returncode = 0

    def _close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        for file in (self.process.stdin, self.process.stdout, self._log):
            file.close()


class _Batch:
    """The jobs of one call, in three stages: waiting, given to a worker, and with an outcome."""

    def __init__(self, jobs: Sequence[Mapping[str, Any]], numbers: itertools.count) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.waiting: deque[int] = deque()
        self.lines: list[bytes] = []
        self.numbers: list[int] = []
        self._lost: set[int] = set()
        self._size = len(jobs)
        for index, job in enumerate(jobs):
            self.numbers.append(next(numbers))
            self.lines.append(json.dumps({**job, "number": self.numbers[-1]}).encode() + b"\n")
            if len(self.lines[-1]) > _JOB_BYTES:
                self.outcomes[index] = Outcome(None, "size", f"a job of {len(self.lines[-1])} bytes")
            else:
                self.waiting.append(index)

    @property
    def open_jobs(self) -> int:
        return self._size - len(self.outcomes)

    def lose(self, index: int, how: str) -> None:
        """Retry a job once after its worker died, possibly killed by another program."""
        if index in self._lost:
            self.outcomes[index] = Outcome(None, "crash", f"two workers ended: {how}")
        else:
            self._lost.add(index)
            self.waiting.appendleft(index)


class Workers:
    """Pool of worker processes, started on demand and replaced when they die or are killed.

    Any thread may use it; batches then follow one another. A forked process starts workers of its own.

    Args:
        count: the number of processes.
        deadline_seconds: the time that a job may take, from when a worker that is ready gets it.
        memory_bytes: the address space of a worker (Linux only; elsewhere the deadline alone bounds it).
        command: the program of a worker, to which the memory limit and the deadline are added as arguments.

    Raises:
        ValueError: a count, deadline or memory that is not positive.
        RuntimeError: the system is not POSIX.
    """

    def __init__(
        self,
        count: int = 2,
        *,
        deadline_seconds: float = 3.0,
        memory_bytes: int = 1 << 30,
        command: Sequence[str] | None = None,
    ) -> None:
        if os.name != "posix":
            raise RuntimeError("Workers needs POSIX processes (Linux or macOS); on Windows use WSL")
        if count < 1 or deadline_seconds <= 0 or memory_bytes < 1:
            raise ValueError(
                "Workers needs a positive count, deadline_seconds and memory_bytes, "
                f"got {count}, {deadline_seconds} and {memory_bytes}"
            )
        program = command or [sys.executable, "-m", "trl_mmreason.grading.worker"]
        self._command = [*program, str(memory_bytes), str(deadline_seconds)]
        self._count = count
        self._deadline_seconds = deadline_seconds
        self._numbers = itertools.count()
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._lock = threading.Lock()
        # Also runs when the interpreter exits.
        weakref.finalize(self, _stop_all, self._workers)
        _EVERY.add(self)

    def decide(self, jobs: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Let the workers decide all jobs; return outcomes in order.

        Args:
            jobs: the arguments of `decide.decide` by name, without `algebra`; only what JSON holds.

        Raises:
            RuntimeError: a worker does not start; the message holds what it wrote. No job raises.
        """
        batch = _Batch(jobs, self._numbers)
        with self._lock:
            self._clear_out()
            try:
                while batch.open_jobs:
                    self._assign(batch)
                    self._listen(batch)
            finally:
                # During an interruption: a reply that comes later must not be there for the next batch to read.
                for worker in [worker for worker in self._workers if worker.number is not None]:
                    self._dismiss(worker)
        return [batch.outcomes[index] for index in range(len(jobs))]

    def close(self) -> None:
        """End the workers. A later `decide` starts new ones."""
        with self._lock:
            _stop_all(self._workers)

    def _clear_out(self) -> None:
        """Drop workers that died since the last batch; one that is still starting gets its full time again."""
        for worker in self._workers[:]:
            # One still has a job if the clean-up of the last batch was itself interrupted.
            if worker.process.poll() is not None or worker.number is not None:
                self._dismiss(worker)
            worker.due = monotonic() + _START_SECONDS

    def _hire(self) -> None:
        self._workers.append(_Worker(self._command))

    def _dismiss(self, worker: _Worker) -> str:
        end = worker.stop()
        self._workers.remove(worker)
        return end

    def _assign(self, batch: _Batch) -> None:
        while len(self._workers) < min(self._count, batch.open_jobs):
            self._hire()
        for worker in self._workers:
            if worker.ready and worker.number is None and batch.waiting:
                index = batch.waiting.popleft()
                worker.give(batch.numbers[index], index, batch.lines[index], self._deadline_seconds)

    def _listen(self, batch: _Batch) -> None:
        """Wait for the first reply, death or deadline, and handle all that are due."""
        poll = select.poll()
        by_descriptor = {}
        for worker in self._workers:
            assert worker.process.stdout
            by_descriptor[worker.process.stdout.fileno()] = worker
            poll.register(worker.process.stdout, select.POLLIN)
        first_due = min(worker.due for worker in self._workers if not worker.ready or worker.number is not None)
        # Replies before deadlines: what came while the parent itself was stopped is not late.
        for descriptor, _ in poll.poll(max(0.0, first_due - monotonic()) * 1000):
            self._hear(by_descriptor[descriptor], batch)
        for worker in self._workers[:]:
            if worker.due <= monotonic() and not worker.ready:
                raise RuntimeError(f"{self._named()} was not ready in {_START_SECONDS:g} s; {self._dismiss(worker)}")
            if worker.due <= monotonic() and worker.number is not None:
                batch.outcomes[worker.index] = Outcome(None, "timeout", f"longer than {self._deadline_seconds:g} s")
                self._replace(worker)

    def _hear(self, worker: _Worker, batch: _Batch) -> None:
        replies = worker.replies()
        if replies is None:
            self._bury(worker, batch)
            return
        if worker.ready:
            self._failed_starts = 0
        for reply in replies:
            if reply.pop("number") != worker.number:
                # Never so by this protocol; an answer to another job must not count as the answer to this one.
                self._bury(worker, batch)
                return
            batch.outcomes[worker.index] = Outcome(reply.get("correct"), reply["status"], reply.get("detail", ""))
            worker.number = None
            if reply["status"] == "memory":
                self._replace(worker)

    def _bury(self, worker: _Worker, batch: _Batch) -> None:
        """Replace a worker that ended or cannot be trusted, and settle its job."""
        number, end = worker.number, self._dismiss(worker)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _FAILED_STARTS:
                raise RuntimeError(f"{self._named()} ended while starting, {_FAILED_STARTS} times in a row: {end}")
        self._hire()
        if number is None:
            return
        if end == f"signal {signal.SIGALRM.name}":
            batch.outcomes[worker.index] = Outcome(None, "timeout", "ended by its own timer")
        else:
            batch.lose(worker.index, end)

    def _replace(self, worker: _Worker) -> None:
        self._dismiss(worker)
        self._hire()

    def _named(self) -> str:
        return f"the worker {' '.join(self._command)!r}"

    def _after_fork(self) -> None:
        for worker in self._workers:
            worker.forget()
        self._workers.clear()
        self._lock = threading.Lock()


def _stop_all(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().stop()


_EVERY: weakref.WeakSet[Workers] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for workers in list(_EVERY):
        workers._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
