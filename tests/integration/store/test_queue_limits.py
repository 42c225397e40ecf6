"""Limits of rows, bytes and disk: what gives way, what is refused, and what is said about it."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.hub.store import store_options
from edgehub.message import Refusal
from edgehub.settings import Settings, StoreSettings
from edgehub.store import Caps, Overflow, StoreOptions
from edgehub.store.caps import Cap
from edgehub.store.limits import Limits
from tests.support.stores import (
    LAB,
    P0,
    P2,
    P7,
    FaultPlan,
    a_message,
    a_result,
    bodies,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from edgehub.message import Priority, Row
    from edgehub.store import Queue
    from edgehub.store.queues import Queues
    from tests.support.stores import Harness

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))


def limited(
    overflow: Overflow = Overflow.BY_VALUE,
    *,
    linger_ms: int = 0,
    cache_bytes: int = 1 << 20,
    **caps: int,
) -> StoreOptions:
    """Build options with caps."""
    return StoreOptions(
        caps=Caps(overflow=overflow, **caps),
        commit_delay_ms=linger_ms,
        cache_bytes_max=cache_bytes,
    )


async def waiting(hub: Harness, priority: Priority = P2) -> list[bytes]:
    """Read all that a queue holds and give it back."""
    await hub.store.writer.flush()
    queue = hub.queue(priority)
    rows = await read_all(queue)
    queue.give_back(rows, attempted=False)
    return bodies(rows)


async def exact(hub: Harness) -> None:
    """Check that figures, zones and rows agree, and that every copy is accounted for."""
    await hub.store.writer.flush()
    for queue in hub.store.queues.all():
        figures = queue.statistics()
        left = figures.sent_total + figures.expired_total + figures.dropped_total
        assert figures.enqueued_total - left == figures.depth
        if queue.registered:
            assert await hub.count(queue) == (figures.depth, figures.bytes)
        assert (queue.rows_taken, queue.bytes_taken) == (figures.depth, figures.bytes)


async def test_drop_newest_keeps_what_is_there(tmp_path: Path) -> None:
    """S-14: cap 100, 500 sent at once: exactly 100 stored, 400 acknowledged and counted."""
    options = limited(Overflow.DROP_NEWEST, queue_rows=100)
    async with running(tmp_path / "q.db", options=options) as hub:
        hub.send_many(500)
        await hub.until_settled(500)
        assert len(hub.accepted) == 500
        assert await waiting(hub) == [b"body-%d" % n for n in range(100)]
        assert hub.queue().statistics().dropped_total == 400
        await exact(hub)


async def test_drop_oldest_keeps_the_newest(tmp_path: Path) -> None:
    """Cap 100, 500 sent in one burst: the last 100 remain, never more than the cap on disk."""
    options = limited(Overflow.DROP_OLDEST, queue_rows=100)
    async with running(tmp_path / "q.db", options=options) as hub:
        hub.send_many(500)
        await hub.until_settled(500)
        assert len(hub.accepted) == 500
        assert await waiting(hub) == [b"body-%d" % n for n in range(400, 500)]
        assert hub.queue().statistics().dropped_total == 400
        await exact(hub)


async def test_the_cap_counts_rows_in_flight(tmp_path: Path) -> None:
    """S-15: cap 1, 21 sent: one is stored, whatever the window; in flight it never gives way."""
    options = limited(Overflow.DROP_OLDEST, queue_rows=1)
    async with running(tmp_path / "q.db", options=options) as hub:
        hub.send_many(21)
        await hub.until_settled(21)
        queue = hub.queue()
        rows = await read_all(queue)
        assert bodies(rows) == [b"body-20"]
        hub.send()
        await hub.until_settled(22)
        assert hub.settled[-1] == (21, Refusal.LIMIT)
        queue.confirm(rows)
        hub.send()
        await hub.store.writer.flush()
        assert hub.settled[-1] == (22, None)
        assert queue.statistics().sent_total == 1
        await exact(hub)


async def test_reject_new_says_so(tmp_path: Path) -> None:
    """S-12: cap 1000, 1001 sent: the last one is refused; status names cap, queue, since when."""
    options = limited(Overflow.REJECT_NEW, queue_rows=1000)
    async with running(tmp_path / "q.db", options=options) as hub:
        hub.send_many(1001, a_result(P7))
        await hub.until_settled(1001)
        await hub.store.writer.flush()
        assert (1000, Refusal.LIMIT) in hub.settled
        assert len(hub.accepted) == 1000
        await hub.clock.advance(3.0)
        (reached,) = hub.store.statistics().limits
        assert (reached.cap, reached.queue) == ("queue rows", "upstream_Pri7")
        assert (reached.overflow, reached.refused, reached.dropped) == ("reject_new", 1, 0)
        assert reached.for_s == pytest.approx(3.0, abs=0.2)
        await hub.until(lambda: hub.store.statistics().limits == [], tick_s=5.0)
        assert hub.clock.monotonic() > 55


async def test_what_has_expired_makes_room_within_a_second(tmp_path: Path) -> None:
    """A full cap brings the next clean-up near, though with long times to live it is rare."""
    options = limited(Overflow.REJECT_NEW, queue_rows=10)
    async with running(tmp_path / "q.db", options=options) as hub:
        # The shortest time to live has a round follow each 1500 s, so one at 19 600 s.
        await hub.stored(1, a_result(ttl_s=15_000, endpoint_id=LAB))
        await hub.stored(10, a_result(ttl_s=20_000))
        await hub.clock.advance(15_100)
        await hub.until(lambda: hub.queue(endpoint_id=LAB).statistics().depth == 0)
        await hub.clock.advance(5_000)
        for _ in range(10):
            await hub.store.writer.flush()
        assert hub.queue().statistics().depth == 10
        hub.send()
        await hub.until_settled(12)
        assert hub.settled[-1] == (11, Refusal.LIMIT)
        await hub.until(lambda: hub.queue().statistics().depth == 0, tick_s=0.25, within_s=1)
        await hub.stored(1)
        assert hub.settled[-1] == (12, None)
        # Once: later rounds have their time again, which is five seconds at the least.
        await hub.stored(1, a_result(P7, ttl_s=1))
        await hub.clock.advance(2.5)
        for _ in range(10):
            await hub.store.writer.flush()
        assert hub.queue(P7).statistics().depth == 1


async def test_a_cap_that_stays_reached_is_reported_every_five_minutes() -> None:
    """One line when it is reached, then one in each period, however many rows give way."""
    clock = ManualClock()
    limits = Limits(
        Caps(),
        cast("Queues", ()),  # none is counted here
        clock=clock,
        events=None,
        seal=lambda: None,
        clean_up_soon=lambda: None,
    )
    with capture_logs() as logs:
        for _ in range(130):
            limits.evicted(Cap.HUB_ROWS, None, 10)
            await clock.advance(5)
            limits.report()
    assert [(line["event"], line["dropped"]) for line in logs] == [
        ("store.limit_reached", dropped) for dropped in (0, 600, 1200)
    ]


async def test_the_cap_that_is_hit_first_is_named(tmp_path: Path) -> None:
    """S-20: 3 000 rows and 1 MB: with 700 bytes a message the bytes come first."""
    options = limited(Overflow.REJECT_NEW, queue_rows=3000, queue_bytes=1_000_000)
    async with running(tmp_path / "q.db", options=options) as hub:
        for _ in range(2000):
            hub.send(a_message(body=bytes(700)))
        await hub.until_settled(2000)
        await hub.store.writer.flush()
        (reached,) = hub.store.statistics().limits
        assert reached.cap == "queue bytes"
        figures = hub.queue().statistics()
        assert figures.depth == len(hub.accepted) == 2000 - reached.refused
        assert 1_000_000 - 900 < figures.bytes <= 1_000_000


async def test_the_worst_priority_gives_way_first(tmp_path: Path) -> None:
    """By value: expired, then the oldest of the worst; a newcomer evicts nothing better."""
    async with running(tmp_path / "q.db", options=limited(rows=30)) as hub:
        await hub.stored(10, a_result(P7))
        await hub.stored(10, a_result(P2))
        await hub.stored(10, a_result(P2, endpoint_id=LAB))
        await hub.stored(4, a_result(P0))
        assert await waiting(hub, P7) == [b"body-%d" % n for n in range(4, 10)]
        await hub.stored(8, a_result(P0))
        assert await waiting(hub, P7) == []
        assert await waiting(hub) == [b"body-%d" % n for n in range(12, 20)]
        assert hub.queue(P2, LAB).statistics().depth == 10
        before = len(hub.settled)
        await hub.stored(1, a_result(P7))
        assert hub.settled[before:] == [(before, Refusal.LIMIT)]
        await hub.stored(3, a_result(P2))
        assert len(await waiting(hub)) == 8
        assert sum(queue.statistics().depth for queue in hub.store.queues.all()) == 30
        await exact(hub)


async def test_a_better_row_stays_though_the_worse_ones_are_being_sent(tmp_path: Path) -> None:
    """What an alarm took its room from is over: the next row of low priority evicts no alarm."""
    async with running(tmp_path / "q.db", options=limited(rows=3)) as hub:
        await hub.stored(3, a_result(P7))
        await hub.stored(1, a_result(P0))
        hub.send(None, a_result(P7))
        rows = await hub.queue(P7).read_batch(2, 1 << 20)
        assert bodies(rows) == [b"body-1", b"body-2"]
        await hub.store.writer.flush()
        assert await waiting(hub, P0) == [b"body-3"]
        assert hub.queue(P0).statistics().dropped_total == 0
        hub.queue(P7).confirm(rows)
        await exact(hub)


async def test_rows_that_gave_way_take_no_memory(tmp_path: Path) -> None:
    """Rows that were cached for the pump and were displaced leave the cache with all they took."""
    async with running(tmp_path / "q.db", options=limited(queue_rows=10)) as hub:
        for _ in range(5):
            await hub.stored(10)
        queue = hub.queue()
        rows = await read_all(queue)
        assert bodies(rows) == [b"body-%d" % n for n in range(40, 50)]
        assert hub.store.statistics().cache_bytes == 0


async def test_the_oldest_gives_way_whatever_its_priority(tmp_path: Path) -> None:
    """Drop oldest: the order is that of arrival over all queues of the hub, alarms included."""
    options = limited(Overflow.DROP_OLDEST, rows=30)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(5, a_result(P0))
        await hub.stored(10, a_result(P7))
        await hub.stored(15, a_result(P2, endpoint_id=LAB))
        await hub.stored(8, a_result(P7))
        assert await waiting(hub, P0) == []
        assert await waiting(hub, P7) == [b"body-%d" % n for n in (*range(8, 15), *range(30, 38))]
        await hub.stored(10, a_result(P7))
        assert hub.queue(P2, LAB).statistics().depth == 12
        assert await waiting(hub, P7) == [b"body-%d" % n for n in range(30, 48)]
        assert not [refusal for _, refusal in hub.settled if refusal]
        await exact(hub)


async def test_what_has_expired_goes_first(tmp_path: Path) -> None:
    """By value: nothing that still counts leaves while expired rows take the room."""
    async with running(tmp_path / "q.db", options=limited(rows=20)) as hub:
        # A round of clean-up was there a moment before they expire, so another one is not due.
        await hub.stored(10, a_result(P0, ttl_s=20.5))
        await hub.stored(10, a_result(P7))
        for seconds in (5, 5, 5, 5, 0.8):
            await hub.clock.advance(seconds)
            await hub.store.database.run(lambda _: None)
        assert hub.queue(P0).statistics().depth == 10
        hub.send_many(10, a_result(P2))
        await hub.store.writer.flush()
        assert hub.queue(P7).statistics().dropped_total == 0
        assert len(await waiting(hub, P7)) == 10
        assert hub.queue(P0).statistics().expired_total == 10
        await exact(hub)


async def test_what_has_expired_goes_from_the_worst_priority_on(tmp_path: Path) -> None:
    """No more than is needed is cleared away at once, and that where it matters least."""
    async with running(tmp_path / "q.db", options=limited(rows=20)) as hub:
        await hub.stored(10, a_result(P0, ttl_s=20.5))
        await hub.stored(10, a_result(P7, ttl_s=20.5))
        for seconds in (5, 5, 5, 5, 0.8):
            await hub.clock.advance(seconds)
            await hub.store.database.run(lambda _: None)
        await hub.stored(1)
        assert hub.queue(P7).statistics().expired_total == 10
        assert hub.queue(P0).statistics().expired_total == 0
        await exact(hub)


async def test_a_full_queue_takes_its_room_from_itself(tmp_path: Path) -> None:
    """A queue at its own limit loses its own oldest row, not a worse one of another queue."""
    async with running(tmp_path / "q.db", options=limited(queue_rows=10)) as hub:
        await hub.stored(10, a_result(P7))
        await hub.stored(14, a_result(P2))
        assert await waiting(hub) == [b"body-%d" % n for n in range(14, 24)]
        assert await waiting(hub, P7) == [b"body-%d" % n for n in range(10)]
        await exact(hub)


async def test_usage_is_known_after_a_restart(tmp_path: Path) -> None:
    """S-06: the cap holds over a restart; the oldest that had to go are counted as dropped."""
    cap, body = 100_000, bytes(900)
    options = limited(Overflow.DROP_OLDEST, bytes=cap)
    async with running(tmp_path / "q.db", options=options) as hub:
        for _ in range(98):
            hub.send(a_message(body=body))
        await hub.store.writer.flush()
        size = hub.queue().statistics().bytes
        assert size <= cap
    async with running(tmp_path / "q.db", options=options) as hub:
        for _ in range(20):
            hub.send(a_message(body=body))
        await hub.store.writer.flush()
        figures = hub.queue().statistics()
        assert len(hub.accepted) == 20
        assert figures.bytes <= cap
        one = figures.bytes // figures.depth
        assert figures.dropped_total == -(-(size + 20 * one - cap) // one)
        assert await hub.count(hub.queue()) == (figures.depth, figures.bytes)


async def test_a_lower_cap_keeps_what_is_stored_until_something_joins(tmp_path: Path) -> None:
    """S-10: what is stored above the cap stays; reject_new refuses until enough has left."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(50)
    options = limited(Overflow.REJECT_NEW, rows=40)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(1)
        assert hub.settled == [(0, Refusal.LIMIT)]
        rows = await hub.queue().read_batch(11, 1 << 20)
        hub.queue().confirm(rows)
        await hub.stored(1)
        assert hub.settled[-1] == (1, None)
        assert hub.queue().statistics().depth == 40


async def test_evictions_ride_in_the_group_that_needs_them(tmp_path: Path) -> None:
    """A full disk is answered by deleting first: the group fails, its evictions do not."""
    plan = FaultPlan()
    options = limited(queue_rows=10)
    database = faulty_database(plan)
    async with running(tmp_path / "q.db", options=options, database_type=database) as hub:
        await hub.stored(10)
        plan.fail("INSERT INTO q_", times=3)
        hub.send_many(4)
        await hub.until(lambda: len(hub.settled) == 14, tick_s=0.05)
        assert plan.raised == 3
        assert await waiting(hub) == [b"body-%d" % n for n in range(4, 14)]
        assert hub.queue().statistics().dropped_total == 4
        await exact(hub)


async def test_shared_messages_join_whole_or_lose_single_copies(tmp_path: Path) -> None:
    """Refused: no copy is stored. Dropped: the copy for the full queue alone."""
    caps = {"queue_rows": 3}
    async with running(tmp_path / "a.db", options=limited(Overflow.REJECT_NEW, **caps)) as hub:
        await hub.stored(3, a_result(P2))
        hub.send(None, a_result(P2), a_result(P2, endpoint_id=LAB))
        await hub.until_settled(4)
        await hub.store.writer.flush()
        assert hub.settled[-1] == (3, Refusal.LIMIT)
        assert sum(queue.statistics().depth for queue in hub.store.queues.all()) == 3
    async with running(tmp_path / "b.db", options=limited(Overflow.DROP_NEWEST, **caps)) as hub:
        await hub.stored(3, a_result(P2))
        hub.send(None, a_result(P2), a_result(P2, endpoint_id=LAB))
        await hub.store.writer.flush()
        assert hub.settled[-1] == (3, None)
        assert hub.queue().statistics().dropped_total == 1
        assert bodies(await read_all(hub.queue(P2, LAB))) == [b"body-3"]
    async with running(tmp_path / "c.db", options=limited(Overflow.DROP_OLDEST, **caps)) as hub:
        for _ in range(5):
            hub.send(None, a_result(P2), a_result(P2, endpoint_id=LAB))
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM body") == 3
        await exact(hub)


async def test_a_copy_that_is_dropped_takes_no_room_from_the_others(tmp_path: Path) -> None:
    """Of two copies one finds its queue full; the hub has room for the other, and keeps it."""
    options = limited(Overflow.DROP_NEWEST, queue_rows=2, rows=3)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(2)
        await hub.stored(1, a_result(), a_result(endpoint_id=LAB))
        assert hub.settled[-1] == (2, None)
        assert hub.queue().statistics().dropped_total == 1
        assert hub.queue(endpoint_id=LAB).statistics().depth == 1
        await exact(hub)


async def test_nothing_is_dropped_without_caps(tmp_path: Path) -> None:
    """S-17: 3 h at one a second, without caps: each minute as many are queued as were taken."""
    options = store_options(Settings(store=StoreSettings(bytes_max=0, free_bytes_min=0)))
    async with running(tmp_path / "q.db", options=options) as hub:
        for minute in range(1, 181):
            await hub.stored(60)
            await hub.clock.advance(60)
            assert hub.queue().statistics().depth == 60 * minute == len(hub.accepted)
        await exact(hub)
    async with running(tmp_path / "q.db", options=options) as hub:
        assert bodies(await read_all(hub.queue())) == [b"body-%d" % n for n in range(10_800)]


@pytest.mark.scaled
async def test_ten_messages_a_second_leave_no_holes(tmp_path: Path) -> None:
    """S-21: 3 kB messages one by one, sent and confirmed meanwhile: all arrive, none waits long."""
    count = 6000 if SOAK else 300
    waits: list[float] = []
    async with running(tmp_path / "q.db", options=limited(bytes=1 << 30)) as hub:
        delivered = 0
        for number in range(count):
            began = time.perf_counter()
            hub.send(a_message(body=bytes(3000)))
            await hub.until_settled(number + 1)
            waits.append(time.perf_counter() - began)
            rows = await hub.queue().read_batch(10, 1 << 20)
            delivered += len(rows)
            hub.queue().confirm(rows)
        assert delivered == count == len(hub.accepted)
    if SOAK:
        assert sorted(waits)[count * 99 // 100] < 0.02


async def test_a_small_volume_keeps_a_share_free(tmp_path: Path) -> None:
    """The floor is what was set, but never more than a tenth of the volume."""
    async with running(tmp_path / "q.db", options=limited(free_bytes_min=1 << 62)) as hub:
        await hub.stored(10)
        assert len(hub.accepted) == 10


@pytest.mark.scaled
@pytest.mark.parametrize("overflow", [Overflow.BY_VALUE, Overflow.DROP_OLDEST])
@pytest.mark.parametrize("linger_ms", [0, 20])
@pytest.mark.parametrize("seed", range(100 if SOAK else 3))
async def test_rows_are_delivered_or_dropped_whatever_happens(
    tmp_path: Path, seed: int, linger_ms: int, overflow: Overflow
) -> None:
    """Random sends, reads, results and holds at a cap: no row is both, none neither."""
    rng = random.Random(seed)
    caps = rng.choice([{"rows": 60}, {"queue_rows": 25}, {"bytes": 60 * 110, "queue_rows": 40}])
    options = limited(overflow, linger_ms=linger_ms, cache_bytes=rng.choice([1, 1 << 20]), **caps)
    async with running(tmp_path / "q.db", options=options) as hub:
        life = Life(hub, rng)
        for _ in range(200):
            await rng.choice(life.acts)()
        life.let_go()
        await hub.store.writer.flush()
        # Rows that were to give way and were taken for sending instead may be over for a moment.
        limit = caps.get("rows", 10_000)
        await hub.until(lambda: hub.store.statistics().rows <= limit, tick_s=5.0)
        for queue in hub.store.queues.all():
            rows = await read_all(queue)
            life.delivered += bodies(rows)
            queue.confirm(rows)
        await exact(hub)
        dropped = sum(queue.statistics().dropped_total for queue in hub.store.queues.all())
        assert len(life.delivered) == len(set(life.delivered))
        assert len(life.delivered) + dropped == len(hub.accepted)
        assert all(queue.statistics().depth == 0 for queue in hub.store.queues.all())
        assert hub.store.statistics().cache_bytes == 0
        assert dropped > 0


class Life:
    """A pump and senders that do what a random number says."""

    def __init__(self, hub: Harness, rng: random.Random) -> None:
        self.hub = hub
        self.rng = rng
        self.delivered: list[bytes] = []
        self.flying: list[tuple[Queue, list[Row]]] = []
        self.held: set[Queue] = set()
        self.acts: list[Callable[[], Awaitable[None]]] = [
            self.send,
            self.send,
            self.send,
            self.read,
            self.settle,
            self.hold,
            self.hub.store.writer.flush,
            self.tick,
        ]

    async def send(self) -> None:
        """Send a few messages."""
        result = a_result(self.rng.choice([P0, P2, P7]))
        device = self.rng.choice(["a", "b"])
        self.hub.send_many(self.rng.choice([1, 4, 30]), result, device=device)

    async def read(self) -> None:
        """Take a batch."""
        queues = [queue for queue in self.hub.store.queues.all() if queue.has_ready()]
        if queues:
            queue = self.rng.choice(queues)
            rows = await queue.read_batch(self.rng.choice([1, 5, 20]), 1 << 20)
            self.flying.append((queue, rows))

    async def settle(self) -> None:
        """Confirm the first rows of a batch, give the others back."""
        if self.flying:
            queue, rows = self.flying.pop(self.rng.randrange(len(self.flying)))
            cut = self.rng.randrange(len(rows) + 1)
            self.delivered += bodies(rows[:cut])
            queue.confirm(rows[:cut])
            queue.give_back(rows[cut:], attempted=self.rng.random() < 0.5)

    async def hold(self) -> None:
        """Hold a sender back, or let it go."""
        queues = self.hub.store.queues.all()
        if queues:
            queue = self.rng.choice(queues)
            if queue in self.held:
                self.held.remove(queue)
                queue.release("a")
            else:
                self.held.add(queue)
                queue.hold("a")

    async def tick(self) -> None:
        """Let time pass."""
        await self.hub.clock.advance(self.rng.choice([0.01, 0.06, 1.0]))

    def let_go(self) -> None:
        """Give everything back, and hold nothing."""
        for queue, rows in self.flying:
            queue.give_back(rows, attempted=False)
        for queue in self.held:
            queue.release("a")
