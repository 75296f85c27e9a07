"""Store of sampling results in one SQLite file: a killed run resumes and repeats nothing.

with Store("runs/answers.sqlite") as store:
    store.open_stage("first answers", {"model": "…", "temperature": 1.0})
    store.save("first answers", [Record("row-7", 0, "done", {"text": "…"})])
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from .database import Database, StoreError

__all__ = ["Record", "SettingsChanged", "Store", "StoreError", "Unit"]

RECORDS_A_PAGE = 256
UNITS_A_QUERY = 400  # old releases of SQLite take 999 values
SHOWN_CHARACTERS = 60

_SAVE = """
    INSERT INTO units (stage, id, "index", status, payload, reason) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (stage, id, "index") DO UPDATE
    SET status = excluded.status, payload = excluded.payload, reason = excluded.reason WHERE status = 'failed'
"""
_OVERWRITE = _SAVE.replace("INSERT", "INSERT OR REPLACE").partition("ON CONFLICT")[0]
_HAS_UNITS = "SELECT EXISTS (SELECT 1 FROM units WHERE stage = (SELECT number FROM stages WHERE name = ?))"
_DELETE = 'DELETE FROM units WHERE stage = ? AND id = ? AND "index" = ?'
_PAGE = """
    SELECT id, "index", status, payload, reason FROM units
    WHERE stage = ? AND (id, "index") > (?, ?) ORDER BY id, "index" LIMIT ?
"""
_FIND = """
    SELECT id, "index", status, payload, reason FROM units
    WHERE stage = (SELECT number FROM stages WHERE name = ?) AND id = ? AND "index" = ?
"""
# A cross join looks each unit up in the index; SQLite reads the whole stage for `(id, "index") IN (VALUES …)`.
_HOLDS = """
    WITH wanted (id, place) AS (VALUES {})
    SELECT units.id, units."index" FROM wanted CROSS JOIN units
    ON units.stage = ? AND units.id = wanted.id AND units."index" = wanted.place
"""
_FAILED = """
    SELECT id, "index", reason FROM units WHERE stage = ? AND status = 'failed' ORDER BY id, "index"
"""


class SettingsChanged(ValueError):
    """A stage has other settings in the store; the message names each difference."""


class Unit(NamedTuple):
    """One unit of work: sample `index` of the row `id`."""

    id: str
    index: int  # type: ignore[assignment]  # hides tuple.index


class Record(NamedTuple):
    """The result of a unit: a payload of JSON values if it is done, {} and the reason if it failed."""

    id: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    status: Literal["done", "failed"]
    payload: dict[str, Any]
    reason: str = ""


class Store:
    """A file of finished units in stages, for several processes and threads at once; made if it does not exist.

    Args:
        elsewhere: where the caller can keep results of other settings, for the message of `SettingsChanged`.

    Raises:
        StoreError: the file is no store, of a newer format, damaged, or cannot be written to; and from any method when
            the disk is full, another process holds the file too long, or the file was deleted.
    """

    def __init__(self, path: str | os.PathLike, *, elsewhere: str = "another stage name or another file") -> None:
        self._elsewhere = elsewhere
        self._database = Database(path)
        self.path = self._database.path
        self._opened: dict[str, dict[str, str]] = {}  # stage of results → the stages opened for it and their settings

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the object is unusable afterwards."""
        self._database.close()

    def open_stage(self, stage: str, settings: Mapping[str, Any], *, results: str | None = None) -> None:
        """Create a stage, or resume one with equal settings or without results; `SettingsChanged` otherwise.

        Args:
            settings: what its results depend on, as JSON values.
            results: stage that holds the results; by default the same one.
        """
        self._open(stage, settings, results or stage)

    def fix_settings(self, stage: str, settings: Mapping[str, Any]) -> None:
        """Open a stage whose results lie outside the store, such as a trained model, and whose first settings stay."""
        self._open(stage, settings, None)

    def _open(self, stage: str, settings: Mapping[str, Any], results: str | None) -> None:
        if not isinstance(stage, str) or not stage:
            raise ValueError(f"Store.open_stage: stage is {stage!r}; expected a name")
        now = _as_json(settings, f"settings of stage {stage!r}")
        with self._database.transaction(f"opening stage {stage!r}") as connection:
            connection.execute("INSERT INTO stages (name, settings) VALUES (?, ?) ON CONFLICT DO NOTHING", (stage, now))
            then = self._compare(connection, stage, now, results)
        if results is not None:
            self._opened.setdefault(results, {})[stage] = then

    def _compare(self, connection: sqlite3.Connection, stage: str, now: str, results: str | None) -> str:
        """Return the stage's settings, which are replaced if they differ and the stage `results` is empty."""
        (then,) = connection.execute("SELECT settings FROM stages WHERE name = ?", (stage,)).fetchone()
        if then == now:
            return then
        changed = list(differences(json.loads(then), json.loads(now)))
        if changed and results is not None and not connection.execute(_HAS_UNITS, (results,)).fetchone()[0]:
            connection.execute("UPDATE stages SET settings = ? WHERE name = ?", (now, stage))
            return now
        if changed:
            raise SettingsChanged(
                f"{self.path}: stage {stage!r} was begun with other settings, and results must not mix:\n"
                + "".join(f"  {line}\n" for line in changed)
                + f"Fix: take these settings back, or keep the earlier results: {self._elsewhere}."
            )
        return then

    def stages(self) -> dict[str, dict[str, Any]]:
        """Name → settings of each stage, oldest first."""
        rows = self._database.read("SELECT name, settings FROM stages ORDER BY number")
        return {name: json.loads(settings) for name, settings in rows}

    def finished(self, stage: str) -> set[Unit]:
        """The finished units, including those that finally failed."""
        rows = self._database.read('SELECT id, "index" FROM units WHERE stage = ?', self._number(stage))
        return {Unit(*unit) for unit in rows}

    def holds(self, stage: str, units: Iterable[tuple[str, int]]) -> Iterator[bool]:
        """Whether each unit is finished or finally failed; streams, so memory stays small."""
        number, units = self._number(stage), iter(units)
        while page := list(islice(units, UNITS_A_QUERY)):
            query = _HOLDS.format(", ".join(["(?, ?)"] * len(page)))
            held = set(self._database.read(query, *chain.from_iterable(page), number))
            yield from (unit in held for unit in page)

    def failed(self, stage: str) -> dict[Unit, str]:
        """Failed units with their reasons, ordered by (id, index)."""
        rows = self._database.read(_FAILED, self._number(stage))
        return {Unit(id_, index): reason for id_, index, reason in rows}

    def save(self, stage: str, records: Iterable[Record]) -> None:
        """Save all records or, if it raises, none; a unit that is done is not overwritten.

        Raises:
            SettingsChanged: another process has opened the stage with other settings since it was opened here, when it
                was still empty.
        """
        with self._saving(stage, records) as (connection, values):
            for opened, settings in self._opened.get(stage, {}).items():
                self._compare(connection, opened, settings, None)
            connection.executemany(_SAVE, values)

    def overwrite(self, stage: str, records: Iterable[Record], *, results: str) -> bool:
        """Save all records over earlier ones, unless the stage `results`, which depends on them, has a unit; whether
        they were saved."""
        with self._saving(stage, records) as (connection, values):
            if connection.execute(_HAS_UNITS, (results,)).fetchone()[0]:
                return False
            connection.executemany(_OVERWRITE, values)
        return True

    def delete(self, stage: str, units: Iterable[tuple[str, int]]) -> None:
        """Delete the records of these units."""
        number = self._number(stage)
        with self._database.transaction(f"deleting records of stage {stage!r}") as connection:
            connection.executemany(_DELETE, [(number, *unit) for unit in units])

    @contextmanager
    def _saving(self, stage: str, records: Iterable[Record]) -> Iterator[tuple[sqlite3.Connection, list[tuple]]]:
        number = self._number(stage)
        values = [(number, *_checked(record)) for record in records]
        with self._database.transaction(f"saving {len(values)} records of stage {stage!r}") as connection:
            yield connection, values

    def records(self, stage: str) -> Iterator[Record]:
        """Yield the records ordered by (id, index), in pages that lock nobody."""
        number = self._number(stage)
        last = ("", -1)
        while page := self._database.read(_PAGE, number, *last, RECORDS_A_PAGE):
            yield from map(_record, page)
            last = page[-1][:2]

    def find(self, stage: str, units: Iterable[tuple[str, int]]) -> Iterator[Record]:
        """Yield the existing records of these units, in their order; each is read when it is its turn."""
        for unit in units:
            rows = self._database.read(_FIND, stage, *unit)
            if not rows:
                self._number(stage)  # says so if there is no such stage
            yield from map(_record, rows)

    def _number(self, stage: str) -> int:
        rows = self._database.read("SELECT number FROM stages WHERE name = ?", stage)
        if not rows:
            raise StoreError(
                f"{self.path} has no stage {stage!r}, but {list(self.stages())}. Fix: begin it by open_stage."
            )
        return rows[0][0]


def _record(row: tuple) -> Record:
    id_, index, status, payload, reason = row
    return Record(id_, index, status, json.loads(payload), reason)


def _checked(record: Record) -> tuple[str, int, str, str, str]:
    id_, index, status, payload, reason = record
    if not isinstance(id_, str) or not isinstance(index, int) or index < 0 or status not in ("done", "failed"):
        raise ValueError(
            f"Store.save: got id {id_!r}, index {index!r} and status {status!r}; expected a string, a number ≥ 0, and "
            "'done' or 'failed'"
        )
    if not isinstance(payload, dict):
        raise ValueError(f"Store.save: the payload of {(id_, index)} is {_short(payload)}; expected a dict")
    return id_, index, status, _as_json(payload, f"payload of {(id_, index)}"), _storable(reason)


def _as_json(value: Mapping[str, Any], what: str) -> str:
    try:
        return _storable(json.dumps(dict(value), ensure_ascii=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"Store: the {what} cannot be kept as JSON ({error}); expected strings, numbers, lists and dicts"
        ) from error


def _storable(text: str) -> str:
    """Replace lone surrogates, which servers may send and UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_ABSENT = object()


def differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """One line for each difference: dotted path, then → now."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            yield from differences(then.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif then != now:
        yield f"{path}: {_short(then, now)} → {_short(now, then)}"


def _short(value: Any, other: Any = None) -> str:
    """A short repr; a string begins shortly before its first difference from the other."""
    if value is _ABSENT:
        return "(absent)"
    start = 0
    if isinstance(value, str) and isinstance(other, str) and len(value) > SHOWN_CHARACTERS:
        start = max(0, len(os.path.commonprefix([value, other])) - SHOWN_CHARACTERS // 3)
        value = value[start:]
    text = repr(value)
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + "…"
    return f"…{text}" if start else text
