"""How far a run is: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm

from .store import Record

__all__ = ["Progress"]

logger = logging.getLogger(__name__)

SECONDS_A_LINE = 60.0


class Progress:
    """Counts records, and shows the count, the rate, the time left and the shares truncated and failed.

    Args:
        description: of the bar.
        total: units.
        before: units finished by earlier runs.
        failed: units that failed, of those finished before.
        quiet: shows and logs nothing.

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
        self._logs = not (quiet or is_terminal)
        self._bar = tqdm(
            desc=description,
            total=total,
            initial=before,
            unit="sample",
            smoothing=0.05,
            disable=quiet or not is_terminal,
        )
        self._start = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._logs:
            self._log()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._finished += 1
            self.done += record.status == "done"
            self.failed += record.status == "failed"
            self.truncated += _is_truncated(record.payload)
        self._bar.set_postfix_str(self._shares(), refresh=False)
        self._bar.update(self.before + self._finished - self._bar.n)
        if self._logs and time.monotonic() - self._last_line > SECONDS_A_LINE:
            self._log()

    def _log(self) -> None:
        self._last_line = time.monotonic()
        rate = self._finished / max(self._last_line - self._start, 1e-9)
        finished = self.before + self._finished
        left = tqdm.format_interval((self.total - finished) / rate) if rate else "?"
        logger.info(
            "%s: %d of %d units, %.3g a second, %s left, %s",
            self.description,
            finished,
            self.total,
            rate,
            left,
            self._shares(),
        )

    def _shares(self) -> str:
        truncated = self.truncated / self.done if self.done else 0.0
        return f"{truncated:.1%} truncated, {self.failed} failed"


def _is_truncated(payload: dict[str, Any]) -> bool:
    return payload.get("finish_reason") == "length" or "length" in (payload.get("finish_reasons") or ())
