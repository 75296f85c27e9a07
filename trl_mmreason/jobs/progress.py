"""Progress of a run: a bar on a terminal, otherwise a line a minute on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm

from .store import Record

SECONDS_A_LINE = 60.0


class Progress:
    """Counts records, and shows the count, the rate, the time left and the shares truncated and failed.

    Args:
        description: description of the bar.
        total: units.
        before: units finished by earlier runs.
        failed: units that failed, of those finished before.
        quiet: shows nothing.

    Attributes:
        done: units done since.
        truncated: how many of them reached the bound of their length.
    """

    def __init__(self, description: str, total: int, before: int, failed: int, *, quiet: bool = False) -> None:
        self.description = description
        self.total = total
        self.before = before
        self.failed = failed
        self.done = 0
        self.truncated = 0
        self._finished = 0
        is_terminal = sys.stderr.isatty()
        self._writes_lines = not (quiet or is_terminal)
        self._ended = threading.Event()
        self._bar = tqdm(
            desc=description,
            total=total,
            initial=before,
            unit="sample",
            smoothing=0.05,
            disable=quiet or not is_terminal,
        )
        self._start = time.monotonic()

    def __enter__(self) -> Progress:
        if self._writes_lines:
            # a thread of its own, as one batch may take longer than a minute
            threading.Thread(target=self._write_lines, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._bar.close()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._finished += 1
            self.done += record.status == "done"
            self.failed += record.status == "failed"
            self.truncated += _is_truncated(record.payload)
        self._bar.set_postfix_str(self._shares(), refresh=False)
        self._bar.update(self.before + self._finished - self._bar.n)

    def _write_lines(self) -> None:
        while not self._ended.wait(SECONDS_A_LINE):
            sys.stderr.write(f"{self._line()}\n")
            sys.stderr.flush()

    def _line(self) -> str:
        rate = self._finished / (time.monotonic() - self._start)
        finished = self.before + self._finished
        left = tqdm.format_interval((self.total - finished) / rate) if rate else "?"
        of_all = f"{self.description}: {finished} of {self.total} units"
        return f"{of_all}, {rate:.3g} a second, {left} left, {self._shares()}"

    def _shares(self) -> str:
        truncated = self.truncated / self.done if self.done else 0.0
        return f"{truncated:.1%} truncated, {self.failed} failed"


def _is_truncated(payload: dict[str, Any]) -> bool:
    return payload.get("finish_reason") == "length" or "length" in (payload.get("finish_reasons") or ())
