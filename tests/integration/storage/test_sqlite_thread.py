"""The thread of a database file: jobs in their order, whatever becomes of their waiters."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from edgehub.storage.sqlite_thread import SqliteThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[SqliteThread]:
    """Open one on a new file."""
    thread = SqliteThread(tmp_path / "a.db")
    await thread.open()
    yield thread
    await thread.close()


async def test_jobs_run_one_after_another_off_the_loop(thread: SqliteThread) -> None:
    """In the order of `submit`, all on one thread that is not the loop's."""
    ran: list[int] = []

    def job(number: int, connection: sqlite3.Connection) -> int:
        ran.append(number)
        connection.execute("SELECT 1").fetchone()
        return threading.get_ident()

    tasks = [thread.submit(partial(job, number)) for number in range(20)]
    threads = {await task for task in tasks}
    assert ran == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_a_job_that_fails_fails_alone(thread: SqliteThread) -> None:
    """Its error keeps SQLite's code; the next job finds the connection as before."""
    failing = thread.submit(lambda connection: connection.execute("SELECT * FROM missing"))
    after = thread.submit(lambda connection: connection.execute("SELECT 7").fetchone())
    with pytest.raises(sqlite3.OperationalError) as caught:
        await failing
    assert caught.value.sqlite_errorcode == sqlite3.SQLITE_ERROR
    assert await after == (7,)


async def test_a_close_comes_after_the_jobs_submitted_before(tmp_path: Path) -> None:
    """Also where none of them has reached the thread yet, and their waiters are gone."""
    path = tmp_path / "a.db"
    thread = SqliteThread(path)
    await thread.open()

    async def waiter() -> None:
        await asyncio.wait((thread.submit(lambda conn: conn.execute("CREATE TABLE t (a)")),))

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(waiter())
        await asyncio.sleep(0)
        waiting.cancel()
    for _ in range(10):
        thread.submit(lambda conn: conn.execute("INSERT INTO t VALUES (1)"))
    await thread.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (10,)
    connection.close()
