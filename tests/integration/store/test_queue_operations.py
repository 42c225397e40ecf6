"""What a person does to queues: purge, move, requeue; with everything else going on meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.message import DEFAULT_PRIORITY, UPSTREAM, FailureKind, Priority
from edgehub.store import StoreOptions
from edgehub.store.database import StoreBusyError
from edgehub.store.statistics import RowState
from tests.support.stores import (
    LAB,
    P0,
    P2,
    P7,
    FaultPlan,
    Harness,
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

    from edgehub.store import Queue
    from edgehub.store.purge import Removal

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
TO_LAB = a_result(P7, endpoint_id=LAB)


async def take_out(hub: Harness, queue: Queue, target: Queue | None = None) -> list[Removal]:
    """Purge or move a queue call by call, as the command line does."""
    calls: list[Removal] = []
    through = hub.store.last_offset
    at: int | None = 0
    while at is not None:
        done = await hub.store.purger.take_out(queue, target, from_offset=at, through=through)
        calls.append(done)
        at = done.next_offset
    return calls


async def consistent(hub: Harness) -> None:
    """O-01: gauges are those of the rows, and zones and checkpoints fit them."""
    for queue in hub.store.queues.all():
        if not queue.registered:
            continue
        figures = queue.statistics()
        assert (figures.depth, figures.bytes) == await hub.count(queue), queue.id
        lowest = await hub.scalar(f"SELECT min(offset) FROM q_{queue.number}")
        if lowest is not None:
            assert figures.checkpoint < lowest, queue.id
    shared = await hub.scalar("SELECT count(*) FROM body WHERE refs <= 0")
    assert shared == 0


async def test_a_purge_takes_what_waits_and_nothing_that_comes_later(tmp_path: Path) -> None:
    """Rows beyond the offset of its beginning stay, and the file has no row of the others."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(2500)
        through = hub.store.last_offset
        await hub.stored(10)
        queue = hub.queue()
        done = await hub.store.purger.take_out(queue, None, from_offset=0, through=through)
        assert (done.rows, done.in_flight, done.next_offset) == (2500, 0, None)
        figures = queue.statistics()
        assert (figures.depth, figures.purged_total) == (10, 2500)
        await consistent(hub)
        rows = await read_all(queue)
        assert bodies(rows) == [f"body-{n}".encode() for n in range(2500, 2510)]


async def test_rows_in_flight_are_neither_purged_nor_moved(tmp_path: Path) -> None:
    """They are counted and stay; what comes back of them is sent again."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(20)
        queue = hub.queue()
        taken = await queue.read_batch(5, 1 << 20)
        (done,) = await take_out(hub, queue)
        assert (done.rows, done.in_flight) == (15, 5)
        (done,) = await take_out(hub, queue, hub.store.queues.get(LAB, P7))
        assert (done.rows, done.in_flight) == (0, 5)
        queue.confirm(taken[:2])
        queue.give_back(taken[2:], attempted=False)
        assert bodies(await read_all(queue)) == [b"body-2", b"body-3", b"body-4"]
        await hub.store.writer.flush()
        await consistent(hub)


async def test_a_move_keeps_offset_times_and_ids(tmp_path: Path) -> None:
    """Rows of an orphan go to another endpoint as they are, and are read there in their order."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(3, a_result(P7, endpoint_id=LAB, ttl_s=60))
        await hub.stored(3, a_result(P2))
        source, target = hub.queue(P7, LAB), hub.queue(P2)
        before = await hub.store.inspection.peek(source, after=0, rows_max=10)
        sent = await read_all(target)
        queue_rows = [(r.offset, r.enqueued_ms, r.expires_ms, r.message.message_id) for r in before]
        (done,) = await take_out(hub, source, target)
        assert done.rows == 3
        moved = await read_all(target)
        assert [
            (r.offset, r.enqueued_ms, r.expires_ms, r.message.message_id) for r in moved
        ] == queue_rows
        assert bodies(sent) == [b"body-3", b"body-4", b"body-5"]
        assert source.statistics().moved_total == 3
        await consistent(hub)


async def test_rows_may_move_to_a_queue_that_was_never_there(tmp_path: Path) -> None:
    """The queue is made with the first of them, and is there after a restart."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        await hub.stored(3, TO_LAB)
        await take_out(hub, hub.queue(P7, LAB), hub.store.queues.get(UPSTREAM, DEFAULT_PRIORITY))
        await consistent(hub)
    async with running(path) as hub:
        assert bodies(await read_all(hub.queue(DEFAULT_PRIORITY))) == [
            b"body-0",
            b"body-1",
            b"body-2",
        ]


async def test_bodies_that_queues_share_survive_a_move_and_go_with_their_last_row(
    tmp_path: Path,
) -> None:
    """Even where both copies of a message end in one queue."""
    async with running(tmp_path / "queue.db") as hub:
        for _ in range(5):
            hub.send(None, a_result(P2), TO_LAB)
        await hub.store.writer.flush()
        upstream, lab = hub.queue(P2), hub.queue(P7, LAB)
        await take_out(hub, lab, upstream)
        assert await hub.scalar("SELECT sum(refs) FROM body") == 10
        await take_out(hub, upstream, lab)
        assert await hub.scalar("SELECT sum(refs) FROM body") == 10
        rows = await read_all(lab)
        assert len(rows) == 10
        lab.confirm(rows[:9])
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM body") == 1
        lab.give_back(rows[9:], attempted=False)
        await take_out(hub, lab)
        assert await hub.scalar("SELECT count(*) FROM body") == 0
        await consistent(hub)


async def test_a_read_under_way_sees_rows_that_come_meanwhile(tmp_path: Path) -> None:
    """Rows that are moved into a stretch that is being read are read all the same."""
    async with running(tmp_path / "queue.db", options=StoreOptions(cache_bytes_max=0)) as hub:
        await hub.stored(300)
        await hub.stored(300, TO_LAB)
        await hub.stored(300)
        source, target = hub.queue(P7, LAB), hub.queue(P2)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(target.read_batch(1000, 1 << 20))
            moving = tasks.create_task(take_out(hub, source, target))
        rows = reading.result() + await read_all(target)
        assert sum(done.rows for done in moving.result()) == 300
        assert sorted(row.offset for row in rows) == list(range(1, 901))


async def test_a_number_that_is_that_of_another_letter_by_now_requeues_none(
    tmp_path: Path,
) -> None:
    """Two commands at once: the number of the letter that the first one takes is used again."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(2)
        queue = hub.queue()
        first, second = await read_all(queue)
        queue.dead_letter(first, FailureKind.REJECTED, "no")
        await hub.store.writer.flush()
        (letter,) = await hub.store.inspection.dead_letters()

        def reject(queue: Queue) -> None:
            if second.offset in queue.checkpointer.in_flight:
                queue.dead_letter(second, FailureKind.REJECTED, "not this one either")

        hub.store.queues.watch(queue.endpoint_id, reject)
        requeue = hub.store.requeuer.requeue
        released = await asyncio.gather(requeue([letter.id]), requeue([letter.id]))
        assert [each.rows for each in released] == [1, 0]
        (left,) = await hub.store.inspection.dead_letters()
        assert left.id == letter.id
        assert left.message.message_id == second.message.message_id
        assert bodies(await read_all(queue)) == [b"body-0"]
        await consistent(hub)


async def test_a_dead_letter_goes_back_to_its_place(tmp_path: Path) -> None:
    """P-11: by hand; with its message id and what was left of its time, attempts forgotten."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(5, a_result(P2, ttl_s=100))
        queue = hub.queue()
        rows = await read_all(queue)
        await hub.clock.advance(30)
        queue.dead_letter(rows[2], FailureKind.REJECTED, "no")
        queue.give_back([rows[0], rows[1], rows[3], rows[4]], attempted=True)
        await hub.store.writer.flush()
        await hub.clock.advance(40)
        (letter,) = await hub.store.inspection.dead_letters()
        assert (letter.message.body, letter.body_bytes) == (b"", 6)
        released = await hub.store.requeuer.requeue([letter.id, 77])
        assert released.rows == 1
        again = await read_all(queue)
        assert [row.offset for row in again] == [row.offset for row in rows]
        back = again[2]
        assert (back.message.message_id, back.message.body) == (
            rows[2].message.message_id,
            b"body-2",
        )
        assert back.attempts == 0
        assert back.expires_ms == hub.store.hub_time.now_ms() + 70_000
        assert queue.statistics().requeued_total == 1
        assert hub.store.statistics().dead_letter_rows == 0
        assert hub.store.statistics().dead_letters == {}
        await consistent(hub)


async def test_dead_letters_of_other_queues_are_left_alone(tmp_path: Path) -> None:
    """Listing, purge and requeue are exact; a shared message keeps its id in its own row."""
    async with running(tmp_path / "queue.db") as hub:
        for _ in range(3):
            hub.send(None, a_result(P2), TO_LAB)
        await hub.store.writer.flush()
        for queue in (hub.queue(P2), hub.queue(P7, LAB)):
            for row in await read_all(queue):
                queue.dead_letter(row, FailureKind.TOO_LARGE, "over")
        await hub.store.writer.flush()
        look = hub.store.inspection
        letters = await look.dead_letters(queue=(LAB, P7))
        assert [letter.endpoint_id for letter in letters] == [LAB] * 3
        assert len(await look.dead_letters(after=letters[0].id, limit=2)) == 2
        both = await look.dead_letters_of(letters[1].message.message_id)
        assert sorted(letter.endpoint_id for letter in both) == [LAB, UPSTREAM]
        assert (await hub.store.requeuer.purge([letters[0].id])).rows == 1
        assert (await hub.store.requeuer.requeue([letters[1].id])).rows == 1
        (row,) = await read_all(hub.queue(P7, LAB))
        assert row.message.message_id == letters[1].message.message_id
        assert hub.store.statistics().dead_letters == {"lab_Pri7": 1, "upstream_Pri2": 3}
        await consistent(hub)


async def test_dead_letters_of_one_commit_stand_in_the_order_of_their_ends(tmp_path: Path) -> None:
    """Whatever queues they come from: the oldest have the lowest numbers, and leave first."""
    async with running(tmp_path / "q.db") as hub:
        for priority in (P2, P7, P2):
            await hub.stored(1, a_result(priority))
        rows = {queue: await read_all(queue) for queue in (hub.queue(P2), hub.queue(P7))}
        for priority in (P2, P7, P2):
            queue = hub.queue(priority)
            queue.dead_letter(rows[queue].pop(0), FailureKind.REJECTED, "no")
            await hub.clock.advance(0.01)
        await hub.store.writer.flush()
        letters = await hub.store.inspection.dead_letters()
        assert [letter.offset for letter in letters] == [1, 2, 3]


async def test_rows_are_found_by_message_and_by_the_senders_id(tmp_path: Path) -> None:
    """By place without a search; by the sender's id within a limit that the answer tells."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(1500)
        message = hub.send(a_message(system={"messageId": 'ä"7'}), a_result(P2), TO_LAB)
        await hub.store.writer.flush()
        look = hub.store.inspection
        offset = look.offset_of(message.message_id)
        assert offset is not None
        assert [copy.queue.id for copy in await look.find(offset)] == ["lab_Pri7", "upstream_Pri2"]
        found = await look.search('ä"7')
        assert ([copy.row.offset for copy in found.copies], found.complete) == (
            [offset + 1, offset],
            True,
        )
        assert not (await look.search('ä"7', rows_max=1)).complete
        assert (await look.search("other")).looked_at == 1502
        assert look.offset_of("other-1f") is None
        assert look.offset_of(message.message_id + "f" * 20) is None
        queue = hub.queue(P2)
        assert (await look.before(queue, offset))[0] == 1500
        (first,) = await queue.read_batch(1, 1)
        assert queue.row_state(first) is RowState.IN_FLIGHT
        queue.hold("dev-1")
        (second,) = await look.peek(queue, after=first.offset, rows_max=1)
        assert queue.row_state(second) is RowState.HELD


async def test_large_messages_are_taken_a_few_at_a_time(tmp_path: Path) -> None:
    """No step copies more than some megabytes, so that nobody's commit waits for it."""
    plan = FaultPlan()
    async with running(tmp_path / "queue.db", database_type=faulty_database(plan)) as hub:
        for _ in range(100):
            hub.send(a_message(body=b"x" * 200_000), TO_LAB)
        await hub.store.writer.flush()
        plan.statements.clear()
        source, target = hub.queue(P7, LAB), hub.store.queues.get(UPSTREAM, P0)
        assert sum(done.rows for done in await take_out(hub, source, target)) == 100
        copies = [
            sql for sql in plan.statements if sql.startswith(f"INSERT INTO q_{target.number}")
        ]
        assert len(copies) >= 5
        await consistent(hub)


async def test_a_full_disk_stops_a_purge_and_harms_nothing(tmp_path: Path) -> None:
    """The error is told, the queue is whole, and the next try does it."""
    plan = FaultPlan()
    database_type = faulty_database(plan)
    async with running(tmp_path / "queue.db", database_type=database_type) as hub:
        await hub.stored(50)
        plan.fail("DELETE FROM q_")
        with pytest.raises(StoreBusyError):
            await take_out(hub, hub.queue())
        assert hub.queue().statistics().depth == 50
        assert len(await read_all(hub.queue())) == 50
        hub.queue().give_back(list(hub.queue().checkpointer.in_flight.values()), attempted=False)
        assert sum(done.rows for done in await take_out(hub, hub.queue())) == 50
        await consistent(hub)


@pytest.mark.scaled
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(200 if SOAK else 3))
async def test_every_row_is_accounted_for_whatever_is_done(tmp_path: Path, seed: int) -> None:
    """Random sends, reads, results, holds, moves, purges, requeues and restarts: nothing is lost.

    A row ends confirmed, purged or as a dead letter, once; gauges equal the rows (O-01).
    """
    world = _World(random.Random(seed))
    path = tmp_path / "queue.db"
    for _ in range(3):
        options = StoreOptions(cache_bytes_max=world.rng.choice([0, 1 << 24]))
        async with running(path, options=options) as hub:
            for _ in range(60):
                await world.act(hub)
            await world.settle(hub)
            await consistent(hub)
            assert await world.left(hub) == world.expected()
    async with running(path) as hub:
        delivered: list[bytes] = []
        for queue in hub.store.queues.all():
            rows = await read_all(queue)
            assert [row.offset for row in rows] == sorted(row.offset for row in rows)
            delivered += bodies(rows)
        assert sorted(delivered) == sorted(world.waiting)


class _World:
    """What was done, and which rows should be where."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sent = 0
        self.waiting: set[bytes] = set()
        self.dead: set[bytes] = set()
        self._flying: list[tuple[Queue, list[Any]]] = []
        self._held: list[tuple[Queue, str]] = []

    def expected(self) -> tuple[set[bytes], set[bytes]]:
        """Return bodies of rows and of dead letters."""
        return self.waiting, self.dead

    async def left(self, hub: Harness) -> tuple[set[bytes], set[bytes]]:
        """Read what the file has of both."""
        rows: list[bytes] = []
        for queue in hub.store.queues.all():
            if queue.registered:
                found = await hub.store.inspection.peek(queue, after=0, rows_max=100_000)
                rows += bodies(found)
        assert len(rows) == len(set(rows))
        letters = await dead_letters_of(hub.store)
        return set(rows), {letter.message.body for letter in letters}

    async def act(self, hub: Harness) -> None:
        """Do one thing."""
        acts = [self._send, self._read, self._finish, self._finish, self._move, self._purge]
        acts += [self._requeue, self._hold, self._read, self._send]
        await self.rng.choice(acts)(hub)

    async def settle(self, hub: Harness) -> None:
        """Give back what is in flight, and wait for the file."""
        for queue, rows in self._flying:
            queue.give_back(rows, attempted=False)
        self._flying.clear()
        for queue, sender in self._held:
            queue.release(sender)
        self._held.clear()
        await hub.store.writer.flush()

    async def _send(self, hub: Harness) -> None:
        for _ in range(self.rng.choice([1, 30, 700])):
            body = f"{self.sent}".encode()
            priority, endpoint = self.rng.choice([(P0, UPSTREAM), (P2, UPSTREAM), (P7, LAB)])
            message = a_message(f"d{self.rng.randrange(3)}", body)
            hub.send(message, a_result(priority, endpoint_id=endpoint))
            self.sent += 1
            self.waiting.add(body)
        if self.rng.random() < 0.7:
            await hub.store.writer.flush()

    async def _read(self, hub: Harness) -> None:
        queues = hub.store.queues.all()
        if queues:
            queue = self.rng.choice(queues)
            rows = await queue.read_batch(self.rng.choice([1, 50, 400]), 1 << 20)
            if rows:
                self._flying.append((queue, rows))

    async def _finish(self, _hub: Harness) -> None:
        if not self._flying:
            return
        queue, rows = self._flying.pop(self.rng.randrange(len(self._flying)))
        cut = self.rng.randrange(len(rows) + 1)
        queue.confirm(rows[:cut])
        self.waiting -= set(bodies(rows[:cut]))
        back = rows[cut:]
        if back and self.rng.random() < 0.5:
            row = back.pop()
            queue.dead_letter(row, FailureKind.REJECTED, "no")
            self.waiting.discard(row.message.body)
            self.dead.add(row.message.body)
        queue.give_back(back, attempted=self.rng.random() < 0.5, refusal="later")

    async def _hold(self, hub: Harness) -> None:
        queues = hub.store.queues.all()
        held = (self.rng.choice(queues), f"d{self.rng.randrange(3)}") if queues else None
        if held in self._held:
            self._held.remove(held)
            held[0].release(held[1])
        elif held is not None:
            held[0].hold(held[1])
            self._held.append(held)

    async def _move(self, hub: Harness) -> None:
        queues = hub.store.queues.all()
        if queues:
            source = self.rng.choice(queues)
            targets = [(P0, UPSTREAM), (P2, UPSTREAM), (P7, LAB), (Priority(9), LAB)]
            priority, endpoint = self.rng.choice(targets)
            target = hub.store.queues.get(endpoint, priority)
            if target is not source:
                await take_out(hub, source, target)

    async def _purge(self, hub: Harness) -> None:
        queues = hub.store.queues.all()
        if not queues or self.rng.random() < 0.7:
            return
        queue = self.rng.choice(queues)
        await hub.store.writer.flush()
        before = await self._of(hub, queue)
        await take_out(hub, queue)
        self.waiting -= before - await self._of(hub, queue)
        flying = {body for each, rows in self._flying if each is queue for body in bodies(rows)}
        assert await self._of(hub, queue) == flying

    async def _requeue(self, hub: Harness) -> None:
        await hub.store.writer.flush()
        letters = (await dead_letters_of(hub.store))[:50]
        chosen = [letter for letter in letters if self.rng.random() < 0.5]
        await hub.store.requeuer.requeue([letter.id for letter in chosen])
        back = {letter.message.body for letter in chosen}
        self.dead -= back
        self.waiting |= back

    async def _of(self, hub: Harness, queue: Queue) -> set[bytes]:
        return set(bodies(await hub.store.inspection.peek(queue, after=0, rows_max=100_000)))
