"""The store on real files: acknowledgement, fan-out, restart, crash, bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.errors import StartupError
from edgehub.message import (
    DEFAULT_PRIORITY,
    UPSTREAM,
    Priority,
    Recency,
    Refusal,
    module_input,
)
from edgehub.store import Caps, Overflow, QueueState, Store, StoreOptions
from edgehub.store.migrations import SCRIPTS
from tests.support.stores import (
    LAB,
    P0,
    P2,
    P7,
    a_message,
    a_result,
    bodies,
    crash_copy,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


async def test_acknowledgements_follow_the_commit_in_order(tmp_path: Path) -> None:
    """Nobody is told before the commit; all are told in the order of appends."""
    async with running(tmp_path / "queue.db") as hub:
        hub.send_many(3000)
        assert hub.settled == []
        await hub.until_settled(3000)
        assert hub.accepted == list(range(3000))
        assert hub.store.statistics().commits_total >= 3


async def test_results_that_come_and_go_are_not_mistaken_for_each_other(tmp_path: Path) -> None:
    """What is kept of a result is found by its identity, which must not become another's."""
    async with running(tmp_path / "q.db") as hub:
        for number in range(1200):
            endpoint_id, routes = (LAB, ("l",)) if number % 3 else (UPSTREAM, ("u",))
            ttl_s = 60 + number
            hub.send(None, a_result(endpoint_id=endpoint_id, routes=routes, ttl_s=ttl_s))
        await hub.store.writer.flush()
        for endpoint_id, name, of_lab in ((UPSTREAM, "u", False), (LAB, "l", True)):
            rows = await read_all(hub.queue(endpoint_id=endpoint_id))
            expected = [number for number in range(1200) if bool(number % 3) is of_lab]
            assert [row.message.body for row in rows] == [b"body-%d" % n for n in expected]
            assert [row.expires_ms - row.enqueued_ms for row in rows] == [
                1000 * (60 + number) for number in expected
            ]
            assert {row.routes for row in rows} == {(name,)}


async def test_message_without_results_is_settled_at_once(tmp_path: Path) -> None:
    """What matches no route has nothing to wait for."""
    async with running(tmp_path / "queue.db") as hub:
        done: list[tuple[int, Refusal | None]] = []
        hub.store.appender.append(
            a_message(), (), lambda token, refusal: done.append((token, refusal)), 7
        )
        assert done == [(7, None)]


async def test_confirmations_commit_within_50_ms(tmp_path: Path) -> None:
    """Without other traffic a confirmation waits 50 ms and no longer."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(5)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
        await hub.clock.advance(0.049)
        assert await hub.count(queue) != (0, 0)
        await hub.clock.advance(0.002)
        assert await hub.count(queue) == (0, 0)


async def test_delivered_rows_do_not_come_again_after_a_stop(tmp_path: Path) -> None:
    """D-03: progress is stored with the confirmation, so a restart sends nothing twice."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        await hub.stored(2500)
        queue = hub.queue()
        queue.confirm(await read_all(queue))
    async with running(path) as hub:
        assert hub.queue().statistics().depth == 0
        assert not hub.queue().has_ready()


async def test_at_most_the_unstored_confirmations_come_again_after_a_crash(tmp_path: Path) -> None:
    """D-03: after a kill only what was confirmed since the last commit is sent again."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        await hub.stored(300)
        queue = hub.queue()
        queue.confirm(await queue.read_batch(100, 1 << 20))
        await hub.store.writer.flush()
        queue.confirm(await queue.read_batch(100, 1 << 20))
        copy = crash_copy(path, tmp_path / "crash")
    async with running(copy) as hub:
        rows = await read_all(hub.queue())
        assert bodies(rows) == [f"body-{n}".encode() for n in range(100, 300)]


async def test_acknowledged_messages_survive_a_crash_at_any_commit(tmp_path: Path) -> None:
    """R-03: whatever was settled is in the file and its log at that moment."""
    path = tmp_path / "queue.db"
    crashes = []
    async with running(path) as hub:
        for number in range(12):
            hub.send_many(37, a_result(P0), a_result(P7, endpoint_id=LAB))
            await hub.until_settled(37 * (number + 1))
            crashes.append((crash_copy(path, tmp_path / f"crash-{number}"), len(hub.accepted)))
    for copy, accepted in crashes:
        async with running(copy) as hub:
            for queue in hub.store.queues.all():
                rows = await read_all(queue)
                assert bodies(rows) == [f"body-{n}".encode() for n in range(accepted)]


async def test_shared_body_is_stored_once_and_leaves_with_its_last_row(tmp_path: Path) -> None:
    """Fan-out: one body, one row per queue, references in the same transaction."""
    async with running(tmp_path / "queue.db") as hub:
        hub.send(None, a_result(P0), a_result(P2, endpoint_id=LAB), a_result(P7, endpoint_id=LAB))
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT refs FROM body") == 3
        for left, queue in zip((2, 1, None), hub.store.queues.all(), strict=True):
            rows = await read_all(queue)
            assert bodies(rows) == [b"body-0"]
            assert rows[0].message.message_id == hub.sent[0].message_id
            queue.confirm(rows)
            await hub.store.writer.flush()
            if left is None:
                assert await hub.scalar("SELECT count(*) FROM body") == 0
            else:
                assert await hub.scalar("SELECT refs FROM body") == left


async def test_message_is_equal_in_all_queues_after_restart(tmp_path: Path) -> None:
    """A shared message has the same id and body wherever it is read."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        message = hub.send(None, a_result(P0), a_result(P2, endpoint_id=LAB))
        await hub.store.writer.flush()
    async with running(path) as hub:
        for queue in hub.store.queues.all():
            (row,) = await read_all(queue)
            assert row.message.message_id == message.message_id
            assert row.message.body == message.body


async def test_all_stored_queues_are_adopted(tmp_path: Path) -> None:
    """Queues that no route names any more are there after a restart, best priority first."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        for priority in (P7, DEFAULT_PRIORITY, P0):
            await hub.stored(2, a_result(priority))
        await hub.stored(1, a_result(P2, endpoint_id=LAB))
    async with running(path) as hub:
        assert [q.id for q in hub.store.queues.all()] == [
            "lab_Pri2",
            "upstream_Pri0",
            "upstream_Pri7",
            "upstream",
        ]
        assert [q.priority for q in hub.store.queues.of(UPSTREAM)] == [P0, P7, DEFAULT_PRIORITY]
        assert [q.statistics().depth for q in hub.store.queues.all()] == [1, 2, 2, 2]
        assert len(await read_all(hub.queue(P7))) == 2


async def test_watchers_are_woken_by_a_row_that_may_be_read_and_by_the_commit(
    tmp_path: Path,
) -> None:
    """Those who watch the endpoint are, and nobody else."""
    async with running(tmp_path / "queue.db") as hub:
        woken: list[str] = []
        hub.store.queues.watch(UPSTREAM, lambda queue: woken.append(queue.id))
        hub.send_many(5, a_result(P0), a_result(P2, endpoint_id=LAB))
        hub.send_many(5, a_result(P7))
        await hub.store.writer.flush()
        assert sorted(woken) == ["upstream_Pri0", "upstream_Pri7", "upstream_Pri7"]
        assert all(queue.has_ready() for queue in hub.store.queues.all())


async def test_second_process_is_reported_that_the_file_is_in_use(tmp_path: Path) -> None:
    """Two hubs on one file would corrupt it; the second does not start, and says why."""
    path = tmp_path / "queue.db"
    async with running(path):
        with pytest.raises(StartupError, match="in use by another process"):
            await Store.open(path, clock=ManualClock(), options=StoreOptions())
    async with running(path):
        pass


async def test_closed_store_refuses(tmp_path: Path) -> None:
    """After close a message is refused, queues give nothing, operations fail."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(1)
    hub.send()
    assert hub.settled[-1] == (1, Refusal.CLOSED)
    assert await hub.queue().read_batch(1, 1) == []
    assert hub.queue().statistics().state is QueueState.CLOSED
    assert not hub.queue().has_ready()
    await hub.store.close()


async def test_close_commits_what_was_handed_in(tmp_path: Path) -> None:
    """R-05: a stop stores what is pending, confirmations too, whether the writer still runs."""
    path = tmp_path / "queue.db"
    clock = ManualClock()
    store = await Store.open(path, clock=clock, options=StoreOptions())
    done: list[Refusal | None] = []
    for _ in range(2500):
        store.appender.append(
            a_message(), (a_result(),), lambda _token, refusal: done.append(refusal), 0
        )
    await store.close()
    assert done == [None] * 2500
    assert not path.with_name("queue.db-wal").exists()
    async with running(path) as hub:
        assert hub.queue().statistics().depth == 2500


async def test_message_ids_are_unique_over_files(tmp_path: Path) -> None:
    """A file that is made anew does not repeat the ids of the old one."""
    ids = set()
    for number in range(3):
        async with running(tmp_path / f"{number}.db") as hub:
            await hub.stored(5)
            ids |= {message.message_id for message in hub.sent}
    assert len(ids) == 15


async def test_offsets_are_not_used_twice_after_a_crash(tmp_path: Path) -> None:
    """Offsets go on above everything that was ever committed, deleted rows included."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        await hub.stored(10)
        rows = await read_all(hub.queue())
        hub.queue().confirm(rows)
        await hub.store.writer.flush()
        copy = crash_copy(path, tmp_path / "crash")
    async with running(copy) as hub:
        await hub.stored(1)
        (row,) = await read_all(hub.queue())
        assert row.offset > rows[-1].offset


async def test_ids_of_dropped_messages_are_not_used_twice_after_crashes(tmp_path: Path) -> None:
    """A life that stored nothing has handed out ids all the same: the next one skips them."""
    path = tmp_path / "0" / "queue.db"
    options = StoreOptions(caps=Caps(rows=1, overflow=Overflow.DROP_NEWEST))
    async with running(path, options=options) as hub:
        await hub.stored(1)
        path = crash_copy(path, tmp_path / "1")
    ids = set()
    for life in range(2, 6):
        async with running(path, options=options) as hub:
            hub.send(None, a_result())
            hub.send(None, a_result())
            assert hub.queue().statistics().depth == 1
            ids |= {message.message_id for message in hub.sent}
            path = crash_copy(path, tmp_path / str(life))
    assert len(ids) == 8


async def test_recency_fields_are_stored(tmp_path: Path) -> None:
    """Rows and zones hold until when a row is fresh and where it goes then."""
    async with running(tmp_path / "queue.db") as hub:
        recency = Recency(seconds=30, fallback_priority=P7)
        hub.send(None, a_result(P2, recency=recency))
        hub.send(None, a_result(P2, recency=recency), a_result(P0, endpoint_id=LAB))
        await hub.store.writer.flush()
        now = hub.store.hub_time.now_ms()
        sql = f"SELECT fresh_until_ms, fallback FROM q_{hub.queue().number}"
        rows = await hub.store.database.run(lambda conn: conn.execute(sql).fetchall())
        assert rows == [(now + 30_000, 7)] * 2
        ends = await hub.scalar(
            f"SELECT max(stale_from_ms) FROM zone WHERE queue = {hub.queue().number}"
        )
        assert ends == now + 30_000


async def test_unstorable_text_is_refused_alone(tmp_path: Path) -> None:
    """A lone surrogate cannot be written as UTF-8: that message is refused, others are not."""
    async with running(tmp_path / "queue.db") as hub:
        hub.send()
        hub.send(a_message(properties={"k": "\ud800"}))
        hub.send(a_message("\udfff"))
        hub.send(None, a_result(routes=("\ud800",)))
        hub.send()
        await hub.until_settled(5)
        assert sorted(hub.settled) == [
            (0, None),
            (1, Refusal.INVALID),
            (2, Refusal.INVALID),
            (3, Refusal.INVALID),
            (4, None),
        ]


async def test_pending_messages_are_bounded(tmp_path: Path) -> None:
    """What waits for its commit is bounded in memory; beyond it messages are refused."""
    async with running(tmp_path / "queue.db", options=StoreOptions(pending_bytes_max=1000)) as hub:
        hub.send_many(50)
        assert {refusal for _, refusal in hub.settled} == {Refusal.LIMIT}
        await hub.until_settled(50)
        assert 0 < len(hub.accepted) < 50
        hub.send()
        await hub.until_settled(51)
        assert hub.settled[-1] == (50, None)
        assert hub.store.statistics().pending_bytes == 0


async def test_file_is_set_up_for_durability_and_shrinking(tmp_path: Path) -> None:
    """The pragmas that acknowledged messages rest on are in force, on a new file and later."""
    for _ in range(2):
        async with running(tmp_path / "queue.db") as hub:
            assert await hub.scalar("PRAGMA journal_mode") == "wal"
            assert await hub.scalar("PRAGMA synchronous") == 2
            assert await hub.scalar("PRAGMA auto_vacuum") == 2
            assert await hub.scalar("PRAGMA wal_autocheckpoint") == 0
            assert await hub.scalar("PRAGMA user_version") == len(SCRIPTS)


async def test_log_is_moved_into_the_file_in_time(tmp_path: Path) -> None:
    """The write-ahead log stays near its bound, and one that grew is cut."""
    path = tmp_path / "queue.db"
    log_file = path.with_name("queue.db-wal")
    async with running(path, options=StoreOptions(wal_bytes_max=200_000)) as hub:
        for _ in range(30):
            await hub.stored(100)
        assert log_file.stat().st_size < 600_000
        assert hub.store.statistics().wal_bytes_total > 400_000
        for _ in range(200):
            hub.send(a_message(body=bytes(20_000)))
        await hub.store.writer.flush()
        await hub.until(lambda: log_file.stat().st_size < 600_000)
        assert hub.queue().statistics().depth == 3200


async def test_large_messages_are_committed_in_bounded_groups(tmp_path: Path) -> None:
    """A group is closed by its bytes as well as by its rows."""
    async with running(tmp_path / "queue.db") as hub:
        for _ in range(100):
            hub.send(a_message(body=bytes(250_000)))
        await hub.until_settled(100)
        assert hub.store.statistics().commits_total >= 3


async def test_input_named_like_a_priority_is_a_queue_of_its_own(tmp_path: Path) -> None:
    """`x_Pri3` at the default priority and `x` at priority 3 do not meet."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        await hub.stored(1, a_result(Priority(3), endpoint_id=module_input("m", "x")))
        await hub.stored(1, a_result(DEFAULT_PRIORITY, endpoint_id=module_input("m", "x_Pri3")))
    async with running(path) as hub:
        assert [queue.statistics().depth for queue in hub.store.queues.all()] == [1, 1]


async def test_messages_of_many_sources_and_routes_come_back(tmp_path: Path) -> None:
    """Texts beyond the table of labels stand in their rows, over a restart too."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        for number in range(6000):
            message = a_message()
            message.source = f"/mqtt/topic/{number}"
            hub.send(message, a_result(routes=(f"route-{number}",)))
        await hub.store.writer.flush()
    async with running(path) as hub:
        rows = await read_all(hub.queue())
        assert [row.message.source for row in rows] == [f"/mqtt/topic/{n}" for n in range(6000)]
        assert [row.routes for row in rows] == [(f"route-{n}",) for n in range(6000)]
        await hub.stored(1)
        assert len(await read_all(hub.queue())) == 1


async def test_a_flush_does_not_wait_for_results_that_come_later(tmp_path: Path) -> None:
    """Under steady confirmations it would never end."""
    async with running(tmp_path / "queue.db") as hub:
        await hub.stored(300)
        queue = hub.queue()
        rows = await read_all(queue)
        flushed = asyncio.create_task(hub.store.writer.flush())
        while not flushed.done():
            queue.confirm([rows.pop()])
            await hub.store.database.run(lambda _: None)
        assert len(rows) > 250
