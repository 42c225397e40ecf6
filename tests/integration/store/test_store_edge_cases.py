"""Bounds, cancelled waiters and a disk that fails at awkward moments."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.errors import StartupError
from edgehub.message import Refusal
from edgehub.store import QueueState, Store, StoreOptions
from edgehub.store import database as database_module
from edgehub.store import held_rows as held_rows_module
from edgehub.store import reader as reader_module
from tests.support.stores import (
    FaultPlan,
    a_message,
    a_result,
    bodies,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


async def test_cancelled_waiter_of_an_operation_harms_nothing(tmp_path: Path) -> None:
    """The operation is stored; its waiter is gone; others get their answers."""
    async with running(tmp_path / "q.db") as hub:
        hub.send()
        task = asyncio.ensure_future(
            hub.store.writer.transact(lambda conn: conn.execute("INSERT INTO meta VALUES ('a', 1)"))
        )
        await asyncio.sleep(0)
        task.cancel()
        await hub.store.writer.flush()
        assert hub.accepted == [0]
        assert await hub.scalar("SELECT count(*) FROM meta WHERE key = 'a'") == 1


async def test_skipped_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound of skipped rows the queue reads no further until something is released."""
    monkeypatch.setattr(held_rows_module, "HELD_ROWS_MAX", 10)
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(10, device="slow")
        await hub.stored(5, device="fast")
        queue = hub.queue()
        queue.hold("slow")
        assert len(await read_all(queue)) == 5
        await hub.stored(3, device="fast")
        assert not queue.has_ready()
        assert await queue.read_batch(1, 1) == []
        queue.release("slow")
        assert len(await read_all(queue)) == 13


async def test_unstored_results_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While deletes cannot be stored, a queue stops after a bounded number of deliveries."""
    monkeypatch.setattr(reader_module, "UNSTORED_ROWS_MAX", 20)
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(50)
        queue = hub.queue()
        plan.fail("BEGIN", times=10**6)
        delivered = 0
        while rows := await queue.read_batch(5, 1 << 20):
            queue.confirm(rows)
            delivered += len(rows)
        assert delivered == 20
        assert not queue.has_ready()
        plan.heal()
        await hub.store.writer.flush()
        assert len(await read_all(queue)) == 30


async def test_backlog_that_expired_unread_is_passed(tmp_path: Path) -> None:
    """A queue of which nothing is left alive gives nothing and says so."""
    async with running(tmp_path / "q.db", options=StoreOptions(cache_bytes_max=1)) as hub:
        await hub.stored(1500, a_result(ttl_s=4))
        await hub.stored(1500, a_result(ttl_s=4))
        await hub.clock.advance(4.5)
        queue = hub.queue()
        assert await read_all(queue) == []
        assert not queue.has_ready()
        assert queue.state is QueueState.DELAYED
        await hub.stored(2)
        assert len(await read_all(queue)) == 2


async def test_failed_log_checkpoint_is_tried_again(tmp_path: Path) -> None:
    """A log that cannot be moved now is moved later; commits go on."""
    plan = FaultPlan()
    options = StoreOptions(wal_bytes_max=100_000)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        plan.fail("PRAGMA wal_checkpoint(PASSIVE)", "SQLITE_IOERR", times=2)
        for _ in range(30):
            await hub.stored(100)
        assert plan.raised == 2
        assert hub.store.statistics().wal_bytes_total > 0
        plan.fail("PRAGMA wal_checkpoint(TRUNCATE)", "SQLITE_BUSY")
    async with running(tmp_path / "q.db") as hub:
        assert hub.queue().statistics().depth == 3000


@pytest.mark.parametrize("code", ["SQLITE_CORRUPT", "SQLITE_FULL"])
async def test_a_log_that_cannot_be_emptied_at_the_end_does_not_keep_the_file_open(
    tmp_path: Path, code: str
) -> None:
    """Closing says so and lets go; the next start finds every row."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(5)
        plan.fail("PRAGMA wal_checkpoint(TRUNCATE)", code)
    assert plan.raised == 1
    async with running(tmp_path / "q.db") as hub:
        assert hub.queue().statistics().depth == 5


async def test_failed_look_at_free_space_is_tried_again(tmp_path: Path) -> None:
    """Giving space back is not worth a failure of the hub, and goes on with the next look."""
    path = tmp_path / "q.db"
    plan = FaultPlan()
    async with running(path, database_type=faulty_database(plan)) as hub:
        for _ in range(40):
            hub.send(a_message(body=bytes(100_000)))
        await hub.store.writer.flush()
        # By the watch of the volume, and by what gives pages back.
        plan.fail("PRAGMA freelist_count", "SQLITE_IOERR", times=4)
        await hub.until(lambda: not plan.is_armed, tick_s=1, within_s=30)
        plan.statements.clear()
        hub.queue().confirm(await read_all(hub.queue()))
        await hub.store.writer.flush()
        with capture_logs() as logs:
            await hub.until(
                lambda: "store.space_given_back" in [line["event"] for line in logs],
                tick_s=1,
                within_s=300,
            )
        assert "PRAGMA page_count" in plan.statements
        await hub.stored(1)


async def test_close_waits_for_its_commit_and_is_cancelled_after(tmp_path: Path) -> None:
    """A cancelled close still commits, closes the file, and passes the cancellation on."""
    path = tmp_path / "q.db"
    store = await Store.open(path, clock=ManualClock(), options=StoreOptions())
    done: list[Refusal | None] = []
    for _ in range(500):
        store.appender.append(
            a_message(), (a_result(),), lambda _token, refusal: done.append(refusal), 0
        )
    task = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [None] * 500
    async with running(path) as hub:
        assert hub.queue().statistics().depth == 500


async def test_close_refuses_all_that_waits(tmp_path: Path) -> None:
    """Open group, sealed groups, operations and clean-up steps: nobody is left waiting."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1, a_result(ttl_s=5))
        plan.fail("BEGIN", "SQLITE_READONLY", times=10**6)
        hub.send_many(2500)
        tasks = [
            asyncio.ensure_future(hub.store.writer.transact(lambda _conn: None)) for _ in range(2)
        ]
        await hub.until(lambda: hub.store.statistics().failing is not None)
        tasks[0].cancel()
        await hub.clock.advance(6)
        await hub.store.close()
        assert [refusal for _, refusal in hub.settled[1:]] == [Refusal.CLOSED] * 2500
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["CancelledError", "StoreError"]


@pytest.mark.parametrize("code", ["SQLITE_IOERR", "SQLITE_CORRUPT"])
@pytest.mark.parametrize("start", ["PRAGMA journal_mode", "SELECT number, endpoint_id"])
async def test_error_at_start_says_why(tmp_path: Path, code: str, start: str) -> None:
    """A file that can in no way be read at start is a start-up error, and is let go of."""
    plan = FaultPlan()
    plan.fail(start, code, times=10)
    path = tmp_path / "q.db"
    with pytest.raises(StartupError, match=r"q\.db cannot be opened"):
        await Store.open(
            path,
            clock=ManualClock(),
            options=StoreOptions(),
            database_type=faulty_database(plan),
        )
    async with running(path):
        pass


async def test_old_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library without what the schema needs is refused with the version needed."""
    monkeypatch.setattr(database_module, "SQLITE_VERSION_MIN", (99, 0, 0))
    with pytest.raises(StartupError, match="too old"):
        await Store.open(tmp_path / "q.db", clock=ManualClock(), options=StoreOptions())


async def test_early_row_can_expire_before_its_commit(tmp_path: Path) -> None:
    """A row read before its commit whose time ends is acknowledged, counted and not written."""
    options = StoreOptions(commit_delay_ms=1000)
    async with running(tmp_path / "q.db", options=options) as hub:
        hub.send_many(2, a_result(ttl_s=0.5))
        queue = hub.queue()
        rows = await read_all(queue)
        queue.expire(rows[:1])
        assert hub.accepted == [0]
        assert queue.statistics().expired_total == 1
        queue.give_back(rows[1:], attempted=False)
        await hub.clock.advance(0.6)
        assert await read_all(queue) == []
        await hub.store.writer.flush()
        assert bodies(await read_all(queue)) == []


async def test_flush_waits_for_results_that_had_to_wait(tmp_path: Path) -> None:
    """Results of rows that were not stored yet are stored by the same flush."""
    options = StoreOptions(commit_delay_ms=1000)
    async with running(tmp_path / "q.db", options=options) as hub:
        hub.send_many(1100)
        queue = hub.queue()
        await hub.until(lambda: len(hub.settled) == 1024)
        rows = await queue.read_batch(2000, 1 << 30)
        queue.give_back(rows[-1:], attempted=True)
        queue.confirm(rows[:-1])
        await hub.store.writer.flush()
        assert await hub.count(queue) == (1, rows[-1].size)
        assert await hub.scalar("SELECT attempts FROM q_1") == 1
