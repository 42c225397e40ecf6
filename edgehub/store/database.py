"""The one adapter to SQLite: connection, pragmas, jobs on the connection's thread, error kinds.

Owns the only connection to a database file; nothing else opens it. Invariant: between two jobs no
transaction and no cursor is open.
"""

from __future__ import annotations

import asyncio
import sqlite3
from enum import StrEnum
from errno import errorcode
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

import structlog

from edgehub.errors import StartupError, StoreCorruptError, StoreError, StoreRemovedError
from edgehub.storage.file_presence import FilePresence
from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.storage.sqlite_thread import SqliteThread
from edgehub.storage.sqlite_transaction import in_transaction
from edgehub.store.migrations import APPLICATION_ID, migrate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgehub.store.lock import DatabaseLock

T = TypeVar("T")

log = structlog.get_logger(__name__)

SQLITE_VERSION_MIN: Final = (3, 37, 0)  # STRICT tables
STATEMENTS_CACHED: Final = 512


class Fault(StrEnum):
    """How an error of SQLite is handled."""

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

_READ_DAMAGE: Final = frozenset(
    {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS}
)
"""Extended codes: a disk that cannot read what it wrote is damage, not a passing fault."""


class StoreBusyError(StoreError):
    """The disk or a lock prevents it; the same may succeed later.

    Attributes:
        code: SQLite's or the system's name of the error, for example `SQLITE_FULL` or `EMFILE`.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


class StoreValueError(StoreError):
    """A value cannot be stored."""


def classify(error: BaseException) -> Fault:
    """Return how an exception of a job is handled."""
    if isinstance(error, (MemoryError, OSError)):
        # How the module reports SQLITE_NOMEM; other resources, such as a descriptor, may be free
        # later.
        return Fault.RETRY
    if isinstance(error, UnicodeDecodeError):
        return Fault.DAMAGE  # a text of the file, or of SQLite about the file
    if isinstance(error, (OverflowError, UnicodeError)):
        return Fault.VALUES
    if not isinstance(error, sqlite3.Error):
        return Fault.BUG
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return _classify_message(str(error))
    return Fault.DAMAGE if code in _READ_DAMAGE else _FAULTS.get(code & 0xFF, Fault.BUG)


def _classify_message(text: str) -> Fault:
    # Raised by the module itself, without a code: a type that it cannot bind, a text that is not
    # UTF-8. Misuse of the connection has no code either, so they are recognised by their messages.
    if "decode to UTF-8" in text:
        return Fault.DAMAGE
    return Fault.VALUES if "binding parameter" in text else Fault.BUG


def translate(error: Exception) -> Exception:
    """Return the store's own error for an exception of the sqlite3 module, else the exception."""
    match classify(error):
        case Fault.RETRY:
            if isinstance(error, OSError):
                return StoreBusyError(errorcode.get(error.errno or 0, "OSError"), str(error))
            return StoreBusyError(getattr(error, "sqlite_errorname", "SQLITE_NOMEM"), str(error))
        case Fault.DAMAGE:
            return StoreCorruptError(str(error))
        case Fault.VALUES:
            return StoreValueError(str(error))
        case Fault.BUG:
            return error


class Database:
    """One database file and the thread that works on it."""

    connection_type: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection
    """Where tests put faults."""

    def __init__(self, lock: DatabaseLock, *, in_memory: bool = False) -> None:
        self._lock = lock
        self.in_memory = in_memory
        """Nothing is on disk."""
        self._file = self._other_files = FilePresence([])
        self._thread = SqliteThread(
            ":memory:" if in_memory else lock.path,
            cached_statements=STATEMENTS_CACHED,
            factory=self.connection_type,
        )

    @classmethod
    async def open(cls, lock: DatabaseLock) -> Self:
        """Open the locked file, and create it or migrate it to the current schema.

        Raises:
            StartupError: Newer than this program, not ours, or not to be opened at all.
            StoreCorruptError: It is damaged.
        """
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise StartupError(f"SQLite {sqlite3.sqlite_version} is too old, 3.37 or later needed")
        try:
            return await cls._open(lock, configure)
        except StoreBusyError as exc:
            # A full disk has no room for the index of the log, but memory has. Rows can be read
            # and sent, and are deleted from the file once there is room.
            log.warning("store.opened_without_room", path=str(lock.path), error=str(exc))
        try:
            return await cls._open(lock, _configure_in_memory)
        except StoreBusyError as exc:
            raise StartupError(open_hint(lock.path, exc)) from exc

    @classmethod
    async def open_in_memory(cls, lock: DatabaseLock) -> Self:
        """Open an empty database in memory; the locked file stays as it is."""
        return await cls._open(lock, configure, in_memory=True)

    @classmethod
    async def _open(
        cls,
        lock: DatabaseLock,
        configuring: Callable[[sqlite3.Connection], None],
        *,
        in_memory: bool = False,
    ) -> Self:
        database = cls(lock, in_memory=in_memory)
        try:
            await database._thread.open()
            await database.run(configuring)
            await database.run(migrate)
            if not in_memory:
                await asyncio.to_thread(database._note_files)
        except BaseException as exc:
            await database.close()
            if isinstance(exc, sqlite3.Error):
                error = translate(exc)
                if error is not exc:
                    raise error from exc
                # The file is not as this program made it.
                raise StoreCorruptError(str(exc)) from exc
            raise
        return database

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run `job` on the thread after those submitted before.

        The future fails with `StoreBusyError`, `StoreCorruptError`, `StoreValueError` or whatever
        else the job raised; see `JobResult`.
        """
        return self._thread.submit(partial(self._call, job))

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` on the thread and return its result; see `submit`."""
        # The result takes as many turns of the loop as that of a commit, so memory is as new as
        # what was read.
        return await self.submit(job)

    def submit_transaction(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run `work` as one transaction of the file; see `submit`.

        The future also fails with `StoreRemovedError`: the transaction was committed to a file that
        was deleted.
        """

        def job(connection: sqlite3.Connection) -> T:
            result = in_transaction(connection, work)
            self.check_files()
            return result

        return self.submit(job)

    def check_files(self) -> None:
        """Check that the files still exist; blocks, for the connection's thread.

        Raises:
            StoreRemovedError: One of them does not.
        """
        fault = self._file.fault() or self._other_files.fault()
        if fault is not None:
            raise StoreRemovedError(fault)

    def has_file(self) -> bool:
        """Return whether the file itself still exists; blocks."""
        return self._file.fault() is None

    async def close(self) -> None:
        """Close the connection after the jobs submitted before."""
        await self._thread.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._lock.path

    def _note_files(self) -> None:
        path = self._lock.path
        self._file = FilePresence([path])
        others = (f"{path.name}-wal", f"{path.name}.lock")
        self._other_files = FilePresence([path.with_name(name) for name in others])

    def _call(self, job: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        # On the connection's thread.
        try:
            return job(connection)
        except Exception as exc:
            error = translate(exc)
            if isinstance(error, StoreCorruptError):
                # The next start must check the file.
                self._lock.damaged(str(error))
            if error is exc:
                raise
            raise error from exc


async def settled(future: asyncio.Future[T]) -> bool:
    """Wait for a submitted job to its end, even when cancelled.

    The outcome of a commit must be known before its waiters are notified.

    Returns:
        True when the waiting task was cancelled; the caller raises `CancelledError` once it has
        handled the result.
    """
    try:
        await future
    except asyncio.CancelledError:
        return True
    except Exception:  # noqa: BLE001 - the caller's, with the result
        return False
    return False


def open_hint(path: Path, error: Exception) -> str:
    """Return why the file cannot be opened, and what to do."""
    return f"{path} cannot be opened ({error}); check disk space and rights of its directory"


def _configure_in_memory(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    configure(connection)


def configure(connection: sqlite3.Connection) -> None:
    """Set what the hub relies on.

    Raises:
        StartupError: The file is another program's.
    """
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    fresh = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if not fresh and application_id != APPLICATION_ID:
        raise StartupError("the queue file is a database of another program; name another file")
    if fresh:
        # What reads a damaged file without SQLite relies on both; must precede the rest.
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        # Freed pages can only be given back if the file was made for it.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    # A commit appends to one file and syncs once, and readers see whole transactions.
    connection.execute("PRAGMA journal_mode = WAL")
    # An acknowledged message must survive a power cut: sync at each commit.
    connection.execute("PRAGMA synchronous = FULL")
    # Checkpoints run between groups, never inside a commit, which has waiters.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # Content of deleted rows need not be overwritten; that would double the writes.
    connection.execute("PRAGMA secure_delete = OFF")
    # Bounds SQLite's memory: 8 MiB of pages.
    connection.execute("PRAGMA cache_size = -8192")
    # Sorting and temporary tables stay off the flash.
    connection.execute("PRAGMA temp_store = MEMORY")
