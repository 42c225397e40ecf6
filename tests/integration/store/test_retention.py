"""Time to live: expiry at reading, clean-up in both modes, space given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.store import StoreOptions
from edgehub.store.boots import FIRST_HUB_MS
from tests.support.stores import (
    LAB,
    FaultPlan,
    a_message,
    a_result,
    bodies,
    crash_copy,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = pytest.mark.integration

HEAD_ONLY = StoreOptions(check_entire_queue_on_cleanup=False)


async def cleaned(hub: Harness, seconds: float = 6.0) -> None:
    """Let one clean-up round pass, and its transactions."""
    await hub.clock.advance(seconds)
    for _ in range(5):
        await hub.store.writer.flush()


async def test_expiry_is_by_deadline_not_by_position(tmp_path: Path) -> None:
    """T-01: a long-lived row at the head does not keep short-lived ones behind it."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(1, a_result(ttl_s=604_800))
        await hub.stored(5, a_result(ttl_s=5))
        queue = hub.queue()
        await cleaned(hub, 5.1)
        await cleaned(hub, 5.1)
        figures = queue.statistics()
        assert (figures.expired_total, figures.depth) == (5, 1)
        assert (await hub.count(queue)) == (1, figures.bytes)
        assert bodies(await read_all(queue)) == [b"body-0"]


async def test_head_only_cleanup_stops_at_the_first_live_row(tmp_path: Path) -> None:
    """CheckEntireQueueOnCleanup = false: expired rows behind a live one stay, but are not sent."""
    async with running(tmp_path / "q.db", options=HEAD_ONLY) as hub:
        await hub.stored(3, a_result(ttl_s=5))
        await hub.stored(1, a_result(ttl_s=600))
        await hub.stored(4, a_result(ttl_s=5))
        await hub.stored(1, a_result())
        queue = hub.queue()
        await cleaned(hub, 5.1)
        await cleaned(hub)
        assert queue.statistics().expired_total == 3
        assert (await hub.count(queue))[0] == 6
        rows = await read_all(queue)
        assert bodies(rows) == [b"body-3", b"body-8"]
        queue.confirm(rows[:1])
        await cleaned(hub)
        assert queue.statistics().expired_total == 7
        assert (await hub.count(queue))[0] == 1


async def test_head_only_cleanup_passes_rows_in_flight(tmp_path: Path) -> None:
    """Rows in flight are neither deleted nor in the way."""
    async with running(tmp_path / "q.db", options=HEAD_ONLY) as hub:
        await hub.stored(6, a_result(ttl_s=5))
        queue = hub.queue()
        rows = await queue.read_batch(2, 1 << 20)
        await cleaned(hub, 5.1)
        await cleaned(hub)
        assert (await hub.count(queue))[0] == 2
        queue.confirm(rows)
        await hub.store.writer.flush()
        figures = queue.statistics()
        assert (figures.sent_total, figures.expired_total, figures.depth) == (2, 4, 0)


@pytest.mark.parametrize("options", [StoreOptions(), HEAD_ONLY], ids=["entire", "head"])
async def test_expired_rows_are_never_sent_and_leave_the_disk_soon(
    tmp_path: Path, options: StoreOptions
) -> None:
    """T-08: a TTL of 10 s is kept to within seconds, whatever the clean-up mode."""
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(1000, a_result(ttl_s=10))
        await hub.stored(1000, a_result(ttl_s=10), a_result(ttl_s=10, endpoint_id=LAB))
        await hub.clock.advance(10.0)
        for queue in hub.store.queues.all():
            assert await read_all(queue) == []
        await cleaned(hub)
        for queue in hub.store.queues.all():
            assert await hub.count(queue) == (0, 0)
            assert queue.statistics().depth == 0
        assert await hub.scalar("SELECT count(*) FROM body") == 0
        assert await hub.scalar("SELECT count(*) FROM zone") == 0
        assert [q.statistics().expired_total for q in hub.store.queues.all()] == [1000, 2000]


async def test_in_flight_rows_do_not_expire_until_their_send_fails(tmp_path: Path) -> None:
    """A row on its way may still arrive; given back, it is not sent again."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(4, a_result(ttl_s=5))
        queue = hub.queue()
        rows = await queue.read_batch(4, 1 << 20)
        await cleaned(hub, 5.1)
        await cleaned(hub)
        assert queue.statistics().depth == 4
        queue.confirm(rows[:1])
        queue.expire(rows[1:2])
        queue.give_back(rows[2:], attempted=True)
        assert await read_all(queue) == []
        await cleaned(hub)
        figures = queue.statistics()
        assert (figures.sent_total, figures.expired_total, figures.depth) == (1, 3, 0)
        assert await hub.count(queue) == (0, 0)


async def test_confirmed_row_past_its_expiry_counts_as_sent(tmp_path: Path) -> None:
    """Clean-up does not touch rows whose result waits for its commit."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(5, a_result(ttl_s=5))
        queue = hub.queue()
        rows = await queue.read_batch(3, 1 << 20)
        plan.fail("DELETE FROM q_1 WHERE offset", "SQLITE_IOERR", times=2)
        queue.confirm(rows)
        await hub.clock.advance(6)
        await hub.until(lambda: queue.statistics().depth == 0, tick_s=1)
        figures = queue.statistics()
        assert (figures.sent_total, figures.expired_total) == (3, 2)


async def test_shorter_wish_of_the_sender_counts_a_longer_one_does_not(tmp_path: Path) -> None:
    """A sender's expiry shortens the route's time to live and never lengthens it."""
    async with running(tmp_path / "q.db") as hub:
        hub.send(a_message(body=b"short", expiry_ms=5000), a_result(ttl_s=60))
        hub.send(a_message(body=b"long", expiry_ms=90_000), a_result(ttl_s=60))
        hub.send(a_message(body=b"alone", expiry_ms=5000), a_result())
        await hub.store.writer.flush()
        now = hub.store.hub_time.now_ms()
        rows = await read_all(hub.queue())
        assert [row.expires_ms - now for row in rows] == [5000, 60_000, 5000]


async def test_long_backlog_expires_in_steps_and_wholly_expired_zones_are_not_read(
    tmp_path: Path,
) -> None:
    """T-06: thousands of expired rows go in several transactions, and reading jumps over them."""
    plan = FaultPlan()
    options = StoreOptions(cache_bytes_max=1)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(25_000, a_result(ttl_s=5))
        await hub.stored(10, a_result())
        queue = hub.queue()
        plan.statements.clear()
        await hub.clock.advance(5)
        rows = await read_all(queue)
        assert len(rows) == 10
        reads = [sql for sql in plan.statements if sql.startswith("SELECT q.offset")]
        assert len(reads) <= 3
        await cleaned(hub)
        await hub.until(lambda: queue.statistics().depth == 10)
        assert queue.statistics().expired_total == 25_000
        # 5 000 rows; the first zone lacks one.
        assert max(zones_by_transaction(plan)) <= 6
        assert sum(zones_by_transaction(plan)) >= 25


async def test_a_step_of_clean_up_ends_by_time_too(tmp_path: Path) -> None:
    """T-06: on a slow disk the zones of one step are few, and ingest has its turn after each."""

    class SlowClock(ManualClock):
        def monotonic(self) -> float:
            """Let each look at the clock cost 20 ms once the disk has become slow."""
            nonlocal looks
            looks += is_slow
            return super().monotonic() + looks * 0.02

    looks, is_slow = 0, False
    plan = FaultPlan()
    database = faulty_database(plan)
    async with running(tmp_path / "q.db", clock=SlowClock(), database_type=database) as hub:
        await hub.stored(8000, a_result(ttl_s=5))
        plan.statements.clear()
        is_slow = True
        await cleaned(hub, 11)
        await hub.until(lambda: hub.queue().statistics().depth == 0)
        assert max(zones_by_transaction(plan)) <= 3


def zones_by_transaction(plan: FaultPlan) -> list[int]:
    """Return how many zones each transaction of clean-up has looked at."""
    counts = [0]
    for sql in plan.statements:
        if sql.startswith("BEGIN"):
            counts.append(0)
        elif sql.startswith("SELECT count(*), coalesce"):
            counts[-1] += 1
    return counts


async def test_clean_up_that_lags_behind_says_by_how_much(tmp_path: Path) -> None:
    """T-06: `expiry_lag_seconds` grows while expired rows stay on disk, and ends with them."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(3000, a_result(ttl_s=30))
        await hub.stored(1, a_result(ttl_s=86_400))
        flying = await hub.queue().read_batch(1, 1 << 20)

        def lag_s() -> float:
            return hub.store.statistics().expiry_lag_seconds

        await cleaned(hub, 29)
        assert lag_s() == 0
        plan.fail("DELETE FROM q_", "SQLITE_FULL", times=10**6)
        await cleaned(hub, 61)
        assert lag_s() == pytest.approx(60, abs=1)
        assert hub.queue().statistics().depth == 3001
        plan.heal()
        await cleaned(hub, 1)
        await hub.until(lambda: hub.queue().statistics().depth == 2, tick_s=0.5, within_s=6)
        for _ in range(6):
            await cleaned(hub, 5)
        # A row in flight does not expire, and nothing waits because of it.
        assert lag_s() <= 5.5
        hub.queue().confirm(flying)
        await hub.store.writer.flush()
        await cleaned(hub, 11)
        assert lag_s() == 0


async def test_partly_expired_zones_are_not_read_again_and_again(tmp_path: Path) -> None:
    """A zone that keeps live rows is looked at once, not in every round."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        for _ in range(3000):
            hub.send(None, a_result(ttl_s=5 if len(hub.sent) % 2 else 86_400))
        await hub.store.writer.flush()
        await cleaned(hub, 5.1)
        await cleaned(hub)
        assert hub.queue().statistics().depth == 1500
        plan.statements.clear()
        await cleaned(hub)
        await cleaned(hub)
        assert not [sql for sql in plan.statements if sql.startswith("SELECT count(*), coal")]


async def test_period_follows_the_shortest_time_to_live(tmp_path: Path) -> None:
    """10 % of the shortest TTL, at least 5 s; a shorter TTL shortens the wait that runs."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(1, a_result(ttl_s=1000))
        queue = hub.queue()
        await cleaned(hub, 1001)
        await hub.clock.advance(98)
        await hub.until(lambda: queue.statistics().depth == 0, tick_s=1)
        await hub.stored(1, a_result(ttl_s=5))
        await cleaned(hub, 5.1)
        await hub.until(lambda: queue.statistics().depth == 0, tick_s=0.5)
        assert queue.statistics().expired_total == 2


async def test_rows_that_expired_while_off_are_not_sent(tmp_path: Path) -> None:
    """Time to live goes on over a restart in the same boot and while the power is off."""
    path = tmp_path / "q.db"
    clock = ManualClock(boot_id="a")
    async with running(path, clock=clock) as hub:
        await hub.stored(3, a_result(ttl_s=600))
        await hub.stored(2, a_result(ttl_s=1200))
    later = ManualClock(boot_id="b", wall_ms=clock.wall_ms() + 900_000)
    async with running(path, clock=later) as hub:
        queue = hub.queue()
        assert bodies(await read_all(queue)) == [b"body-3", b"body-4"]
        await hub.until(lambda: queue.statistics().depth == 2, tick_s=1)
        assert queue.statistics().expired_total == 3


async def test_wall_clock_steps_expire_nothing(tmp_path: Path) -> None:
    """A step of the wall clock, either way, neither expires a row nor makes it immortal."""
    path = tmp_path / "q.db"
    clock = ManualClock()
    async with running(path, clock=clock) as hub:
        await hub.stored(2, a_result(ttl_s=60))
        clock.step_wall(86_400_000)
        await hub.clock.advance(30)
    async with running(path, clock=clock) as hub:
        clock.step_wall(-10 * 86_400_000)
        queue = hub.queue()
        rows = await read_all(queue)
        assert len(rows) == 2
        queue.give_back(rows, attempted=False)
        await cleaned(hub, 31)
        await hub.until(lambda: queue.statistics().depth == 0, tick_s=5)


async def test_hub_time_goes_on_over_restarts(tmp_path: Path) -> None:
    """Same boot: by the boot clock; other boot: by the wall clock, never backwards."""
    path = tmp_path / "q.db"
    clock = ManualClock(boot_id="a")
    async with running(path, clock=clock) as hub:
        await hub.stored(1)
        stored = hub.store.hub_time.now_ms()
        await hub.clock.advance(3)
    async with running(path, clock=clock) as hub:
        assert hub.store.hub_time.now_ms() == stored + 3000
        await hub.stored(1)
        copy = crash_copy(path, tmp_path / "crash")
    back = ManualClock(boot_id="c", wall_ms=clock.wall_ms() - 10**9)
    async with running(copy, clock=back) as hub:
        assert hub.store.hub_time.now_ms() == stored + 3000
        await hub.stored(1)
    forth = ManualClock(boot_id="d", wall_ms=clock.wall_ms() + 5000)
    async with running(path, clock=forth) as hub:
        assert hub.store.hub_time.now_ms() == stored + 8000
        await hub.stored(1)
        boots = await hub.store.database.run(
            lambda conn: conn.execute("SELECT boot_id, first_hub_ms FROM boot").fetchall()
        )
        assert boots == [("a", FIRST_HUB_MS), ("d", stored + 8000)]


async def test_failed_cleanup_is_tried_again(tmp_path: Path) -> None:
    """A clean-up step that the disk refuses changes nothing and comes again."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(5, a_result(ttl_s=5))
        plan.fail("DELETE FROM q_", "SQLITE_IOERR")
        await hub.clock.advance(5.1)
        await hub.until(lambda: plan.raised == 1, tick_s=1)
        queue = hub.queue()
        assert queue.statistics().depth == 5
        await hub.until(lambda: queue.statistics().depth == 0, tick_s=1)
        assert queue.statistics().expired_total == 5
