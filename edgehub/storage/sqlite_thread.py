"""A connection to a database file, and the thread that works on it.

Owns the connection; nothing else opens the file. A job is a function that gets the plain
connection, so that a whole transaction costs one hop between threads instead of one per statement.
Invariant: jobs run one after another, in the order in which they were submitted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import aiosqlite
from typing_extensions import override

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


class JobResult(asyncio.Future[T]):
    """The result of a job.

    A job goes on when its waiter is cancelled. Invariant: the waiter goes on one turn of the loop
    after the end of the job, whether it was cancelled or not, so waiters go on in the order of the
    jobs.
    """

    @override
    def cancel(self, msg: Any = None) -> bool:
        """Return False: the job goes on, and its waiter is cancelled once it has ended."""
        return False


class SqliteThread:
    """A connection to a database file with its thread.

    Args:
        path: The file, or `:memory:`.
        options: Those of `sqlite3.connect`. Transactions are the jobs' own.
    """

    def __init__(self, path: Path | str, **options: Any) -> None:
        self._connection = aiosqlite.connect(path, isolation_level=None, timeout=0, **options)

    async def open(self) -> None:
        """Start the thread and open the file.

        Raises:
            sqlite3.Error: It cannot be opened.
        """
        await self._connection

    def submit(self, job: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run `job` on the thread after those submitted before.

        The future fails with whatever the job raised.
        """
        future: asyncio.Future[T] = JobResult(loop=asyncio.get_running_loop())
        connection = self._connection
        # aiosqlite's own calls take a hop per statement, and a task; either slows commits down
        # (ADR 0023). Private, hence the pinned version and this single place.
        connection._tx.put_nowait((future, lambda: job(connection._conn)))  # noqa: SLF001
        return future

    async def close(self) -> None:
        """Close the file after the jobs submitted before, and end the thread."""
        await self._connection.close()
