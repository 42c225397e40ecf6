"""`state.db`: what a hub knows and could learn again, beside the queues that it must not lose.

Owns the only connection to that file; nothing else opens it. Each owner of tables brings a script
that makes them. Invariant: a job is one transaction, so a crash leaves all of it or nothing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Final, Self, TypeVar

import aiosqlite
import structlog

from edgehub.errors import StartupError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

T = TypeVar("T")

STATE_NAME: Final = "state.db"
APPLICATION_ID: Final = 0x65687374
"""Marks the file as ours, "ehst"."""

log = structlog.get_logger(__name__)


class StateError(StoreError):
    """The file cannot be read or written now."""


class StateFile:
    """See the module."""

    __slots__ = ("_connection", "path")

    def __init__(self, path: Path, connection: aiosqlite.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    async def open(cls, path: Path, scripts: Iterable[str] = ()) -> Self:
        """Open the file, make it if need be.

        Args:
            path: The file; its folder exists.
            scripts: SQL that makes the tables where they are missing.

        Raises:
            StartupError: It cannot be opened, or is another program's.
        """
        connection = aiosqlite.connect(path, isolation_level=None, timeout=0)
        try:
            await connection
            file = cls(path, connection)
            await file._job(_configure)
            for script in scripts:
                await file.add(script)
        except (sqlite3.Error, StateError) as exc:
            await connection.close()
            raise StartupError(
                f"{path} cannot be opened ({exc}); check disk space and rights of its folder, or "
                "move it away: devices and tables are learnt again"
            ) from exc
        except BaseException:
            await connection.close()
            raise
        return file

    async def add(self, script: str) -> None:
        """Make further tables where they are missing: statements parted by blank lines."""

        def make(connection: sqlite3.Connection) -> None:
            for statement in script.split("\n\n"):
                connection.execute(statement)

        await self.run(make)

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in one transaction on the connection's thread.

        Raises:
            StateError: The disk stands in the way, or a value cannot be stored; nothing was done.
        """
        return await self._job(lambda connection: _in_transaction(connection, job))

    async def close(self) -> None:
        """Close the file after the jobs handed in before."""
        await self._connection.close()

    async def _job(self, job: Callable[[sqlite3.Connection], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # One hop between threads for a whole transaction, as in store/database.py; aiosqlite's
        # own calls take one for each statement. Private, hence the pinned version.
        connection = self._connection
        connection._tx.put_nowait((future, lambda: job(connection._conn)))  # noqa: SLF001 - see above
        # A job that has begun ends, whoever waits for it.
        await asyncio.wait((future,))
        try:
            return future.result()
        except (sqlite3.Error, OverflowError) as exc:
            raise StateError(f"{self.path}: {exc}") from exc


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _configure(connection: sqlite3.Connection) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    fresh = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if not fresh and application_id != APPLICATION_ID:
        raise StartupError("state.db is a database of another program; set another data_dir")
    if fresh:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    # A session that a device was told of must survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -2048")
    connection.execute("PRAGMA temp_store = MEMORY")
