"""Recency: fresh rows in their own priority, stale ones in the fallback."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import ManualClock
from edgehub.message import DEFAULT_PRIORITY, Recency
from edgehub.store import StoreOptions, row_reading
from edgehub.store.database import Database
from tests.support.stores import (
    LAB,
    P0,
    P2,
    P7,
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
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from edgehub.message import Priority, RouteResult, Row
    from edgehub.store import Queue
    from tests.support.stores import Harness

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
LARGE = 1_000_000 if SOAK else 20_000


def recent(
    seconds: int = 60, fallback: Priority = P7, *, ttl_s: float | None = None
) -> RouteResult:
    """Build a result of a route with recency, priority 2."""
    return a_result(P2, ttl_s=ttl_s, recency=Recency(seconds=seconds, fallback_priority=fallback))


async def demoted(hub: Harness, seconds: float = 6.1) -> None:
    """Let a round pass, and its transactions."""
    await hub.clock.advance(seconds)
    for _ in range(6):
        await hub.store.writer.flush()


def depths(hub: Harness) -> dict[int, int]:
    """Return depth by priority, of queues with rows."""
    found = {int(queue.priority): queue.statistics().depth for queue in hub.store.queues.all()}
    return {priority: depth for priority, depth in found.items() if depth}


async def agree(hub: Harness) -> None:
    """Check that what memory says of each queue is what the file holds."""
    for queue in hub.store.queues.all():
        figures = queue.statistics()
        if not queue.registered:
            assert not figures.depth
            continue
        assert await hub.count(queue) == (figures.depth, figures.bytes)
        zones = await hub.scalar(
            f"SELECT coalesce(sum(rows), 0) FROM zone WHERE queue = {queue.number}"
        )
        assert zones == figures.depth
        stored = await hub.scalar(f"SELECT checkpoint FROM queue WHERE number = {queue.number}")
        assert stored == figures.checkpoint
        lowest = await hub.scalar(f"SELECT min(offset) FROM q_{queue.number}")
        assert lowest is None or lowest == figures.checkpoint + 1


async def test_stale_rows_wait_in_the_fallback_priority(tmp_path: Path) -> None:
    """A row older than its seconds changes queue and keeps offset, times and body; others stay."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(5, recent(60, ttl_s=600))
        stored = await read_all(hub.queue())
        hub.queue().give_back(stored, attempted=False)
        await hub.clock.advance(50)
        await hub.stored(3, recent(60))
        await hub.stored(2, a_result(P2))
        await demoted(hub, 16)
        assert depths(hub) == {2: 5, 7: 5}
        await agree(hub)
        moved = await read_all(hub.queue(P7))
        assert [(row.offset, row.enqueued_ms, row.expires_ms) for row in moved] == [
            (row.offset, row.enqueued_ms, row.expires_ms) for row in stored
        ]
        assert [row.message.message_id for row in moved] == [
            row.message.message_id for row in stored
        ]
        assert bodies(await read_all(hub.queue())) == [b"body-%d" % n for n in range(5, 10)]
        assert hub.queue().statistics().moved_total == 5


async def test_a_stale_row_is_never_sent_from_its_own_priority(tmp_path: Path) -> None:
    """The moment counts, not the next round; meeting stale rows brings the round about."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(4, recent(600))
        await hub.clock.advance(599.9)
        (first,) = await hub.queue().read_batch(1, 1 << 20)
        await hub.clock.advance(0.1)
        assert await hub.queue().read_batch(10, 1 << 20) == []
        await demoted(hub, 0.2)
        assert depths(hub) == {2: 1, 7: 3}
        assert bodies(await read_all(hub.queue(P7))) == [b"body-1", b"body-2", b"body-3"]
        hub.queue().confirm([first])
        await hub.store.writer.flush()
        await agree(hub)


async def test_a_row_that_becomes_stale_while_others_are_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that takes several reads of the file holds no row too old at its end."""
    monkeypatch.setattr(row_reading, "READ_BYTES_MAX", 1)
    clock = ManualClock()

    class SlowReads(Database):
        async def run(self, job: Callable[..., Any]) -> Any:
            found = await super().run(job)
            if getattr(job, "func", None) is row_reading.read_ranges:
                await clock.advance(2)
            return found

    options = StoreOptions(cache_bytes_max=0)
    path = tmp_path / "q.db"
    async with running(path, clock=clock, options=options, database_type=SlowReads) as hub:
        await hub.stored(2, recent(6))
        await hub.stored(3, recent(60))
        rows = await hub.queue().read_batch(9, 1 << 20)
        assert [row.offset for row in rows] == [3, 4, 5]
        await demoted(hub)
        assert depths(hub) == {2: 3, 7: 2}
        assert len(await read_all(hub.queue(P7))) == 2


async def test_rows_that_move_in_while_others_are_read_keep_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that takes several reads of the file is in order, whatever came below meanwhile."""
    monkeypatch.setattr(row_reading, "READ_BYTES_MAX", 1)
    moving: list[Callable[[], Awaitable[None]]] = []

    class BusyReads(Database):
        async def run(self, job: Callable[..., Any]) -> Any:
            found = await super().run(job)
            if getattr(job, "func", None) is row_reading.read_ranges and moving:
                await moving.pop()()
            return found

    options = StoreOptions(cache_bytes_max=0)
    async with running(tmp_path / "q.db", options=options, database_type=BusyReads) as hub:
        await hub.stored(3, recent(10))
        late = await hub.queue().read_batch(3, 1 << 20)
        await hub.stored(5, a_result(P7))
        await hub.clock.advance(11)

        async def move() -> None:
            hub.queue().give_back(late, attempted=False)
            await demoted(hub)

        moving += [move, partial(asyncio.sleep, 0), partial(asyncio.sleep, 0)]
        rows = await hub.queue(P7).read_batch(9, 1 << 20)
        assert [row.offset for row in rows] == list(range(1, 9))


async def test_rows_in_flight_stay_and_move_once_they_came_back(tmp_path: Path) -> None:
    """What the link has is settled first; given back, it goes to the fallback in its place."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(6, recent(10))
        flying = await hub.queue().read_batch(2, 1 << 20)
        await demoted(hub, 16)
        assert depths(hub) == {2: 2, 7: 4}
        ahead = await hub.queue(P7).read_batch(2, 1 << 20)
        assert bodies(ahead) == [b"body-2", b"body-3"]
        hub.queue().give_back(flying, attempted=True)
        assert await read_all(hub.queue()) == []
        await hub.store.writer.flush()
        await demoted(hub)
        assert depths(hub) == {7: 6}
        late = await read_all(hub.queue(P7))
        assert bodies(late) == [b"body-0", b"body-1", b"body-4", b"body-5"]
        assert [row.attempts for row in late] == [1, 1, 0, 0]
        hub.queue(P7).confirm([*ahead, *late])
        await hub.store.writer.flush()
        await agree(hub)


async def test_the_fallback_priority_stays_in_the_order_of_offsets(tmp_path: Path) -> None:
    """Rows that come in go to their places: between, before and behind what waits or was read."""
    async with running(tmp_path / "q.db") as hub:
        for _ in range(4):
            await hub.stored(2, recent(30))
            await hub.stored(2, a_result(P7))
        queue = hub.queue(P7)
        seen = await queue.read_batch(5, 1 << 20)
        queue.hold("dev-1")
        queue.give_back(seen[2:4], attempted=True)
        assert await queue.read_batch(9, 1 << 20) == []
        await demoted(hub, 31)
        await demoted(hub)
        queue.release("dev-1")
        rest = await read_all(queue, rows_max=3)
        offsets = [row.offset for row in rest]
        assert offsets == sorted(offsets)
        kept = {seen[0].offset, seen[1].offset, seen[4].offset}
        assert set(offsets) | kept == set(range(1, 17))
        assert not kept & set(offsets)
        assert [row.attempts for row in rest if row.offset in {seen[2].offset, seen[3].offset}] == [
            1,
            1,
        ]


async def test_lower_rows_that_moved_in_come_before_those_given_back(tmp_path: Path) -> None:
    """Rows that come back, and rows released, keep to the order of those that moved in below."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(8, recent(10))
        late = await hub.queue().read_batch(3, 1 << 20)
        await demoted(hub, 16)
        await demoted(hub)
        queue = hub.queue(P7)
        before = await queue.read_batch(3, 1 << 20)
        assert [row.offset for row in before] == [4, 5, 6]
        hub.queue().give_back(late, attempted=False)
        await demoted(hub, 16)
        await demoted(hub)
        assert depths(hub) == {7: 8}
        seen = await queue.read_batch(1, 1 << 20)
        queue.hold(4)
        queue.give_back(before[:2], attempted=False)
        seen += await queue.read_batch(1, 1 << 20)
        queue.release(4)
        for _ in range(4):
            seen += await queue.read_batch(1, 1 << 20)
        assert [row.offset for row in seen] == [1, 2, 3, 4, 5, 7]


async def test_no_fallback_priority_means_the_default_one(tmp_path: Path) -> None:
    """Absent in the manifest is 2 000 000 000, behind all others; several fallbacks go apart."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(3, recent(10, DEFAULT_PRIORITY))
        await hub.stored(2, recent(10, P7))
        await demoted(hub, 16)
        await demoted(hub)
        assert depths(hub) == {DEFAULT_PRIORITY: 3, 7: 2}
        assert {queue.id for queue in hub.store.queues.of(hub.queue().endpoint_id)} == {
            "upstream",
            "upstream_Pri2",
            "upstream_Pri7",
        }
        await agree(hub)


async def test_shared_bodies_stay_whole(tmp_path: Path) -> None:
    """A message in two queues keeps its body while one copy changes queue, and loses it at last."""
    async with running(tmp_path / "q.db") as hub:
        for number in range(3):
            message = a_message(body=b"shared-%d" % number)
            hub.send(message, recent(10), a_result(P0, endpoint_id=LAB))
        await hub.store.writer.flush()
        await demoted(hub, 16)
        await demoted(hub)
        assert await hub.scalar("SELECT sum(refs) FROM body") == 6
        moved = await read_all(hub.queue(P7))
        assert bodies(moved) == [b"shared-0", b"shared-1", b"shared-2"]
        hub.queue(P7).confirm(moved)
        others = await read_all(hub.queue(P0, LAB))
        assert bodies(others) == bodies(moved)
        hub.queue(P0, LAB).confirm(others)
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM body") == 0


async def test_moved_rows_still_expire(tmp_path: Path) -> None:
    """A move gives no second life: the time to live counts from the enqueue time."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(4, recent(10, ttl_s=40))
        await demoted(hub, 16)
        await demoted(hub)
        assert depths(hub) == {7: 4}
        await demoted(hub, 18)
        assert await read_all(hub.queue(P7)) == []
        await demoted(hub)
        assert depths(hub) == {}
        assert hub.queue(P7).statistics().expired_total == 4


async def test_moves_survive_a_crash(tmp_path: Path) -> None:
    """A crash finds a row in one queue, whichever; stale rows of the last life move in this one."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(3, recent(10))
        await demoted(hub, 16)
        await demoted(hub)
        await hub.stored(3, recent(10))
        copy = crash_copy(hub.path, tmp_path / "crashed")
    async with running(copy) as hub:
        assert depths(hub) == {2: 3, 7: 3}
        await agree(hub)
        assert hub.store.statistics().checkpoint_repaired_total == 0
        await demoted(hub, 16)
        await demoted(hub)
        assert depths(hub) == {7: 6}
        assert bodies(await read_all(hub.queue(P7))) == [b"body-%d" % n for n in (0, 1, 2, 3, 4, 5)]


async def test_a_move_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """A full disk delays a move; it is made once there is room, and nothing is lost or doubled."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(4, recent(10))
        plan.fail("DELETE FROM q_", times=100)
        await demoted(hub, 16)
        assert plan.raised
        assert depths(hub) == {2: 4}
        await agree(hub)
        plan.heal()
        await demoted(hub)
        await demoted(hub)
        assert depths(hub) == {7: 4}
        await agree(hub)


@pytest.mark.scaled
async def test_fresh_rows_flow_first_after_an_outage(tmp_path: Path) -> None:
    """A long backlog of stale rows is passed without being read, and moves in short steps."""
    async with running(tmp_path / "q.db", options=StoreOptions(cache_bytes_max=1)) as hub:
        sent = 0
        while sent < LARGE:
            await hub.stored(1000, recent(60))
            sent += 1000
        await hub.clock.advance(61)
        hub.send_many(5, recent(60))
        await hub.store.writer.flush()
        began = time.perf_counter()
        fresh = await hub.queue().read_batch(100, 1 << 20)
        assert time.perf_counter() - began < 3
        assert bodies(fresh) == [b"body-%d" % n for n in range(LARGE, LARGE + 5)]
        await hub.clock.advance(0.2)
        await hub.until(lambda: depths(hub).get(7) == LARGE)
        await agree(hub)
        oldest = await hub.queue(P7).read_batch(1, 1 << 20)
        assert bodies(oldest) == [b"body-0"]


@pytest.mark.scaled
@pytest.mark.parametrize("linger_ms", [0, 30])
@pytest.mark.parametrize("seed", range(300 if SOAK else 6))
async def test_every_row_is_read_once_whatever_moves_meanwhile(
    tmp_path: Path, seed: int, linger_ms: int
) -> None:
    """Random sends, reads, results, holds and moves: each row is delivered exactly once."""
    rng = random.Random(seed)
    options = StoreOptions(
        cache_bytes_max=rng.choice([1, 20_000, 1 << 20]), commit_delay_ms=linger_ms
    )
    async with running(tmp_path / "q.db", options=options) as hub:
        life = Life(hub, rng)
        for _ in range(150):
            await rng.choice(life.acts)()
        await life.finish()
        await agree(hub)
        assert sorted(life.delivered) == [b"body-%d" % n for n in life.expected()]


class Life:
    """A pump and senders that do what a random number says."""

    def __init__(self, hub: Harness, rng: random.Random) -> None:
        self.hub = hub
        self.rng = rng
        self.flying: list[tuple[Queue, list[Row]]] = []
        self.delivered: list[bytes] = []
        self.held: list[tuple[Queue, str]] = []
        self.acts: list[Callable[[], Awaitable[None]]] = [
            self.send,
            self.send,
            self.read,
            self.read,
            self.settle,
            self.settle,
            self.hold,
            self.tick,
            self.hub.store.writer.flush,
        ]

    def expected(self) -> list[int]:
        """Return the numbers of all messages, in the order of their texts."""
        return sorted(range(len(self.hub.sent)), key=lambda n: b"body-%d" % n)

    async def send(self) -> None:
        """Send a few messages."""
        results = self.rng.choice([recent(3), recent(8), a_result(P7), a_result(P2)])
        self.hub.send_many(self.rng.choice([1, 3, 40]), results, device=self.rng.choice(["a", "b"]))

    async def read(self) -> None:
        """Take a batch."""
        queue = self.rng.choice(self.hub.store.queues.all() or [None])
        if queue is not None and queue.has_ready():
            rows = await queue.read_batch(self.rng.choice([1, 5, 60]), 1 << 20)
            now_ms = self.hub.store.hub_time.now_ms()
            assert all(row.fresh_until_ms > now_ms for row in rows)
            if rows:
                self.flying.append((queue, rows))

    async def settle(self) -> None:
        """Confirm some rows of a batch and give the rest back."""
        if not self.flying:
            return
        queue, rows = self.flying.pop(self.rng.randrange(len(self.flying)))
        good = [row for row in rows if self.rng.random() < 0.6]
        bad = [row for row in rows if row not in good]
        self.delivered.extend(bodies(good))
        queue.confirm(good)
        queue.give_back(bad, attempted=self.rng.random() < 0.5)

    async def hold(self) -> None:
        """Hold a sender back, or let one go."""
        if self.held and self.rng.random() < 0.6:
            queue, sender = self.held.pop()
            queue.release(sender)
            return
        queues = self.hub.store.queues.all()
        if queues:
            entry = (self.rng.choice(queues), self.rng.choice(["a", "b"]))
            if entry not in self.held:
                self.held.append(entry)
                entry[0].hold(entry[1])

    async def tick(self) -> None:
        """Let time pass."""
        await self.hub.clock.advance(self.rng.choice([0.05, 0.2, 1.0, 4.0]))

    async def finish(self) -> None:
        """Deliver all that is left."""
        while self.held:
            queue, sender = self.held.pop()
            queue.release(sender)
        while self.flying:
            await self.settle()
        for _ in range(400):
            await self.hub.store.writer.flush()
            if not depths(self.hub):
                return
            await self.hub.clock.advance(1.0)
            for queue in self.hub.store.queues.all():
                rows = await read_all(queue)
                self.delivered.extend(bodies(rows))
                queue.confirm(rows)
        raise AssertionError(depths(self.hub))


async def test_a_row_that_became_stale_before_its_commit_is_moved_soon_after_it(
    tmp_path: Path,
) -> None:
    """The pump has passed over it while it was not in the file, and does not meet it again."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1, recent(3600))
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        await hub.store.writer.flush()
        plan.fail("COMMIT", times=10_000)
        hub.send(None, recent(3600))
        await hub.until(lambda: hub.store.statistics().failing is not None)
        await hub.clock.advance(3601)
        assert await read_all(queue) == []
        await hub.clock.advance(1)
        plan.heal()
        await hub.until(lambda: depths(hub) == {7: 1}, tick_s=1.0, within_s=10)
        assert bodies(await read_all(hub.queue(P7))) == [b"body-1"]
        await agree(hub)
