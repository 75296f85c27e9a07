"""Work that is begun before its results are needed: graders and judges answer while the policy still samples."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ahead(Generic[Item, Result]):
    """Calls a function for items as they come, in a thread, and keeps the results until they are asked for.

    verdicts = Ahead(grader.grade_batch, grader)
    verdicts.begin(items)                # of some answers, while others are sampled
    verdicts.finish(all_items)           # in order: what is there, what is under way, and the rest

    One call is under way at a time, with the items that came during the last one; `take` and `finish` do not wait for
    it to do the rest. What a call raised is raised where the results of its items are asked for.

    Args:
        work: gives a result for each item, which has to follow from that item alone. Equal items share a result.
        party: who does the work. `begin` does nothing unless its `works_elsewhere` is true, which says that it waits
            for other processes or machines and may be called from any thread: what computes in this process would take
            the policy's time, and might draw from its random numbers.
        essence: what of an item its result follows from; all of it by default.
        most: items of one call in the thread; as many as wait by default.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Sequence[Result]],
        party: Any,
        essence: Callable[[Item], Any] = lambda item: item,
        most: int | None = None,
    ) -> None:
        self._work, self._essence, self._most = work, essence, most
        self._overlaps = bool(getattr(party, "works_elsewhere", False))
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Item] = {}
        self._begun: dict[bytes, Future[dict[bytes, Result]]] = {}
        self._is_working = False

    def begin(self, items: Iterable[Item]) -> None:
        """Have this done; what was begun already is not begun again."""
        if not self._overlaps:
            return
        keyed = {self._key(item): item for item in items}
        with self._lock:
            self._waiting |= {key: item for key, item in keyed.items() if key not in self._begun}
            if self._is_working or not self._waiting:
                return
            self._is_working = True
        # Not an executor's thread, which would stay: a process with threads should not fork.
        threading.Thread(target=self._do_waiting, daemon=True).start()

    def take(self, items: Iterable[Item]) -> list[Result]:
        """The results of these items, in order; they are not kept any longer."""
        items = list(items)
        if not self._overlaps:
            return list(self._work(items))
        keys = [self._key(item) for item in items]
        with self._lock:
            for key in keys:
                self._waiting.pop(key, None)
            begun = {key: self._begun.pop(key) for key in set(keys) & self._begun.keys()}
        rest = {key: item for key, item in zip(keys, items, strict=True) if key not in begun}
        done = dict(zip(rest, self._work(list(rest.values())), strict=True)) if rest else {}
        return [done[key] if key in done else begun[key].result()[key] for key in keys]

    def finish(self, items: Iterable[Item]) -> list[Result]:
        """`take`, and leave or forget all else: these are all items of a batch."""
        items = list(items)
        self.stop()
        keys = set(map(self._key, items))
        with self._lock:
            self._begun = {key: results for key, results in self._begun.items() if key in keys}
        return self.take(items)

    def stop(self) -> None:
        """Begin nothing more of what waits."""
        with self._lock:
            self._waiting = {}

    def _do_waiting(self) -> None:
        while True:
            with self._lock:
                batch = dict(islice(self._waiting.items(), self._most))
                self._waiting = {key: item for key, item in self._waiting.items() if key not in batch}
                self._is_working = bool(batch)
                if not batch:
                    return
                results: Future[dict[bytes, Result]] = Future()
                self._begun |= dict.fromkeys(batch, results)
            try:
                results.set_result(dict(zip(batch, self._work(list(batch.values())), strict=True)))
            except BaseException as error:  # noqa: BLE001 - raised again by `take`
                results.set_exception(error)

    def _key(self, item: Item) -> bytes:
        """A digest, as texts are long; pictures in an item are told apart by where they are in memory."""
        return hashlib.sha256(repr(self._essence(item)).encode()).digest()
