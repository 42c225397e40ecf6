"""A fixed linger: fewer commits for flash, and rows confirmed before theirs are never written."""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from edgehub.journal.events import unpack
from edgehub.journal.row_events import RowEvent
from edgehub.message import FailureKind, Refusal
from edgehub.store import StoreOptions
from edgehub.store.row_changes import RowChanges
from edgehub.store.writer import RESULTS_DELAY_S
from tests.support.stores import (
    LAB,
    P0,
    P2,
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

    from edgehub.message import Row

pytestmark = pytest.mark.integration

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))

LINGER = StoreOptions(commit_delay_ms=1000)


async def test_group_waits_for_the_commit_delay(tmp_path: Path) -> None:
    """Acknowledgements wait for the fixed linger, and come with one commit."""
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        for _ in range(9):
            hub.send()
            await hub.clock.advance(0.1)
            await hub.store.database.run(lambda _conn: None)
        assert hub.settled == []
        await hub.clock.advance(0.2)
        await hub.until_settled(9)
        assert hub.store.statistics().commits_total == 1


async def test_full_group_does_not_wait(tmp_path: Path) -> None:
    """A group of 1024 rows begins its commit at once, a smaller one after its linger."""
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        hub.send_many(1023)
        for _ in range(20):
            await hub.store.database.run(lambda _: None)
        assert hub.settled == []
        hub.send()
        for _ in range(20):
            await hub.store.database.run(lambda _: None)
        assert hub.accepted == list(range(1024))
        assert hub.store.statistics().commits_total == 1


async def test_a_group_has_1024_rows_at_most(tmp_path: Path) -> None:
    """What comes at once is committed in parts, so that the first do not wait for the last."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(1)
        before = hub.store.statistics().commits_total
        hub.send_many(3 * 1024 + 1)
        await hub.until_settled(2)
        assert len(hub.settled) == 1 + 1024
        await hub.until_settled(2 + 3 * 1024)
        assert hub.store.statistics().commits_total == before + 4


async def test_changes_that_nothing_waits_for_are_committed_with_others_or_within_50_ms(
    tmp_path: Path,
) -> None:
    """Alone they wait for their time; one that something waits for takes them along at once."""
    async with running(tmp_path / "q.db") as hub:
        await hub.stored(1)
        before = hub.store.statistics().commits_total
        changes = RowChanges(hub.store.writer, "test.change_not_stored")
        statement = ("SELECT ?", (7,))
        alone = changes.add("a", statement, later=True)
        for _ in range(20):
            await hub.store.database.run(lambda _: None)
        assert not alone.done()
        await hub.clock.advance(RESULTS_DELAY_S)
        await alone
        assert hub.store.statistics().commits_total == before + 1
        along = changes.add("a", statement, later=True)
        await changes.add("b", statement)
        assert along.done()
        assert hub.store.statistics().commits_total == before + 2


async def test_events_of_rows_that_were_never_written_share_a_commit(tmp_path: Path) -> None:
    """S-05: one message at a time, each confirmed soon: after five lingers one commit has all."""
    plan = FaultPlan()
    options = StoreOptions(commit_delay_ms=1000, journal=True)
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.store.writer.flush()
        plan.statements.clear()
        begun: list[int] = []
        for _ in range(11):
            hub.send()
            rows = await read_all(hub.queue())
            for tenth in range(5):
                await hub.clock.advance(0.1)
                await hub.store.database.run(lambda _: None)
                if tenth == 0:
                    hub.queue().confirm(rows)
            begun.append(len([sql for sql in plan.statements if sql.startswith("BEGIN")]))
    assert begun == [0] * 10 + [1]


async def test_row_confirmed_before_its_commit_is_acknowledged_and_never_written(
    tmp_path: Path,
) -> None:
    """S-05: with the link up a message costs no write at all."""
    plan = FaultPlan()
    async with running(
        tmp_path / "q.db", options=LINGER, database_type=faulty_database(plan)
    ) as hub:
        woken: list[str] = []
        hub.store.queues.watch(a_result().endpoint_id, lambda queue: woken.append(queue.id))
        plan.statements.clear()
        sent_bytes = 0
        for number in range(50):
            hub.send()
            queue = hub.queue()
            assert woken == [queue.id] * (number + 1)
            assert queue.has_ready()
            rows = await read_all(queue)
            assert bodies(rows) == [f"body-{number}".encode()]
            sent_bytes += rows[0].size
            queue.confirm(rows)
            assert hub.accepted == list(range(number + 1))
            await hub.clock.advance(0.3)
        await hub.store.database.run(lambda _conn: None)
        assert not [sql for sql in plan.statements if sql.startswith(("INSERT", "BEGIN"))]
        figures = queue.statistics()
        assert (figures.depth, figures.enqueued_total, figures.sent_total) == (0, 50, 50)
        assert figures.enqueued_bytes_total == sent_bytes
        assert hub.store.statistics().early_rows_total == 50
        assert hub.store.statistics().pending_bytes == 0


@pytest.mark.scaled
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("round_trip_s", [0.05, 0.35, 0.75, 2.0])
async def test_a_message_costs_a_write_only_where_the_link_is_slow(
    tmp_path: Path, round_trip_s: float, journal: bool
) -> None:
    """S-05: 10 messages a second: no row is written that is confirmed in time.

    Several rows are always on their way, so one was always confirmed a moment before and one will
    be a moment later. With a journal a commit in five seconds has its events; without it none is
    left.
    """
    seconds = 1300 if SOAK else 40
    plan = FaultPlan()
    options = StoreOptions(commit_delay_ms=1000, journal=journal)
    flying: deque[tuple[float, list[Row]]] = deque()
    async with running(
        tmp_path / "q.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        plan.statements.clear()
        for _ in range(seconds * 10):
            hub.send(a_message(body=bytes(120)))
            now_s = hub.clock.monotonic()
            flying.append((now_s + round_trip_s, await read_all(hub.queue())))
            await hub.clock.advance(0.1)
            await hub.store.database.run(lambda _: None)
            while flying and flying[0][0] <= hub.clock.monotonic():
                hub.queue().confirm(flying.popleft()[1])
        begun = len([sql for sql in plan.statements if sql.startswith("BEGIN")])
        # The rows of a commit may take several statements, one behind the other.
        stores = [sql.startswith("INSERT INTO q_") for sql in plan.statements]
        stored = sum(now and not before for before, now in pairwise(stores))
        if round_trip_s < 1:
            # Hub time is stored every ten minutes, with the rows of that moment.
            moments = seconds // 600
            assert hub.store.statistics().early_rows_total >= seconds * 10 - 10 * (1 + moments)
            assert stored <= moments
            assert begun <= (seconds // 5 + 1 if journal else 0) + 2 * moments
        else:
            assert hub.store.statistics().committed_rows_total >= seconds * 10 - 30
            assert stored <= seconds + 1
            assert begun <= 2 * seconds + 2
        settled = [token for token, _ in hub.settled]
        assert len(settled) >= seconds * 10 - 10
        assert sorted(settled) == settled


@pytest.mark.parametrize("round_trip_ms", [2, 60])
async def test_steady_traffic_is_written_only_where_the_link_is_slow(
    tmp_path: Path, round_trip_ms: int
) -> None:
    """Without a fixed delay: 3 000 messages a second, over a near link and over a far one.

    Acknowledgements come in order, and soon, over both.
    """
    flying: deque[list[Row]] = deque()
    async with running(tmp_path / "q.db") as hub:
        settled: list[int] = []
        for millisecond in range(1000):
            hub.send_many(3)
            flying.append(await read_all(hub.queue()))
            await hub.clock.advance(0.001)
            await hub.store.database.run(lambda _: None)
            if len(flying) > round_trip_ms:
                hub.queue().confirm(flying.popleft())
            settled.append(3 * (millisecond + 1) - len(hub.settled))
        figures = hub.store.statistics()
        assert max(settled[100:]) <= 3 * 8
        assert hub.accepted == sorted(hub.accepted)
        if round_trip_ms == 2:
            assert figures.early_rows_total >= 2_700
            assert figures.committed_rows_total <= 300
        else:
            assert figures.early_rows_total == 0
            assert figures.committed_rows_total >= 2_900


async def test_a_link_that_falls_silent_holds_no_acknowledgement_up(tmp_path: Path) -> None:
    """What a quick link does not confirm is stored within 40 ms, and kept."""
    async with running(tmp_path / "q.db") as hub:
        for _ in range(300):
            hub.send_many(3)
            rows = await read_all(hub.queue())
            await hub.clock.advance(0.001)
            hub.queue().confirm(rows)
        assert hub.store.statistics().early_rows_total > 0
        hub.send_many(3)
        silent = await read_all(hub.queue())
        sent = len(hub.settled)
        await hub.clock.advance(0.02)
        await hub.until_settled(sent + 3)
        assert (await hub.count(hub.queue()))[0] == len(silent)


async def test_rows_not_confirmed_in_time_are_committed(tmp_path: Path) -> None:
    """Of the rows read early only those unconfirmed are written; their results follow them."""
    path = tmp_path / "q.db"
    async with running(path, options=LINGER) as hub:
        hub.send_many(10)
        queue = hub.queue()
        rows = await queue.read_batch(6, 1 << 20)
        queue.confirm([rows[1], rows[4]])
        queue.give_back([rows[2]], attempted=True)
        assert sorted(hub.accepted) == [1, 4]
        await hub.clock.advance(1.1)
        await hub.until_settled(10)
        assert [token for token, _ in hub.settled[2:]] == [0, 2, 3, 5, 6, 7, 8, 9]
        assert (await hub.count(queue))[0] == queue.statistics().depth == 8
        copy = crash_copy(path, tmp_path / "crash")
        again = await read_all(queue)
        assert bodies(again) == [f"body-{n}".encode() for n in (2, 6, 7, 8, 9)]
        queue.confirm(again)
        queue.confirm([rows[0], rows[3], rows[5]])
        await hub.store.writer.flush()
        assert await hub.count(queue) == (0, 0)
        assert queue.statistics().sent_total == 10
    async with running(copy) as hub:
        rows = await read_all(hub.queue())
        assert bodies(rows) == [f"body-{n}".encode() for n in (0, 2, 3, 5, 6, 7, 8, 9)]
        assert [row.attempts for row in rows] == [0] * 8


async def test_results_while_the_commit_fails_wait_for_the_next(tmp_path: Path) -> None:
    """A refused row becomes a dead letter after its commit; what has left is not written."""
    plan = FaultPlan()
    async with running(
        tmp_path / "q.db", options=LINGER, database_type=faulty_database(plan)
    ) as hub:
        hub.send_many(6)
        queue = hub.queue()
        rows = await queue.read_batch(5, 1 << 20)
        plan.fail("COMMIT", times=2)
        await hub.clock.advance(1.01)
        await hub.until(lambda: hub.store.statistics().failing is not None)
        queue.confirm(rows[:2])
        queue.dead_letter(rows[2], FailureKind.REJECTED, "no")
        queue.expire(rows[3:4])
        queue.give_back(rows[4:], attempted=True)
        assert hub.accepted == [0, 1, 3]
        await hub.until(lambda: len(hub.settled) == 6, tick_s=0.5)
        await hub.store.writer.flush()
        assert (await hub.count(queue))[0] == queue.statistics().depth == 2
        rows = await read_all(queue)
        assert [(row.message.body, row.attempts) for row in rows] == [
            (b"body-4", 1),
            (b"body-5", 0),
        ]
        assert await hub.scalar("SELECT sum(attempts) FROM q_1") == 1
        assert hub.store.statistics().dead_letter_rows == 1


async def test_a_result_that_stayed_behind_is_committed_by_itself(tmp_path: Path) -> None:
    """Its row joins the file after others have left it; no later result has to bring it along."""
    plan = FaultPlan()
    async with running(
        tmp_path / "q.db", options=LINGER, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(1)
        queue = hub.queue()
        rows = await queue.read_batch(5, 1 << 20)
        hub.send()
        rows += await queue.read_batch(5, 1 << 20)
        assert len(rows) == 2
        plan.fail("COMMIT")
        await hub.clock.advance(1.01)
        await hub.until(lambda: hub.store.statistics().failing is not None)
        queue.confirm(rows)
        await hub.until(lambda: queue.statistics().sent_total == 2, tick_s=0.1, within_s=10)
        assert (await hub.count(queue))[0] == queue.statistics().depth == 0


async def test_order_holds_when_the_file_has_older_rows(tmp_path: Path) -> None:
    """Rows of the open group come after everything older, in the file or returned."""
    options = StoreOptions(commit_delay_ms=1000, cache_bytes_max=1)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.stored(600)
        await hub.stored(600)
        hub.send_many(20)
        rows = await read_all(hub.queue())
        assert bodies(rows) == [f"body-{n}".encode() for n in range(1220)]


async def test_shared_message_waits_for_its_commit(tmp_path: Path) -> None:
    """A message for several queues is read once all of its rows are stored; order holds."""
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        hub.send()
        hub.send(None, a_result(P2), a_result(P0, endpoint_id=LAB))
        hub.send()
        queue = hub.queue()
        early = await read_all(queue)
        assert bodies(early) == [b"body-0"]
        assert not queue.has_ready()
        await hub.store.writer.flush()
        assert bodies(await read_all(queue)) == [b"body-1", b"body-2"]


async def test_a_group_that_goes_on_keeps_its_order_and_its_barriers(tmp_path: Path) -> None:
    """Rows that were confirmed are forgotten; the others wait their own time, shared ones too."""
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        hub.send()
        await hub.clock.advance(0.5)
        hub.send()
        queue = hub.queue()
        rows = await read_all(queue)
        queue.confirm(rows[:1])
        hub.send(None, a_result(P2), a_result(P0, endpoint_id=LAB))
        hub.send()
        await hub.clock.advance(0.51)
        await hub.store.database.run(lambda _: None)
        assert hub.accepted == [0]
        assert await read_all(queue) == []
        hub.send()
        queue.give_back(rows[1:], attempted=False)
        assert bodies(await read_all(queue)) == [b"body-1"]
        await hub.clock.advance(0.5)
        await hub.until_settled(5)
        assert hub.accepted == [0, 1, 2, 3, 4]
        assert await hub.count(queue) == (4, queue.statistics().bytes)
        assert bodies(await read_all(queue)) == [b"body-2", b"body-3", b"body-4"]
        assert hub.store.statistics().commits_total == 1


async def test_a_queue_whose_rows_were_all_confirmed_goes_on(tmp_path: Path) -> None:
    """The group stays open for a row of another queue; what joins it afterwards is stored."""
    path = tmp_path / "q.db"
    async with running(path, options=LINGER) as hub:
        hub.send(None, a_result(P0))
        hub.queue(P0).confirm(await read_all(hub.queue(P0)))
        hub.send(None, a_result(P0))
        await hub.clock.advance(0.5)
        hub.send(None, a_result(P2))
        hub.queue(P0).confirm(await read_all(hub.queue(P0)))
        await hub.clock.advance(0.6)
        await hub.store.database.run(lambda _: None)
        hub.send(None, a_result(P0))
        await hub.clock.advance(0.5)
        await hub.until_settled(4)
        assert hub.accepted == [0, 1, 2, 3]
    async with running(path) as hub:
        assert bodies(await read_all(hub.queue(P0))) == [b"body-3"]
        assert bodies(await read_all(hub.queue(P2))) == [b"body-2"]


async def test_held_rows_that_are_not_stored_yet_come_later(tmp_path: Path) -> None:
    """A hold on a sender or a row also counts for rows that wait for their commit."""
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        for device in ("a", "b", "a", "b"):
            hub.send(a_message(device, f"body-{len(hub.sent)}".encode()))
        queue = hub.queue()
        first = await queue.read_batch(2, 1 << 20)
        queue.hold("a")
        queue.hold(first[1].offset)
        queue.give_back(first, attempted=False)
        assert bodies(await read_all(queue)) == [b"body-3"]
        await hub.store.writer.flush()
        assert await read_all(queue) == []
        queue.release("a")
        queue.release(first[1].offset)
        assert bodies(await read_all(queue)) == [b"body-0", b"body-1", b"body-2"]


@pytest.mark.parametrize("events_max", [1, 100])
async def test_row_read_early_and_then_refused_leaves_no_trace(
    tmp_path: Path, events_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that turns out not to be storable is refused, though it may have been delivered."""
    monkeypatch.setattr("edgehub.store.checkpointer.EVENTS_MAX", events_max)
    options = StoreOptions(commit_delay_ms=LINGER.commit_delay_ms, journal=True)
    async with running(tmp_path / "q.db", options=options) as hub:
        await hub.store.database.run(
            lambda conn: conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
        )
        hub.send()
        hub.send(a_message(body=b"x" * 30_000))
        hub.send()
        queue = hub.queue()
        rows = await read_all(queue)
        await hub.store.writer.flush()
        assert hub.settled == [(0, None), (1, Refusal.INVALID), (2, None)]
        queue.confirm(rows)
        await hub.store.writer.flush()
        assert queue.statistics().depth == 0
        assert await hub.count(queue) == (0, 0)
        blobs = await hub.store.database.run(
            lambda conn: conn.execute("SELECT events FROM journal").fetchall()
        )
        commits = [unpack(blob) for (blob,) in blobs]
        runs = [
            run for commit in commits for section in commit.sections for run in section.runs(10)
        ]
        sent = sum(len(run) for run in runs if run.kind == RowEvent.SENT)
        counts = [count for commit in commits for count in commit.counts]
        sent += sum(rows for _, _, event, rows, *_ in counts if event == RowEvent.SENT)
        assert sent == queue.statistics().sent_total == 2


@pytest.mark.parametrize("place", ["came back", "held", "in flight"])
async def test_row_refused_to_its_sender_is_not_read_again(tmp_path: Path, place: str) -> None:
    """Wherever it waits when the file turns out not to take it, it is forgotten."""
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        await hub.store.database.run(
            lambda conn: conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000)
        )
        hub.send(a_message(body=b"x" * 30_000))
        hub.send()
        queue = hub.queue()
        (large,) = await queue.read_batch(1, 1 << 20)
        if place == "held":
            queue.hold(large.offset)
        if place != "in flight":
            queue.give_back([large], attempted=True)
        if place == "held":
            queue.confirm(await read_all(queue))
            hub.send()
        await hub.store.writer.flush()
        assert (0, Refusal.INVALID) in hub.settled
        if place == "in flight":
            queue.give_back([large], attempted=True)
        queue.release(large.offset)
        await hub.store.writer.flush()
        assert large.offset not in {row.offset for row in await read_all(queue)}
        assert not queue.checkpointer.refused


async def test_offsets_of_early_rows_are_not_used_again_after_a_crash(tmp_path: Path) -> None:
    """Ids that left the hub before any commit are never given to another message."""
    path = tmp_path / "q.db"
    async with running(path, options=LINGER) as hub:
        hub.send_many(5)
        rows = await read_all(hub.queue())
        hub.queue().confirm(rows)
        copy = crash_copy(path, tmp_path / "crash")
    async with running(copy, options=LINGER) as hub:
        hub.send()
        (row,) = await read_all(hub.queue())
        assert row.offset > rows[-1].offset


async def test_the_mark_of_offsets_is_renewed_without_other_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are never written never get further above the stored mark than a start skips."""
    monkeypatch.setattr("edgehub.store.offsets.UNSTORED_MAX", 65_536)
    async with running(tmp_path / "q.db", options=LINGER) as hub:
        for _ in range(140):
            hub.send_many(500)
            queue = hub.queue()
            rows = await queue.read_batch(500, 1 << 30)
            queue.confirm(rows)
            await hub.clock.advance(0.5)
            await hub.store.database.run(lambda _conn: None)
        figures = hub.store.statistics()
        assert figures.early_rows_total == 70_000
        assert 1 <= figures.commits_total <= 3
        assert await hub.scalar("SELECT high_water FROM boot") > 70_000 - 65_536 // 2


async def test_checkpoint_stays_below_rows_to_come(tmp_path: Path) -> None:
    """The checkpoint of an empty queue is not the mark of offsets, so no start repairs it."""
    path = tmp_path / "q.db"
    async with running(path, options=LINGER) as hub:
        await hub.stored(3)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        hub.send_many(2)
        await hub.store.writer.flush()
        copy = crash_copy(path, tmp_path / "crash")
    async with running(copy) as hub:
        assert hub.store.statistics().checkpoint_repaired_total == 0
        assert hub.queue().statistics().depth == 2
