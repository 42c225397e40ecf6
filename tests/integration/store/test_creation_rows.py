"""Rows that create entities: they stay until they are delivered, whatever else needs room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.message import NEVER_MS, FailureKind, Recency, Refusal
from edgehub.store import Caps, Overflow, StoreOptions
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
    from pathlib import Path

    from edgehub.message import Priority
    from tests.support.stores import Harness

pytestmark = pytest.mark.integration


def limited(overflow: Overflow, **caps: int) -> StoreOptions:
    """Build options with caps."""
    return StoreOptions(caps=Caps(overflow=overflow, **caps))


async def waiting(hub: Harness, priority: Priority = P2) -> list[bytes]:
    """Read all that a queue holds and give it back."""
    await hub.store.writer.flush()
    queue = hub.queue(priority)
    rows = await read_all(queue)
    queue.give_back(rows, attempted=False)
    return bodies(rows)


async def create(hub: Harness, count: int, priority: Priority = P2) -> list[bytes]:
    """Store rows that create entities."""
    names = [b"create-%d" % number for number in range(count)]
    for name in names:
        hub.send(a_message(body=name), a_result(priority, creation=True))
    await hub.store.writer.flush()
    return names


@pytest.mark.parametrize("overflow", [Overflow.BY_VALUE, Overflow.DROP_OLDEST])
@pytest.mark.parametrize("cap", [{"rows": 10}, {"queue_rows": 10}, {"bytes": 1000}])
async def test_others_give_way_in_their_place(
    tmp_path: Path, overflow: Overflow, cap: dict[str, int]
) -> None:
    """At each cap the oldest of the other rows leave, and creation rows, older still, stay."""
    async with running(tmp_path / "q.db", options=limited(overflow, **cap)) as hub:
        created = await create(hub, 4)
        await hub.stored(40)
        left = await waiting(hub)
        assert left[:4] == created
        newest = [message.body for message in hub.sent[-(len(left) - 4) :]]
        assert left[4:] == newest
        assert hub.queue().statistics().dropped_total == 40 - len(newest)
        assert all(refusal is None for _, refusal in hub.settled)


@pytest.mark.parametrize("overflow", list(Overflow))
async def test_nothing_joins_where_only_creation_rows_could_leave(
    tmp_path: Path, overflow: Overflow
) -> None:
    """A cap that creation rows fill refuses what comes, or drops it where that was asked for."""
    async with running(tmp_path / "q.db", options=limited(overflow, rows=5)) as hub:
        created = await create(hub, 5)
        hub.send(a_message(body=b"late"), a_result(P0))
        await hub.store.writer.flush()
        refused = None if overflow is Overflow.DROP_NEWEST else Refusal.LIMIT
        assert hub.settled[-1] == (5, refused)
        assert await waiting(hub) == created


@pytest.mark.parametrize("overflow", [Overflow.DROP_NEWEST, Overflow.REJECT_NEW])
async def test_one_that_finds_no_room_is_refused_to_its_sender(
    tmp_path: Path, overflow: Overflow
) -> None:
    """What creates an entity is never acknowledged and dropped: its sender tries again."""
    async with running(tmp_path / "q.db", options=limited(overflow, rows=2)) as hub:
        await hub.stored(2)
        hub.send(a_message(body=b"create"), a_result(P2, creation=True))
        await hub.store.writer.flush()
        assert hub.settled[-1] == (2, Refusal.LIMIT)
        assert await waiting(hub) == [b"body-0", b"body-1"]


async def test_it_knows_neither_time_to_live_nor_recency(tmp_path: Path) -> None:
    """Whatever its route and its sender ask for, it stays in its queue and does not expire."""
    async with running(tmp_path / "q.db") as hub:
        hub.send(
            a_message(body=b"create", expiry_ms=1000),
            a_result(P2, ttl_s=5, recency=Recency(seconds=1, fallback_priority=P7), creation=True),
        )
        await hub.store.writer.flush()
        await hub.clock.advance(3600)
        await hub.store.writer.flush()
        (row,) = await read_all(hub.queue())
        assert (row.expires_ms, row.fresh_until_ms, row.creation) == (NEVER_MS, NEVER_MS, True)


async def test_flag_and_predecessor_survive(tmp_path: Path) -> None:
    """After a crash they are known of rows alone and of shared ones, and still stay."""
    async with running(tmp_path / "q.db") as hub:
        append = hub.store.appender.append
        first = append(a_message(body=b"one"), [a_result(creation=True)], lambda *_: None, 0)
        shared = append(
            a_message(body=b"two"),
            [a_result(predecessor=first), a_result(P7, endpoint_id=LAB, creation=True)],
            lambda *_: None,
            0,
        )
        assert (first, shared) == (1, 2)
        await hub.store.writer.flush()
        path = crash_copy(tmp_path / "q.db", tmp_path / "crash")
    options = limited(Overflow.DROP_OLDEST, rows=3)
    async with running(path, options=options) as hub:
        await hub.stored(5)
        one, last = await read_all(hub.queue())
        (two,) = await read_all(hub.queue(P7, LAB))
        assert (one.offset, one.creation, one.predecessor) == (first, True, None)
        assert (two.offset, two.creation, two.message.body) == (shared + 1, True, b"two")
        assert (last.message.body, last.creation) == (b"body-4", False)


async def test_a_row_behind_a_predecessor_gives_way_as_others_do(tmp_path: Path) -> None:
    """Only what creates an entity stays; the data of the entity is data."""
    async with running(tmp_path / "q.db", options=limited(Overflow.BY_VALUE, rows=2)) as hub:
        await create(hub, 1)
        hub.send(a_message(body=b"data"), a_result(predecessor=1))
        hub.send(a_message(body=b"newer"), a_result(predecessor=1))
        assert await waiting(hub) == [b"create-0", b"newer"]
        assert [row.predecessor for row in await read_all(hub.queue())] == [None, 1]


async def test_their_room_is_free_again_once_they_have_left(tmp_path: Path) -> None:
    """Delivered, dead, purged and moved ones do not count as rows that stay."""
    async with running(tmp_path / "q.db", options=limited(Overflow.DROP_OLDEST, rows=4)) as hub:
        await create(hub, 4)
        queue = hub.queue()
        sent, dead, *rest = await read_all(queue)
        queue.confirm([sent])
        queue.dead_letter(dead, FailureKind.REJECTED, "no")
        queue.give_back(rest, attempted=False)
        await hub.stored(2)
        await hub.stored(3)
        assert await waiting(hub) == [b"create-2", b"create-3", b"body-7", b"body-8"]
        target = hub.store.queues.get(LAB, P7)
        await hub.store.purger.take_out(queue, target, from_offset=0, through=3)
        await hub.stored(4)
        assert await waiting(hub) == [b"create-3", b"body-11", b"body-12"]
        assert (len(queue.creations), len(target.creations)) == (1, 1)
        await hub.store.purger.take_out(queue, None, from_offset=0, through=1 << 40)
        await hub.stored(4)
        assert await waiting(hub) == [b"body-14", b"body-15", b"body-16"]
        assert (len(queue.creations), queue.creations.bytes) == (0, 0)


async def test_a_requeued_one_is_one_again(tmp_path: Path) -> None:
    """A dead letter keeps what it was, so a person who requeues it need not know."""
    async with running(tmp_path / "q.db", options=limited(Overflow.DROP_OLDEST, rows=3)) as hub:
        await create(hub, 1)
        (row,) = await read_all(hub.queue())
        hub.queue().dead_letter(row, FailureKind.REJECTED, "no")
        await hub.store.writer.flush()
        (letter,) = await hub.store.inspection.dead_letters()
        await hub.store.requeuer.requeue([letter.id])
        await hub.stored(6)
        assert (await waiting(hub))[0] == b"create-0"


async def test_a_refused_one_is_forgotten(tmp_path: Path) -> None:
    """What the file could not take does not count among what stays."""
    plan = FaultPlan()
    options = limited(Overflow.DROP_OLDEST, rows=2)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(1)
        plan.fail("INSERT INTO q_", "SQLITE_TOOBIG", times=3)
        hub.send(a_message(body=b"create"), a_result(creation=True))
        await hub.store.writer.flush()
        assert hub.settled[-1] == (1, Refusal.INVALID)
        await hub.stored(5)
        assert await waiting(hub) == [b"body-5", b"body-6"]
        assert not hub.queue().creations
