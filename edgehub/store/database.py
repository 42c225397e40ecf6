"""The one adapter to SQLite: connection, pragmas, jobs on the connection's thread, error kinds.

Owns the only connection to a database file; nothing else opens it. A job is a function that runs
on aiosqlite's thread with the plain connection, so that a whole transaction costs one hop between
threads instead of one per statement. Invariant: between two jobs no transaction and no cursor is
open.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

import aiosqlite

from edgehub.durable_files import make_folder
from edgehub.errors import StartupError, StoreCorruptError, StoreError
from edgehub.store.migrations import APPLICATION_ID, migrate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

SQLITE_VERSION_MIN: Final = (3, 37, 0)  # STRICT tables
STATEMENTS_CACHED: Final = 512


class Fault(StrEnum):
    """What an error of SQLite asks for."""

    RETRY = "retry"  # the disk or a lock: the same transaction may succeed later
    DAMAGE = "damage"  # the file is broken
    VALUES = "values"  # one of the values cannot be stored
    BUG = "bug"  # none of these: ours


_FAULTS: Final = {
    sqlite3.SQLITE_FULL: Fault.RETRY,
    sqlite3.SQLITE_IOERR: Fault.RETRY,
    sqlite3.SQLITE_BUSY: Fault.RETRY,
    sqlite3.SQLITE_LOCKED: Fault.RETRY,
    sqlite3.SQLITE_READONLY: Fault.RETRY,
    sqlite3.SQLITE_CANTOPEN: Fault.RETRY,
    sqlite3.SQLITE_NOMEM: Fault.RETRY,
    sqlite3.SQLITE_CORRUPT: Fault.DAMAGE,
    sqlite3.SQLITE_NOTADB: Fault.DAMAGE,
    sqlite3.SQLITE_CONSTRAINT: Fault.VALUES,
    sqlite3.SQLITE_TOOBIG: Fault.VALUES,
    sqlite3.SQLITE_MISMATCH: Fault.VALUES,
}
"""By primary result code."""


class StoreBusyError(StoreError):
    """The disk or a lock stands in the way; the same may succeed later.

    Attributes:
        code: SQLite's name of the error, for example `SQLITE_FULL`.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class StoreValueError(StoreError):
    """A value cannot be stored."""


def classify(error: BaseException) -> Fault:
    """Tell what an exception of the sqlite3 module asks for."""
    if isinstance(error, MemoryError):
        return Fault.RETRY  # how the module reports SQLITE_NOMEM
    if isinstance(error, (OverflowError, UnicodeError)):
        return Fault.VALUES
    if not isinstance(error, sqlite3.Error):
        return Fault.BUG
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Raised by the module itself before SQLite was asked: a type that it cannot bind. Misuse
        # of the connection has no code either, so only the binding error is told by its words.
        binding = "binding parameter" in str(error)
        return Fault.VALUES if binding else Fault.BUG
    return _FAULTS.get(code & 0xFF, Fault.BUG)


def translate(error: Exception) -> Exception:
    """Give the store's own error for an exception of the sqlite3 module, else the exception."""
    match classify(error):
        case Fault.RETRY:
            return StoreBusyError(getattr(error, "sqlite_errorname", "SQLITE_NOMEM"), str(error))
        case Fault.DAMAGE:
            return StoreCorruptError(str(error))
        case Fault.VALUES:
            return StoreValueError(str(error))
        case Fault.BUG:
            return error


def in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` between BEGIN IMMEDIATE and COMMIT; on any error nothing of it stays."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself on some errors (disk full, for one).
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


class Database:
    """One database file and the thread that works on it."""

    connection_type: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection
    """Where tests put faults."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock
        self._connection = aiosqlite.connect(
            path,
            isolation_level=None,
            timeout=0,
            cached_statements=STATEMENTS_CACHED,
            factory=self.connection_type,
        )

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open `path`, making it or bringing it to the current schema.

        Raises:
            StartupError: Held by another process, damaged, newer than this program, not ours, or
                not to be opened at all.
        """
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise StartupError(f"SQLite {sqlite3.sqlite_version} is too old, 3.37 or later needed")
        lock = await asyncio.to_thread(_prepare, path)
        database = cls(path, lock)
        try:
            await database._connection
            await database.run(_configure)
            await database.run(migrate)
        except BaseException as exc:
            await database.close()
            if isinstance(exc, (StoreError, sqlite3.Error)):
                raise StartupError(open_hint(path, exc)) from exc
            raise
        return database

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run `job` on the thread after those submitted before.

        The future fails with `StoreBusyError`, `StoreCorruptError`, `StoreValueError` or whatever
        else the job raised. It goes on when its waiter is cancelled.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # aiosqlite offers one awaited call per statement; a group would pay several hops between
        # threads. Its job queue takes any function, and a future of our own can be waited for
        # without a task. Private, hence the pinned version and this single place.
        self._connection._tx.put_nowait((future, lambda: self._call(job)))  # noqa: SLF001
        return future

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` on the thread and give its result; see `submit`."""
        future = self.submit(job)
        # Not awaited directly: by the same way as a commit's result the answer takes as many turns
        # of the loop, so whoever reads the file finds memory at least as new.
        await asyncio.wait((future,))
        return future.result()

    async def close(self) -> None:
        """Close the connection after the jobs submitted before, and let go of the file."""
        try:
            await self._connection.close()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def _call(self, job: Callable[[sqlite3.Connection], T]) -> T:
        # On the connection's thread.
        connection: sqlite3.Connection = self._connection._conn  # noqa: SLF001 - see submit
        try:
            return job(connection)
        except Exception as exc:
            error = translate(exc)
            if error is exc:
                raise
            raise error from exc


async def settled(future: asyncio.Future[T]) -> bool:
    """Wait for a submitted job to its end, even when cancelled.

    A commit must be known to have succeeded or failed before its waiters are told, so it is never
    left behind.

    Returns:
        True when the waiting task was cancelled meanwhile; the caller raises `CancelledError`
        once it has dealt with the result.
    """
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _prepare(path: Path) -> int:
    # Runs on a worker thread: file calls may block.
    lock = -1
    try:
        make_folder(path.parent)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as exc:
        if lock >= 0:
            os.close(lock)
        if isinstance(exc, BlockingIOError):
            raise StartupError(
                f"{path} is in use by another process; stop the other hub, or give this one a"
                " state directory of its own"
            ) from exc
        raise StartupError(f"{path} cannot be opened: {exc.strerror}") from exc
    return lock


def open_hint(path: Path, error: Exception) -> str:
    """Say why the file cannot be opened, and what to do."""
    if isinstance(error, StoreCorruptError):
        return f"{path} is damaged or not a database ({error}); move it away to start empty"
    return f"{path} cannot be opened ({error}); check disk space and rights of its directory"


def _configure(connection: sqlite3.Connection) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    fresh = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if not fresh and application_id != APPLICATION_ID:
        raise StartupError("the queue file is a database of another program; name another file")
    if fresh:
        # Freed pages can only be given back if the file was made for it; must precede the rest.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    # A commit appends to one file and syncs once, and readers see whole transactions.
    connection.execute("PRAGMA journal_mode = WAL")
    # An acknowledged message must survive a power cut: sync at each commit.
    connection.execute("PRAGMA synchronous = FULL")
    # Checkpoints run between groups, never inside a commit that somebody waits for.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # Content of deleted rows need not be overwritten; that would double the writes.
    connection.execute("PRAGMA secure_delete = OFF")
    # Bounds SQLite's memory: 8 MiB of pages.
    connection.execute("PRAGMA cache_size = -8192")
    # Sorting and temporary tables stay off the flash.
    connection.execute("PRAGMA temp_store = MEMORY")
