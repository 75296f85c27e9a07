"""A crash-safe SQLite file for several processes and threads.

A transaction that was committed survives the death of the process (SIGKILL, no memory) in any case, because its pages
are with the operating system by then; one that was not leaves no trace. With synchronous=FULL it survives the death of
the machine as well, which costs about 20 ms for each commit of a batch.

The journal is SQLite's default, a rollback journal, which needs nothing but locks: it is safe on network file systems
too. A write-ahead log would be faster, but needs memory that all processes share; those of two machines do not, would
damage the file, and nothing would tell them.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Database", "StoreError"]

APPLICATION_ID = 0x6D6D7273  # "mmrs", in the header of every store

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
    """The file and this process's connection to it.

    Args:
        path: path of the file, which is made with its folders if it does not exist.
        schema: SQL statements that make the tables of a new file.
        version: version of the format; a file of a newer one is refused.
        busy_seconds: how long to wait for other processes before an error.

    Raises:
        StoreError: the file is another one, of a newer format, damaged, or cannot be written to; and from any method
            when the disk is full, another process holds the file too long, or the file was deleted.
    """

    def __init__(self, path: str | os.PathLike, schema: str, version: int, busy_seconds: float) -> None:
        self.path = Path(path).absolute()
        self.schema = schema
        self.version = version
        self.busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._file: tuple[int, int] | None = None
        with self._connected("opening it"):
            pass

    def read(self, query: str, *values: Any) -> list[tuple]:
        with self._connected("reading") as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction, rolled back if it raises; `doing` names it in errors."""
        with self._connected(doing) as connection, _immediate(connection):
            self._check_file()
            yield connection

    def close(self) -> None:
        """Close the file for this process."""
        self._closed = True
        if self._connection is not None and self._process == os.getpid():
            with self._lock:
                self._connection.close()

    @contextmanager
    def _connected(self, doing: str) -> Iterator[sqlite3.Connection]:
        """This process's connection, for one thread at a time; `doing` names the block in errors."""
        if self._process != os.getpid():
            # A forked process connects by itself. The connection of its parent stays referenced: closing it here could
            # roll back what the parent is writing.
            self._lock, self._process = threading.RLock(), os.getpid()
            self._inherited, self._connection = self._connection, None
        try:
            with self._lock:
                if self._closed:
                    raise StoreError(f"{self.path} was closed here. Fix: open it again.")
                self._connection = self._connection or self._connect()
                yield self._connection
        except (sqlite3.Error, OSError) as error:
            cause, fix = next((meant for fragment, meant in _CAUSES.items() if fragment in str(error)), _UNKNOWN)
            raise StoreError(f"{self.path}: {doing} failed: {cause} ({error}). Fix: {fix}.") from error

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=self.busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            with _immediate(connection):
                self._check_format(connection)
            connection.execute("PRAGMA journal_mode = DELETE")  # a store of an early version has a write-ahead log
            connection.execute("PRAGMA synchronous = FULL")
            self._file = _identity(self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_format(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:  # new, or its process was killed before it wrote this
            for statement in self.schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {self.version}")
        elif application != APPLICATION_ID:
            cause, fix = _NO_STORE
            raise StoreError(f"{self.path}: {cause}, but another SQLite database. Fix: {fix}.")
        elif version > self.version:
            raise StoreError(
                f"{self.path} has format {version}, this trl-mmreason knows {self.version}. Fix: update the package."
            )

    def _check_file(self) -> None:
        """Raise if the file was deleted or replaced, as writes to it would be lost silently."""
        if not self.path.exists() or _identity(self.path) != self._file:
            raise StoreError(
                f"{self.path} was deleted or replaced while it was open. Fix: start again, with a file that stays."
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
