"""Run graders and judges in a thread while the policy still samples."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ahead(Generic[Item, Result]):
    """Calls a function for items in a thread as they come, and keeps the results until they are collected.

    One call is under way at a time, with the items that came during the last one; `finish` does not wait for it
    to do the rest. What a call raised is raised where the results of its items are asked for.

    Args:
        work: gives a result for each item, which has to follow from that item alone. Equal items share a result.
        party: who does the work. `begin` does nothing unless its `works_elsewhere` is true: what computes in this
            process would take the policy's time, and might draw from its random numbers.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]], party: Any) -> None:
        self._work = work
        self._overlaps = bool(getattr(party, "works_elsewhere", False))
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Item] = {}
        self._begun: dict[bytes, Future[dict[bytes, Result]]] = {}
        self._is_working = False

    def begin(self, items: Iterable[Item]) -> None:
        """Start work on these items; items that were started are skipped."""
        if not self._overlaps:
            return
        keyed = {_key(item): item for item in items}
        with self._lock:
            self._waiting |= {key: item for key, item in keyed.items() if key not in self._begun}
            if self._is_working or not self._waiting:
                return
            self._is_working = True
        # Not an executor's thread, which would stay: a process with threads should not fork.
        threading.Thread(target=self._do_waiting, daemon=True).start()

    def finish(self, items: Iterable[Item]) -> list[Result]:
        """Return the results of a batch's items, in order; other started items are dropped."""
        items = list(items)
        if not self._overlaps:
            return list(self._work(items))
        keys = [_key(item) for item in items]
        with self._lock:
            begun, self._begun, self._waiting = self._begun, {}, {}
        rest = {key: item for key, item in zip(keys, items, strict=True) if key not in begun}
        done = dict(zip(rest, self._work(list(rest.values())), strict=True)) if rest else {}
        return [done[key] if key in done else begun[key].result()[key] for key in keys]

    def _do_waiting(self) -> None:
        while True:
            with self._lock:
                batch, self._waiting = self._waiting, {}
                self._is_working = bool(batch)
                if not batch:
                    return
                results: Future[dict[bytes, Result]] = Future()
                self._begun |= dict.fromkeys(batch, results)
            try:
                results.set_result(dict(zip(batch, self._work(list(batch.values())), strict=True)))
            except BaseException as error:  # noqa: BLE001 - raised again by `finish`
                results.set_exception(error)


def _key(item: Any) -> bytes:
    """Digest of an item; images in it are identified by their address in memory."""
    return hashlib.sha256(repr(item).encode()).digest()
