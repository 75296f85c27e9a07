"""A crash-safe SQLite file for several processes and threads.

A committed transaction survives the death of the process and, with synchronous=FULL (about 20 ms per commit), of the
machine. The journal is SQLite's default, which needs nothing but locks and is safe on network file systems; a
write-ahead log needs memory that processes of two machines do not share.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUSY_SECONDS = 60.0  # how long to wait for other processes before an error
_APPLICATION_ID = 0x6D6D7273  # "mmrs", in the header of every store
_FORMAT = 1
# The index `failed` makes the failed units, which are few, readable without the others.
_SCHEMA = """
    CREATE TABLE stages (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL);
    CREATE TABLE units (
        stage INTEGER NOT NULL REFERENCES stages, id TEXT NOT NULL, "index" INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('done', 'failed')), reason TEXT NOT NULL, payload TEXT NOT NULL,
        UNIQUE (stage, id, "index")
    );
    CREATE INDEX failed ON units (stage, id, "index") WHERE status = 'failed'
"""

_RESUMES = "what was saved before is safe, and the same command resumes from there"
_READ_ONLY = ("it may not be written to", "allow writing to the file and its folder, or copy it elsewhere")
_LOCKED = ("another process held it too long", f"end the process that hangs; {_RESUMES}")
_NO_STORE = ("it is no store", "give the path of a store, or of a file that does not exist yet")
_UNKNOWN = ("the system refuses", "remove what it names, or choose another path")
# What SQLite or the system says (Python 3.10 gives no error codes of SQLite) → what it means, and the fix.
_CAUSES = {
    "disk is full": ("the disk is full", f"free some space; {_RESUMES}"),
    "disk I/O error": ("the disk refuses to write or read", f"look at its space, quota and health; {_RESUMES}"),
    "readonly": _READ_ONLY,
    "unable to open": _READ_ONLY,
    "ermission denied": _READ_ONLY,
    "locked": _LOCKED,
    "locking protocol": _LOCKED,
    "not a database": _NO_STORE,
    "malformed": ("it is damaged", "restore a copy, or rescue what can be read with `sqlite3 FILE .recover`"),
}


class StoreError(RuntimeError):
    """The file is unusable; the message names it, the cause and the fix."""


class Database:
    """The file of a `Store`, which says what it raises, and this process's connection to it."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path).absolute()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with self._errors("opening it"):
            self._connection = self._connect()
            self._file = _identity(self.path)

    def read(self, query: str, *values: Any) -> list[tuple]:
        with self._connected("reading") as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, rolled back if it raises; `doing` names it in errors."""
        with self._connected(doing) as connection, _immediate(connection):
            if not self.path.exists() or _identity(self.path) != self._file:
                raise StoreError(
                    f"{self.path} was deleted or replaced while it was open. Fix: start again, with a file that stays."
                )
            yield connection

    def close(self) -> None:
        """Close the file for this process."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _connected(self, doing: str) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; `doing` names the block in errors."""
        with self._errors(doing), self._lock:
            if self._connection is None:
                raise StoreError(f"{self.path} was closed here. Fix: open it again.")
            yield self._connection

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            cause, fix = next((meant for fragment, meant in _CAUSES.items() if fragment in str(error)), _UNKNOWN)
            raise StoreError(f"{self.path}: {doing} failed: {cause} ({error}). Fix: {fix}.") from error

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            with _immediate(connection):
                self._check_format(connection)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_format(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:  # new, or its process was killed before it wrote this
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_FORMAT}")
        elif application != _APPLICATION_ID:
            cause, fix = _NO_STORE
            raise StoreError(f"{self.path}: {cause}, but another SQLite database. Fix: {fix}.")
        elif version > _FORMAT:
            raise StoreError(
                f"{self.path} has format {version}, this trl-mmreason knows {_FORMAT}. Fix: update the package."
            )


@contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that locks out other writers from its beginning, so that its reads stay valid."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # after some errors SQLite itself has ended it
            connection.execute("ROLLBACK")
        raise


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
