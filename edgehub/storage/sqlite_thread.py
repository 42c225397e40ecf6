"""A connection to a database file, and the thread that works on it.

Owns the connection; nothing else opens the file. A job is a function that gets the plain
connection, so that a whole transaction costs one hop between threads instead of one per statement.
Invariant: jobs run one after another, in the order in which they were submitted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import aiosqlite

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    T = TypeVar("T")
    Job = Callable[[sqlite3.Connection], T]

FETCHED_AT_ONCE: Final = 64
"""Rows; no cursor of aiosqlite's is ever read."""


class SqliteThread:
    """See the module.

    Args:
        connect: Opens the file; called on the thread.
    """

    __slots__ = ("_connection", "_submitted")

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connection = aiosqlite.Connection(
            lambda: cast("sqlite3.Connection", _JobRunner(connect)), FETCHED_AT_ONCE
        )
        self._submitted: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Start the thread and open the file; `close` ends the thread even where this raises.

        Raises:
            sqlite3.Error: The file cannot be opened.
        """
        await self._connection
        await self.submit(lambda _connection: None)

    def submit(self, job: Job[T]) -> asyncio.Task[T]:
        """Run `job` on the thread after those submitted before.

        The task fails with whatever the job raised. A waiter that is cancelled must leave it
        alone, as `asyncio.wait` does.
        """
        task = asyncio.get_running_loop().create_task(self._run(job))
        self._submitted.add(task)
        task.add_done_callback(self._submitted.discard)
        return task

    async def close(self) -> None:
        """Close the file after the jobs submitted before, and end the thread."""
        if self._submitted:
            await asyncio.wait(self._submitted)
        await self._connection.close()

    async def _run(self, job: Job[T]) -> T:
        results: list[T] = []
        script = cast("str", lambda connection: results.append(job(connection)))
        await self._connection.executescript(script)
        return results[0]


class _JobRunner:
    """What aiosqlite takes for the connection, whose methods it calls on its thread.

    Its own calls are one hop per statement; a job in the place of a script is one for all. The
    file is opened by the first job: aiosqlite does not wait for a thread whose start failed.
    """

    __slots__ = ("_connect", "_connection")

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None

    def executescript(self, job: Job[None]) -> None:
        """Run a job."""
        if self._connection is None:
            self._connection = self._connect()
        job(self._connection)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
