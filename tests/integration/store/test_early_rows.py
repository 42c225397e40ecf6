"""Rows that are read before their commit: order, bounds and acknowledgements without a delay."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING

import pytest

from edgehub.journal.row_events import EventColumns, RowEvent
from edgehub.message import FailureKind
from edgehub.store import StoreOptions
from edgehub.store.group import GROUP_ROWS_MAX
from tests.support.stores import (
    LAB,
    P0,
    P2,
    FaultPlan,
    PausingPlan,
    a_message,
    a_result,
    bodies,
    crash_copy,
    dead_letters_of,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.message import Row

pytestmark = pytest.mark.integration


async def test_rows_of_a_released_sender_come_before_its_next_ones(tmp_path: Path) -> None:
    """Order per sender holds although the rows that were held have no commit yet."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        queue.hold("dev-1")
        plan.fail("COMMIT", times=1000)
        hub.send_many(2)
        assert await read_all(queue) == []
        await hub.until(lambda: hub.store.statistics().failing is not None)
        queue.release("dev-1")
        hub.send()
        assert bodies(await read_all(queue)) == [b"body-1", b"body-2", b"body-3"]
        plan.heal()
        await hub.until(lambda: len(hub.settled) == 4, tick_s=1.0)


@pytest.mark.parametrize("journal", [False, True])
async def test_a_disk_that_takes_no_commit_costs_no_memory_for_what_was_confirmed(
    tmp_path: Path, journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link goes on, and what it confirms is forgotten; the sums of the journal are kept."""
    monkeypatch.setattr("edgehub.store.event_log.EARLY_MAX", 100)
    plan = FaultPlan()
    options = StoreOptions(journal=journal)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(1)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        await hub.store.writer.flush()
        plan.fail("COMMIT", times=1000)
        hub.send()
        (kept,) = await read_all(queue)
        await hub.until(lambda: hub.store.statistics().failing is not None)
        writer = hub.store.writer
        for _ in range(32):
            hub.send_many(50)
            queue.confirm(await read_all(queue))
            hub.send_many(50, a_result(P0))
            hub.queue(P0).confirm(await read_all(hub.queue(P0)))
        assert hub.accepted == [0, *range(2, 3202)]
        assert writer.pending_bytes == kept.size
        assert len(writer.group.waiters) < GROUP_ROWS_MAX
        events = hub.store.writer.events
        assert (events is None) is not journal
        if events is not None:
            batch = events.begin()
            assert sum(len(joined) for joined, _ in batch.early.values()) <= 100
            assert sum(len(left) for _, left in batch.early.values()) <= 100
            events.failed(batch)
        plan.heal()
        await hub.until(lambda: len(hub.settled) == 3202, tick_s=1.0)
        assert queue.statistics().sent_total == 1601
        assert hub.queue(P0).statistics().sent_total == 1600


async def test_events_of_rows_that_wait_for_a_failing_disk_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused sends become sums; events of dead letters stay, and are seldom looked at."""
    monkeypatch.setattr("edgehub.store.checkpointer.EVENTS_MAX", 100)
    looked_at: list[int] = []
    shrink = EventColumns.shrink

    def counted(columns: EventColumns, offset: int) -> None:
        looked_at.append(len(columns))
        shrink(columns, offset)

    monkeypatch.setattr(EventColumns, "shrink", counted)
    plan = FaultPlan()
    options = StoreOptions(journal=True)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(1)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        await hub.store.writer.flush()
        plan.fail("COMMIT", times=1000)
        hub.send()
        await hub.until(lambda: hub.store.statistics().failing is not None)
        hub.send_many(1000)
        for _ in range(10):
            queue.give_back(await read_all(queue), attempted=True, refusal="busy")
            assert len(queue.checkpointer.results.events) <= 100
        for row in await read_all(queue):
            queue.dead_letter(row, FailureKind.REJECTED, "no")
        events = queue.checkpointer.results.events
        assert events.counts[RowEvent.RETRIED][0] == 10 * 1001
        assert events.kinds == [RowEvent.DEAD_LETTERED] * 1001
        assert sum(looked_at) < 20 * 1001
        hub.send_many(2)
        rows = await read_all(queue)
        queue.give_back(rows[:1], attempted=True, refusal="busy")
        with monkeypatch.context() as patch:
            patch.delattr(EventColumns, "take")  # none of them has an event
            queue.confirm(rows[1:])
        queue.confirm(await read_all(queue))
        assert len(events) == 1001
        plan.heal()
        await hub.until(lambda: hub.store.statistics().dead_letter_rows == 1001, tick_s=1.0)


async def test_rows_that_left_before_their_commit_are_not_taken_off_those_in_the_file(
    tmp_path: Path,
) -> None:
    """The bounds of the disk count what is in the file and has not left: never less than none."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1)
        queue = hub.queue()
        plan.fail("COMMIT", times=3)
        hub.send_many(2)
        first, *rows = await read_all(queue)
        await hub.until(lambda: hub.store.statistics().failing is not None)
        for row in rows:
            queue.dead_letter(row, FailureKind.REJECTED, "no")
        assert (queue.stored_rows, queue.stored_bytes) == (1, first.size)
        queue.confirm([first])
        assert (queue.stored_rows, queue.stored_bytes) == (0, 0)
        await hub.until(lambda: hub.store.statistics().dead_letter_rows == 2, tick_s=1.0)
        assert (queue.stored_rows, queue.stored_bytes) == (0, 0)
        assert (queue.rows_taken, queue.bytes_taken) == (0, 0)


async def test_large_rows_that_were_confirmed_are_forgotten_soon(tmp_path: Path) -> None:
    """Their bytes count as those of a group do, not only their number."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1)
        queue = hub.queue()
        plan.fail("COMMIT", times=1000)
        hub.send()
        await read_all(queue)
        await hub.until(lambda: hub.store.statistics().failing is not None)
        for _ in range(40):
            hub.send(a_message(body=bytes(250_000)))
            queue.confirm(await read_all(queue))
        assert len(hub.store.writer.group.waiters) < 40
        plan.heal()


async def test_rows_that_are_stored_in_any_case_wait_for_no_link(tmp_path: Path) -> None:
    """Messages for two endpoints leave after their commit, so it begins as soon as before."""
    flying: deque[dict[str, list[Row]]] = deque()
    async with running(tmp_path / "q.db") as hub:
        waiting: list[int] = []
        for millisecond in range(40):
            for _ in range(3):
                hub.send(None, a_result(P2), a_result(P0, endpoint_id=LAB))
            queues = {each.id: each for each in hub.store.queues.all()}
            flying.append({name: await read_all(queue) for name, queue in queues.items()})
            await hub.clock.advance(0.001)
            await hub.store.database.run(lambda _: None)
            if len(flying) > 2:
                for name, rows in flying.popleft().items():
                    queues[name].confirm(rows)
            waiting.append(3 * (millisecond + 1) - len(hub.settled))
        assert max(waiting) <= 3 * 5


async def test_no_row_is_read_early_where_the_start_could_not_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start would not know that it has to skip the ids that left before their commit."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "q.db"
    async with running(path) as hub:
        await hub.stored(1)
    with monkeypatch.context() as patch:
        patch.setattr("edgehub.store.lock.os.pwrite", full)
        async with running(path) as hub:
            used = hub.store.statistics().next_offset
            hub.send_many(2)
            rows = await read_all(hub.queue())
            copy = crash_copy(path, tmp_path / "crash")
            await hub.store.writer.flush()
            assert len(rows + await read_all(hub.queue())) == 3
    async with running(copy) as hub:
        hub.send()
        assert hub.store.statistics().next_offset == used + 1
    assert [row.offset for row in rows if row.offset >= used] == []


async def test_rows_that_a_failing_disk_does_not_take_leave_by_the_link(tmp_path: Path) -> None:
    """Those of the groups that wait for the disk, too, in their order and by all of its queues."""
    plan = FaultPlan()
    async with running(
        tmp_path / "q.db",
        options=StoreOptions(journal=True),
        database_type=faulty_database(plan),
    ) as hub:
        await hub.stored(1, a_result(P0))
        await hub.stored(1)
        queues = hub.queue(P0), hub.queue()
        for queue in queues:
            queue.confirm(await read_all(queue))
        await hub.store.writer.flush()
        plan.fail("COMMIT", times=1000)
        hub.send_many(1, a_result(P0))
        await hub.until(lambda: hub.store.statistics().failing is not None)
        for _ in range(3):
            hub.send_many(GROUP_ROWS_MAX)
            hub.send_many(2, a_result(P0))
        assert len(hub.store.writer.sealed) == 4
        sent = [await read_all(queue) for queue in queues]
        assert [len(rows) for rows in sent] == [7, 3 * GROUP_ROWS_MAX]
        for queue, rows in zip(queues, sent, strict=True):
            assert rows == sorted(rows, key=lambda row: row.offset)
            queue.confirm(rows)
            assert (queue.stored_rows, queue.rows_taken, queue.bytes_taken) == (0, 0, 0)
            assert queue.statistics().sent_total == queue.statistics().enqueued_total
        assert len(hub.accepted) == len(hub.sent)
        statistics = hub.store.statistics()
        assert (statistics.pending_rows, statistics.pending_bytes) == (0, 0)
        assert not hub.store.writer.sealed
        plan.heal()
        await hub.until(lambda: hub.store.statistics().failing is None, tick_s=1.0)
        assert hub.store.statistics().committed_rows_total == 2


async def test_what_the_link_does_not_confirm_is_stored_once_the_disk_is_back(
    tmp_path: Path,
) -> None:
    """Of several groups every third row stays; it is in the file, and read again in its place."""
    plan = FaultPlan()
    path = tmp_path / "q.db"
    async with running(path, database_type=faulty_database(plan)) as hub:
        await hub.stored(1)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        plan.fail("COMMIT", times=1000)
        hub.send()
        await hub.until(lambda: hub.store.statistics().failing is not None)
        hub.send_many(2 * GROUP_ROWS_MAX)
        rows = await read_all(queue)
        # A confirmation looks at the groups of its rows alone: any number of them may wait.
        assert queue.reader.uncommitted_between(1, rows[0].offset - 1) == []
        for row in rows[::500]:
            (joined,) = queue.reader.uncommitted_between(row.offset, row.offset)
            assert row in joined.rows
        kept = rows[::3]
        queue.confirm([row for row in rows if row not in kept])
        queue.give_back(kept, attempted=False)
        assert queue.rows_taken == len(kept)
        assert queue.bytes_taken == sum(row.size for row in kept)
        plan.heal()
        await hub.until(lambda: len(hub.settled) == len(hub.sent), tick_s=1.0)
        await hub.store.writer.flush()
        assert (await hub.count(queue))[0] == queue.statistics().depth == len(kept)
        assert bodies(await read_all(queue)) == bodies(kept)
    async with running(path) as hub:
        assert bodies(await read_all(hub.queue())) == bodies(kept)


@pytest.mark.parametrize("journal", [False, True])
async def test_rows_that_left_during_a_commit_that_fails_are_acknowledged(
    tmp_path: Path, journal: bool
) -> None:
    """They are not written with the next try: the disk may take none for long."""
    plan = PausingPlan()
    async with running(
        tmp_path / "q.db",
        options=StoreOptions(journal=journal),
        database_type=faulty_database(plan),
    ) as hub:
        await hub.stored(1)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        await hub.store.writer.flush()
        plan.fail("COMMIT", times=1000)
        commit = plan.pause("COMMIT")
        hub.send_many(4)
        await commit.wait()
        hub.send()
        rows = await read_all(queue)
        assert len(rows) == 5
        queue.confirm(rows[:2])
        queue.dead_letter(rows[2], FailureKind.REJECTED, "no")
        assert hub.accepted == [0]
        assert queue.stored_rows == 0
        statistics = hub.store.statistics()
        assert statistics.pending_rows == 5
        assert statistics.pending_bytes == sum(row.size for row in rows)
        commit.may_end.set()
        await hub.until(lambda: hub.store.statistics().failing is not None)
        assert hub.accepted == [0, 1, 2]
        queue.confirm(rows[3:])
        assert hub.accepted == [0, 1, 2, 4, 5]
        assert queue.statistics().enqueued_total == queue.statistics().sent_total == 5
        assert queue.rows_taken == 0
        plan.heal()
        await hub.until(lambda: hub.store.statistics().dead_letter_rows == 1, tick_s=1.0)
        assert len(hub.settled) == len(hub.sent)
        statistics = hub.store.statistics()
        assert statistics.committed_rows_total == 2
        assert (statistics.pending_rows, statistics.pending_bytes) == (0, 0)


async def test_a_row_given_back_while_others_are_read_and_committed_is_sent_again(
    tmp_path: Path,
) -> None:
    """The reading leaves it out, as it was in flight, so it must not be left to the file."""
    plan = PausingPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(2)
        queue = hub.queue()
        rejected, sent = await read_all(queue)
        queue.dead_letter(rejected, FailureKind.REJECTED, "no")
        await hub.store.writer.flush()
        (letter,) = await dead_letters_of(hub.store)
        requeue = plan.pause("INSERT OR IGNORE INTO q_")
        requeued = asyncio.ensure_future(hub.store.requeuer.requeue([letter.id]))
        await requeue.wait()
        hub.send()
        assert bodies(await read_all(queue)) == [b"body-2"]
        commit = plan.pause("INSERT INTO q_")
        requeue.may_end.set()
        await commit.wait()
        reading = asyncio.ensure_future(queue.read_batch(10, 1 << 20))
        await asyncio.sleep(0)
        queue.give_back([sent], attempted=False)
        commit.may_end.set()
        rows = await reading
        assert bodies([*rows, *await read_all(queue)]) == [b"body-0", b"body-1"]
        await requeued


async def test_a_message_with_several_rows_waits_for_the_disk_and_others_behind_it(
    tmp_path: Path,
) -> None:
    """In the queues that it goes to, whichever group they are in."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1)
        plan.fail("COMMIT", times=1000)
        hub.send()
        hub.send(None, a_result(P2), a_result(P0, endpoint_id=LAB))
        hub.send()
        await hub.until(lambda: hub.store.statistics().failing is not None)
        hub.send()
        queue = hub.queue()
        rows = await read_all(queue)
        assert bodies(rows) == [b"body-0", b"body-1"]
        queue.confirm(rows)
        assert hub.accepted == [0, 1]
        plan.heal()
        await hub.until(lambda: len(hub.settled) == 5, tick_s=1.0)
        assert bodies(await read_all(queue)) == [b"body-2", b"body-3", b"body-4"]


async def test_messages_that_a_failing_disk_does_not_take_are_found(tmp_path: Path) -> None:
    """By both ids: waiting, in flight, or about to be dead letters; not once they have left."""
    plan = FaultPlan()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        await hub.stored(1)
        queue, inspection = hub.queue(), hub.store.inspection
        queue.confirm(await read_all(queue))
        plan.fail("COMMIT", times=1000)
        sent = [
            hub.send(a_message(body=b"%d" % number, system={"messageId": f"own-{number}"}))
            for number in range(4)
        ]
        await hub.until(lambda: hub.store.statistics().failing is not None)
        rows = await queue.read_batch(3, 1 << 20)
        queue.confirm(rows[:1])
        queue.dead_letter(rows[1], FailureKind.REJECTED, "no")
        states: list[list[str]] = []
        for number, message in enumerate(sent):
            offset = inspection.offset_of(message.message_id)
            assert offset is not None
            copies = await inspection.find(offset)
            assert copies == (await inspection.search(f"own-{number}")).copies
            states.append([queue.row_state(copy.row) for copy in copies])
        assert states == [[], ["leaving"], ["in_flight"], ["being stored"]]
        plan.heal()
        await hub.until(lambda: hub.store.statistics().failing is None, tick_s=1.0)
        (copy,) = (await inspection.search("own-3")).copies
        assert queue.row_state(copy.row) == "waiting"
