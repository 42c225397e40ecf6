"""What the store keeps beside queues: dead letters, sessions, operations of others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.heads.mqtt.session_table import SessionTable, StoredSession
from edgehub.message import (
    UPSTREAM,
    FailureKind,
)
from edgehub.store import StoreOptions
from tests.support.stores import (
    P2,
    P7,
    FaultPlan,
    a_message,
    a_result,
    dead_letters_of,
    faulty_database,
    read_all,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


async def test_dead_letter_leaves_the_queue_with_its_reason(tmp_path: Path) -> None:
    """P-09: a row refused for good is kept with the reason; what a peer says is made storable."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        hub.send(
            a_message("dev-9", b"bad", properties={"k": "v"}), a_result(P2, routes=("r1", "r2"))
        )
        await hub.store.writer.flush()
        queue = hub.queue()
        (row,) = await read_all(queue)
        queue.dead_letter(row, FailureKind.REJECTED, "400 \ud800 " + "x" * 5000)
        await hub.store.writer.flush()
        assert queue.statistics().dead_lettered_total == 1
        assert await hub.count(queue) == (0, 0)
    async with running(path) as hub:
        (letter,) = await dead_letters_of(hub.store)
        assert (letter.kind, letter.endpoint_id, letter.priority) == ("rejected", UPSTREAM, P2)
        assert letter.reason.startswith("400 ? xxx")
        assert len(letter.reason) == 1000
        assert (letter.offset, letter.routes, letter.message.body) == (
            row.offset,
            ("r1", "r2"),
            b"bad",
        )
        assert letter.message.message_id == row.message.message_id
        assert (await hub.store.inspection.dead_letter(letter.id)) is not None
        assert (await hub.store.inspection.dead_letter(letter.id + 1)) is None
        assert hub.store.statistics().dead_letter_rows == 1
        assert hub.store.statistics().dead_letters == {"upstream_Pri2": 1}


async def test_dead_letters_are_bounded_by_rows_bytes_and_age(tmp_path: Path) -> None:
    """The oldest leave first when a bound is exceeded."""
    options = StoreOptions(dead_letter_rows_max=5, dead_letter_bytes_max=3000)
    async with running(tmp_path / "queue.db", options=options) as hub:
        await hub.stored(8)
        hub.send(a_message(body=b"x" * 2500))
        await hub.store.writer.flush()
        queue = hub.queue()
        for row in await queue.read_batch(8, 1 << 20):
            queue.dead_letter(row, FailureKind.REJECTED, "no")
        await hub.store.writer.flush()
        assert [d.message.body for d in await dead_letters_of(hub.store)] == [
            f"body-{n}".encode() for n in range(3, 8)
        ]
        (large,) = await read_all(queue)
        queue.dead_letter(large, FailureKind.TOO_LARGE, "too large")
        await hub.store.writer.flush()
        figures = hub.store.statistics()
        assert figures.dead_letter_bytes <= 3000
        assert figures.dead_letter_bytes == await hub.scalar("SELECT sum(size) FROM dead_letter")
        await hub.clock.advance(31 * 86_400)
        await hub.store.writer.flush()
        await hub.clock.advance(3601)
        assert sum(figures.dead_letters.values()) == figures.dead_letter_rows
        await hub.until(lambda: hub.store.statistics().dead_letter_rows == 0)
        assert hub.store.statistics().dead_letters == {}
        assert await dead_letters_of(hub.store) == []


async def test_dead_letters_of_one_commit_stand_in_order_of_time(tmp_path: Path) -> None:
    """What several queues gave up while the disk failed leaves by age, not queue by queue."""
    plan = FaultPlan()
    options = StoreOptions(dead_letter_rows_max=3)
    async with running(
        tmp_path / "queue.db", options=options, database_type=faulty_database(plan)
    ) as hub:
        await hub.stored(3, a_result(P2))
        await hub.stored(2, a_result(P7))
        rows = {number: await read_all(hub.queue(number)) for number in (P2, P7)}
        plan.fail("BEGIN", times=10**6)
        for number, index in ((P2, 0), (P7, 0), (P2, 1), (P7, 1), (P2, 2)):
            row = rows[number][index]
            hub.queue(number).dead_letter(row, FailureKind.REJECTED, "no")
            await hub.clock.advance(60)
        plan.heal()
        await hub.until(lambda: hub.store.statistics().dead_letter_rows == 3, tick_s=1)
        letters = await dead_letters_of(hub.store)
        assert [(d.priority, d.message.body) for d in letters] == [
            (P2, b"body-1"),
            (P7, b"body-4"),
            (P2, b"body-2"),
        ]


async def test_sessions_are_stored_replaced_and_forgotten(tmp_path: Path) -> None:
    """M-14: a stored session outlives the hub until it is deleted."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = SessionTable(hub.store)
        await table.save("c1", {"cmd/#": 1})
        await table.save("c1", {"cmd/#": 1, "ünï/+": 0})
        await table.save("c2", {})
        await table.delete("c2")
    async with running(path) as hub:
        sessions = await SessionTable(hub.store).load()
        assert sessions == {"c1": StoredSession(subscriptions={"cmd/#": 1, "ünï/+": 0})}


async def test_how_long_the_client_of_a_session_is_absent(tmp_path: Path) -> None:
    """The time that a client is absent counts on over a restart of the hub."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = SessionTable(hub.store)
        await table.save("away", {"a": 1}, expiry_s=600, is_away=True)
        await table.save("here", {}, expiry_s=600)
        await table.save("back", {}, expiry_s=5, is_away=True)
        await table.save("back", {}, expiry_s=5)
        await table.save("over", {}, expiry_s=5, is_away=True)
        await table.save("endless", {}, is_away=True)
        await hub.clock.advance(60)
    async with running(path, clock=hub.clock) as hub:
        sessions = await SessionTable(hub.store).load()
        assert sessions["here"] == StoredSession(subscriptions={}, expiry_s=600)
        assert sessions["back"] == StoredSession(subscriptions={}, expiry_s=5)
        absent_s = {name: each.absent_s for name, each in sessions.items() if each.absent_s}
        assert absent_s == {name: pytest.approx(60, abs=1) for name in ("away", "over", "endless")}


async def test_operation_joins_the_transaction_of_what_was_appended(tmp_path: Path) -> None:
    """`transact` sees the rows appended before, returns a value, and fails alone."""
    async with running(tmp_path / "queue.db") as hub:
        hub.send_many(3)
        seen = hub.store.writer.transact(
            lambda conn: conn.execute("SELECT count(*) FROM q_1").fetchone()[0]
        )
        broken = hub.store.writer.transact(
            lambda conn: conn.execute("INSERT INTO meta VALUES ('a', NULL)")
        )
        results = await asyncio.gather(seen, broken, return_exceptions=True)
        assert results[0] == 3
        assert "NOT NULL" in str(results[1])
        assert hub.accepted == [0, 1, 2]


async def test_packet_ids_join_the_transaction_of_their_messages(tmp_path: Path) -> None:
    """One commit for both, one operation for all ids of it, and none for a message that failed."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = SessionTable(hub.store)
        await table.save("c1", {}, number=4)
        commits = hub.store.statistics().commits_total
        received = []
        with table.together():
            for packet_id in (1, 2, 3):
                hub.send(a_message())
                received.append(table.receive(4, packet_id))
        assert received[0] is received[2]
        await received[2]
        assert hub.store.statistics().commits_total == commits + 1
        assert len(await read_all(hub.queue())) == 3
        released = table.release(4, 2)
        assert not released.done()
        await released
    async with running(path) as hub:
        sessions = await SessionTable(hub.store).load()
        assert sessions["c1"].received == (1, 3)


async def test_later_changes_of_a_session_share_the_next_write(tmp_path: Path) -> None:
    """What changes while a commit runs is one operation of the next one, with the newest state."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = SessionTable(hub.store)
        writes = [table.save("c1", {"a": options}) for options in range(50)]
        assert len(set(map(id, writes))) == 1
        table.save("c2", {})
        assert table.delete("c2") is writes[0]
        await writes[0]
        assert table.save("c1", {"a": 50}) is not writes[0]
    async with running(path) as hub:
        sessions = await SessionTable(hub.store).load()
        assert {name: each.subscriptions for name, each in sessions.items()} == {"c1": {"a": 50}}


async def test_packet_ids_end_with_their_session(tmp_path: Path) -> None:
    """Those of another session of the same client are not taken for its own, whenever written."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = SessionTable(hub.store)
        for number, client_id in enumerate(("kept", "begun again", "ended"), 1):
            await table.save(client_id, {}, number=number)
            await table.receive(number, 7)
        await table.save("kept", {"a": 1}, number=1)
        table.forget(2)
        await table.save("begun again", {}, number=4)
        table.forget(3)
        await table.delete("ended")
        assert await hub.scalar("SELECT group_concat(session) FROM received") == "1"
        await table.receive(3, 8)
        await table.receive(4, 9)
    async with running(path) as hub:
        table = SessionTable(hub.store)
        sessions = await table.load()
        assert {name: each.received for name, each in sessions.items()} == {
            "kept": (7,),
            "begun again": (9,),
        }
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM received") == 2
