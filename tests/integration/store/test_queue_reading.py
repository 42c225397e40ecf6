"""Reading queues: order, batches, what comes back, what is held back."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from edgehub.message import FailureKind
from edgehub.store import QueueState, StoreOptions
from tests.support.stores import (
    P2,
    PausingPlan,
    a_message,
    a_result,
    bodies,
    dead_letters_of,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.message import Row
    from edgehub.store import Queue

pytestmark = pytest.mark.integration


async def test_rows_come_in_order_and_leave_when_confirmed(tmp_path: Path) -> None:
    """FIFO per queue; the row is gone from the file after its confirmation."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(250)
        queue = hub.queue()
        rows = await read_all(queue, rows_max=64)
        assert bodies(rows) == [f"body-{n}".encode() for n in range(250)]
        assert [row.message.message_id for row in rows] == [m.message_id for m in hub.sent]
        assert queue.state is QueueState.SENDING
        queue.confirm(rows)
        assert queue.state is QueueState.CHECKPOINTING
        await hub.store.writer.flush()
        assert await hub.count(queue) == (0, 0)
        figures = queue.statistics()
        assert (figures.depth, figures.bytes, figures.sent_total) == (0, 0, 250)
        assert figures.state is QueueState.IDLE
        assert figures.oldest_enqueued_ms is None


async def test_batch_bounds(tmp_path: Path) -> None:
    """A batch keeps both bounds, and one row comes even when it is larger than allowed."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(10)
        queue = hub.queue()
        assert len(await queue.read_batch(3, 1 << 20)) == 3
        rows = await queue.read_batch(100, 250)
        size = sum(row.size for row in rows)
        assert 0 < size <= 250
        assert len(await queue.read_batch(100, 1)) == 1


async def test_confirmation_delays_do_not_repeat_rows(tmp_path: Path) -> None:
    """D-01: one reader position; nothing is read twice while confirmations are late."""
    async with running(tmp_path / "queue.db", options=StoreOptions(cache_bytes_max=20_000)) as hub:
        seen: list[bytes] = []
        waiting = []
        for round_number in range(60):
            await hub.stored(20)
            queue = hub.queue()
            rows = await queue.read_batch(10 + round_number % 7, 1 << 20)
            seen.extend(bodies(rows))
            waiting.append(rows)
            if len(waiting) > 3:
                queue.confirm(waiting.pop(0))
        for rows in waiting:
            hub.queue().confirm(rows)
        seen.extend(bodies(await read_all(hub.queue())))
        assert seen == [f"body-{n}".encode() for n in range(1200)]


@pytest.mark.parametrize("cache_bytes", [1, 20_000, 16 << 20])
async def test_rows_confirmed_while_others_are_read_come_once(
    tmp_path: Path, cache_bytes: int
) -> None:
    """D-01: batches of 10 with a producer, confirmed out of step, stored or not: each row once."""
    rng = random.Random(cache_bytes)
    seen: list[bytes] = []
    options = StoreOptions(cache_bytes_max=cache_bytes)
    async with running(tmp_path / "queue.db", options=options) as hub:
        await hub.stored(1000)
        queue = hub.queue()
        flying: list[list[Row]] = []
        while len(seen) < 10_000:
            if len(hub.sent) < 10_000:
                hub.send_many(min(rng.choice([0, 10, 30]), 10_000 - len(hub.sent)))
            rows = await queue.read_batch(10, 1 << 20)
            seen += bodies(rows)
            flying.append(rows)
            while len(flying) > rng.choice([0, 1, 3]):
                queue.confirm(flying.pop(rng.randrange(len(flying))))
            if not rows or rng.random() < 0.1:
                # Up to 30 ms, so that some confirmations are stored meanwhile and most are not.
                await hub.clock.advance(rng.choice([0.0, 0.01, 0.03]))
                await hub.store.database.run(lambda _: None)
        for rows in flying:
            queue.confirm(rows)
        await hub.store.writer.flush()
        assert await read_all(queue) == []
        assert queue.statistics().depth == 0
        assert queue.statistics().sent_total == 10_000
    assert seen == [b"body-%d" % number for number in range(10_000)]


async def test_identical_payloads_are_different_rows(tmp_path: Path) -> None:
    """D-02: four equal messages are four deliveries with four ids, also after a restart."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        for _ in range(4):
            hub.send(a_message(body=b"\x00"))
        await hub.store.writer.flush()
        rows = await read_all(hub.queue())
        ids = [row.message.message_id for row in rows]
        assert len(ids) == len(set(ids)) == 4
        hub.queue().give_back(rows, attempted=False)
    async with running(path) as hub:
        rows = await read_all(hub.queue())
        assert [row.message.message_id for row in rows] == ids
        hub.queue().confirm(rows)
        assert await read_all(hub.queue()) == []


async def test_backlog_beyond_the_cache_comes_from_the_file(tmp_path: Path) -> None:
    """Rows that memory has no room for are read back in order, equal to what was sent."""
    options = StoreOptions(cache_bytes_max=1)
    async with running(tmp_path / "queue.db", options=options) as hub:
        for number in range(3000):
            hub.send(
                a_message(
                    f"dev-{number % 7}",
                    f"body-{number}".encode(),
                    module="cam" if number % 2 else None,
                    properties={"kind": "bulk", "none": None} if number % 3 else {},
                    system={"contentType": "a/b"} if number % 5 else {},
                ),
                a_result(P2, ttl_s=60 if number % 2 else None, routes=("a", "b")),
            )
        await hub.store.writer.flush()
        rows = await read_all(hub.queue())
        assert len(rows) == 3000
        for row, message in zip(rows, hub.sent, strict=True):
            for name in ("device_id", "module_id", "source", "properties", "system", "body"):
                assert getattr(row.message, name) == getattr(message, name)
            assert row.message.message_id == message.message_id
            assert row.routes == ("a", "b")
        assert hub.store.statistics().cache_bytes == 0


async def test_returned_rows_come_first_in_their_old_order(tmp_path: Path) -> None:
    """R-12: an interrupted send goes back to the head of its queue."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(30)
        queue = hub.queue()
        rows = await queue.read_batch(20, 1 << 20)
        queue.confirm(rows[:6])
        for row in reversed(rows[6:]):
            queue.give_back([row], attempted=False)
        for first in range(6, 30, 4):
            again = await queue.read_batch(4, 1 << 20)
            assert bodies(again) == [f"body-{n}".encode() for n in range(first, first + 4)]


async def test_attempts_survive_a_restart(tmp_path: Path) -> None:
    """A refused send is counted in the file; one that never reached the peer is not."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        await hub.stored(2)
        queue = hub.queue()
        for _ in range(3):
            first, second = await queue.read_batch(2, 1 << 20)
            queue.give_back([first], attempted=True)
            queue.give_back([second], attempted=False)
    async with running(path) as hub:
        assert [row.attempts for row in await read_all(hub.queue())] == [3, 0]


async def test_attempts_are_known_before_their_commit(tmp_path: Path) -> None:
    """A row that was held meanwhile comes from the file, which does not have the count yet."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(2)
        queue = hub.queue()
        rows = await queue.read_batch(2, 1 << 20)
        queue.give_back(rows[:1], attempted=True)
        queue.give_back(rows[1:], attempted=False)
        queue.hold("dev-1")
        assert await queue.read_batch(2, 1 << 20) == []
        queue.release("dev-1")
        again = await queue.read_batch(2, 1 << 20)
        assert [row.attempts for row in again] == [1, 0]
        queue.give_back(again[:1], attempted=True)
        await hub.store.writer.flush()
        assert await hub.scalar(f"SELECT max(attempts) FROM q_{queue.number}") == 2


async def test_held_sender_is_passed_and_resumes_in_order(tmp_path: Path) -> None:
    """Order strict: rows of a held device wait, others go on, and its order is kept."""
    async with running(tmp_path / "queue.db") as hub:
        for number in range(60):
            hub.send(a_message(f"dev-{number % 3}", f"body-{number}".encode()))
        await hub.store.writer.flush()
        queue = hub.queue()
        first = await queue.read_batch(1, 1 << 20)
        queue.hold("dev-0")
        queue.give_back(first, attempted=True)
        others = await read_all(queue)
        assert {row.message.device_id for row in others} == {"dev-1", "dev-2"}
        assert not queue.has_ready()
        queue.confirm(others)
        assert queue.state in (QueueState.CHECKPOINTING, QueueState.DELAYED)
        await hub.store.writer.flush()
        assert queue.state is QueueState.DELAYED
        queue.release("dev-0")
        assert queue.has_ready()
        rest = await read_all(queue, rows_max=7)
        assert bodies(rest) == [f"body-{n}".encode() for n in range(0, 60, 3)]


async def test_sender_of_a_module_is_its_own_unit(tmp_path: Path) -> None:
    """Holding a device's module holds neither the device nor another module."""
    async with running(tmp_path / "queue.db") as hub:
        for module in (None, "cam", "gps"):
            hub.send(a_message("dev-1", module=module))
        await hub.store.writer.flush()
        queue = hub.queue()
        queue.hold("dev-1/cam")
        rows = await read_all(queue)
        assert [row.message.module_id for row in rows] == [None, "gps"]


async def test_held_row_lets_the_others_pass(tmp_path: Path) -> None:
    """Order skip: P-03, one refused row waits, later ones go, then it comes."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(20)
        queue = hub.queue()
        rows = await queue.read_batch(20, 1 << 20)
        queue.hold(rows[4].offset)
        queue.give_back(rows[4:], attempted=True)
        queue.confirm(rows[:4])
        later = await read_all(queue)
        assert bodies(later) == [f"body-{n}".encode() for n in range(5, 20)]
        queue.release(rows[4].offset)
        assert bodies(await read_all(queue)) == [b"body-4"]


async def test_row_held_before_it_is_read_is_passed(tmp_path: Path) -> None:
    """A hold counts from the moment it is set; releasing before the read changes nothing."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(3)
        queue = hub.queue()
        offsets = [int(m.message_id.rpartition("-")[2], 16) for m in hub.sent]
        queue.hold(offsets[0])
        queue.hold(offsets[1])
        queue.release(offsets[1])
        assert bodies(await read_all(queue)) == [b"body-1", b"body-2"]


async def test_hold_works_on_rows_that_only_the_file_has(tmp_path: Path) -> None:
    """Skipped rows are read back from the file, however many they are."""
    options = StoreOptions(cache_bytes_max=1)
    async with running(tmp_path / "queue.db", options=options) as hub:
        for number in range(1500):
            hub.send(a_message("slow" if number % 2 else "fast", f"body-{number}".encode()))
        await hub.store.writer.flush()
        queue = hub.queue()
        queue.hold("slow")
        fast = await read_all(queue)
        assert len(fast) == 750
        queue.confirm(fast)
        queue.release("slow")
        slow = await read_all(queue)
        assert bodies(slow) == [f"body-{n}".encode() for n in range(1, 1500, 2)]


async def test_a_row_given_back_comes_behind_lower_ones_that_have_just_been_requeued(
    tmp_path: Path,
) -> None:
    """Also if the file is read at that moment: that reading is repeated from the lower ones on."""
    plan = PausingPlan()
    async with running(
        tmp_path / "queue.db",
        options=StoreOptions(cache_bytes_max=1),
        database_type=faulty_database(plan),
    ) as hub:
        await hub.stored(2)
        queue = hub.queue()
        rejected, sent = await read_all(queue)
        queue.dead_letter(rejected, FailureKind.REJECTED, "no")
        await hub.stored(1)
        await hub.stored(1)
        (letter,) = await dead_letters_of(hub.store)
        requeue = plan.pause("INSERT OR IGNORE INTO q_")
        requeued = asyncio.ensure_future(hub.store.requeuer.requeue([letter.id]))
        await requeue.wait()
        reading = asyncio.ensure_future(queue.read_batch(2, 1 << 20))

        def give_back(queue: Queue) -> None:
            if sent.offset in queue.checkpointer.in_flight:
                assert not reading.done()
                queue.give_back([sent], attempted=False)

        await asyncio.sleep(0)
        hub.store.queues.watch(queue.endpoint_id, give_back)
        requeue.may_end.set()
        assert bodies(await reading) == [b"body-0", b"body-2"]
        assert bodies(await read_all(queue)) == [b"body-1", b"body-3"]
        await requeued
