"""The tables of the local topic space: one commit for many changes, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.heads.mqtt.local.tables import LocalEntry, LocalTable
from edgehub.local_message import LocalMessage
from edgehub.message import Refusal
from tests.support.stores import FaultPlan, faulty_database, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = pytest.mark.integration


class Settled:
    """Collects what was settled."""

    def __init__(self) -> None:
        self.all: list[tuple[int, Refusal | None]] = []

    def __call__(self, token: int, refusal: Refusal | None) -> None:
        """Take one."""
        self.all.append((token, refusal))


def a_local(topic: str = "te/x", body: bytes = b"x", **options: object) -> LocalMessage:
    """Build a message."""
    return LocalMessage(topic, body, publisher="dev", **options)


def a_table(hub: Harness, commit_delay_ms: int = 0) -> LocalTable:
    """Build the table's owner on a running store."""
    return LocalTable(hub.store, hub.clock, commit_delay_ms=commit_delay_ms)


async def test_what_is_stored_is_there_again(tmp_path: Path):
    """Retained values and queues, with all that belongs to them, survive a restart."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = a_table(hub)
        settled = Settled()
        kept = a_local("te/ä", b"1", qos=0, retain=True, properties=b"\x03\x00\x01t")
        kept.expires_ms = 2**50
        table.keep(kept, settled)
        table.keep(a_local("te/b", b"2"), settled)
        table.keep(a_local("te/b", b""), settled)
        shared = a_local("te/c", b"\x00\xff")
        table.enqueue("a", LocalEntry(shared, retain=True, is_sent=True), settled)
        table.enqueue("b/m", LocalEntry(shared), settled)
        table.enqueue("a", LocalEntry(a_local("te/d")), settled)
        assert settled.all == []
        await table.flush()
        assert settled.all == [(0, None)] * 6
        assert await hub.scalar("SELECT count(*) FROM local_message") == 2
    async with running(path) as hub:
        contents = await a_table(hub).load()
        (back,) = contents.retained
        names = ("topic", "body", "qos", "retain", "publisher", "properties", "expires_ms")
        assert [getattr(back, name) for name in names] == [getattr(kept, name) for name in names]
        shown = {
            client: [(each.message.topic, each.retain, each.is_sent) for each in queued]
            for client, queued in contents.queued.items()
        }
        assert shown == {
            "a": [("te/c", True, True), ("te/d", False, False)],
            "b/m": [("te/c", False, False)],
        }
        assert contents.queued["a"][0].message is contents.queued["b/m"][0].message


async def test_a_message_leaves_with_its_last_session(tmp_path: Path):
    """Its row goes when nobody waits for it any more, before a restart and after one."""
    path = tmp_path / "queue.db"
    settled = Settled()
    async with running(path) as hub:
        table = a_table(hub)
        message = a_local()
        for client_id in ("a", "b"):
            table.enqueue(client_id, LocalEntry(message), settled)
        await table.flush()
        table.dequeue("a", message)
        await table.flush()
        assert await hub.scalar("SELECT count(*) FROM local_message") == 1
    async with running(path) as hub:
        table = a_table(hub)
        (queued,) = (await table.load()).queued["b"]
        later = a_local()
        table.enqueue("b", LocalEntry(later), settled)
        assert later.id > queued.message.id
        table.dequeue("b", queued.message)
        await table.flush()
        assert await hub.scalar("SELECT count(*) FROM local_message") == 1
        assert await hub.scalar("SELECT id FROM local_queue") == later.id


async def test_what_is_confirmed_before_its_commit_is_not_written(tmp_path: Path):
    """It is settled on the confirmation, as a row of a queue is."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub, commit_delay_ms=1000)
        settled = Settled()
        message = a_local()
        table.enqueue("a", LocalEntry(message, is_sent=True), settled)
        table.enqueue("b", LocalEntry(message, is_sent=True), settled)
        table.dequeue("a", message)
        assert settled.all == [(0, None)]
        table.dequeue("b", message)
        commits = hub.store.statistics().commits_total
        await hub.clock.advance(2)
        assert settled.all == [(0, None)] * 2
        assert hub.store.statistics().commits_total == commits


async def test_a_row_of_another_session_that_was_written_goes_with_its_message(tmp_path: Path):
    """Of two sessions one confirmed before its commit, the other after it: nothing is left."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        settled = Settled()
        message = a_local()
        table.enqueue("a", LocalEntry(message, is_sent=True), settled)
        await table.flush()
        table.enqueue("b", LocalEntry(message, is_sent=True), settled)
        table.dequeue("a", message)
        await table.flush()
        table.enqueue("c", LocalEntry(message, is_sent=True), settled)
        table.dequeue("b", message)
        table.dequeue("c", message)
        await table.flush()
        for name in ("local_queue", "local_message"):
            assert await hub.scalar(f"SELECT count(*) FROM {name}") == 0
        assert settled.all == [(0, None)] * 3


async def test_many_changes_share_a_commit(tmp_path: Path):
    """Hundreds of changes of one moment cost one commit or two, not one each."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        settled = Settled()
        before = hub.store.statistics().commits_total
        for number in range(500):
            table.enqueue("a", LocalEntry(a_local(f"te/{number}")), settled)
        await table.flush()
        assert len(settled.all) == 500
        assert hub.store.statistics().commits_total - before <= 2


async def test_the_commit_delay_holds_for_local_messages_too(tmp_path: Path):
    """With a fixed wait for flash, what comes within it is one commit."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub, commit_delay_ms=500)
        settled = Settled()
        for _ in range(4):
            table.keep(a_local(), settled)
            await hub.clock.advance(0.1)
        assert settled.all == []
        await hub.clock.advance(0.2)
        await table.flush()
        assert settled.all == [(0, None)] * 4
        assert await hub.scalar("SELECT count(*) FROM retained") == 1


async def test_a_store_that_closes_refuses(tmp_path: Path):
    """What cannot be committed any more is refused, so that nobody waits for ever."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        settled = Settled()
        await hub.store.close()
        table.keep(a_local(), settled)
        await table.flush()
        await asyncio.sleep(0)
        assert settled.all == [(0, Refusal.CLOSED)]


async def test_what_was_sent_later_is_known_after_a_restart(tmp_path: Path):
    """Before its commit and after it; what was confirmed meanwhile stays gone."""
    path = tmp_path / "queue.db"
    settled = Settled()
    async with running(path) as hub:
        table = a_table(hub)
        messages = [a_local(f"te/{number}") for number in range(4)]
        for message in messages[:3]:
            table.enqueue("a", LocalEntry(message), settled)
        await table.flush()
        table.mark_sent("a", messages[0])
        table.mark_sent("a", messages[1])
        table.dequeue("a", messages[1])
        table.enqueue("a", LocalEntry(messages[3]), settled)
        table.mark_sent("a", messages[3])
        await table.flush()
        assert settled.all == [(0, None)] * 4
    async with running(path) as hub:
        queued = (await a_table(hub).load()).queued["a"]
        assert [(each.message.topic, each.is_sent) for each in queued] == [
            ("te/0", True),
            ("te/2", False),
            ("te/3", True),
        ]


async def test_that_something_left_is_durable_a_moment_later(tmp_path: Path):
    """Without anything else to write it is deleted by itself, with its message."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        message = a_local()
        table.enqueue("a", LocalEntry(message, is_sent=True), Settled())
        await table.flush()
        table.dequeue("a", message)
        await hub.clock.advance(1)
        await hub.store.writer.flush()
        for name in ("local_queue", "local_message"):
            assert await hub.scalar(f"SELECT count(*) FROM {name}") == 0


async def test_that_something_was_sent_is_durable_a_moment_later(tmp_path: Path):
    """Without anything else to write the note is written by itself."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        message = a_local()
        table.enqueue("a", LocalEntry(message), Settled())
        await table.flush()
        table.mark_sent("a", message)
        await hub.clock.advance(1)
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT sent FROM local_queue") == 1


async def test_what_leaves_while_a_commit_runs_is_gone_a_moment_later(tmp_path: Path):
    """Nothing else has to change for it."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        first, second = a_local("te/1"), a_local("te/2")
        table.enqueue("a", LocalEntry(first), Settled())
        await table.flush()
        table.enqueue("a", LocalEntry(second), Settled())
        await asyncio.sleep(0)  # its commit begins
        table.dequeue("a", first)
        await hub.store.writer.flush()
        await hub.clock.advance(1)
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM local_queue") == 1


async def test_a_topic_changes_until_its_commit(tmp_path: Path):
    """From the change on, while its commit runs too, and not a moment longer."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        seen: list[bool] = []
        assert not table.is_changing("te/x")
        table.keep(a_local(), lambda *_: seen.append(table.is_changing("te/x")))
        assert table.is_changing("te/x")
        flushed = asyncio.get_running_loop().create_task(table.flush())
        await asyncio.sleep(0)
        assert table.is_changing("te/x")
        assert not table.is_changing("te/y")
        await flushed
        assert seen == [False]


async def test_what_is_hastened_does_not_wait_for_more(tmp_path: Path):
    """It joins the next commit, without the delay that confirmations have."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        message = a_local()
        table.enqueue("a", LocalEntry(message), Settled())
        await table.flush()
        table.dequeue("a", message)
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM local_queue") == 1
        table.flush_now()
        await asyncio.sleep(0)
        await hub.store.writer.flush()
        assert await hub.scalar("SELECT count(*) FROM local_queue") == 0
        commits = hub.store.statistics().commits_total
        table.flush_now()
        await asyncio.sleep(0)
        assert hub.store.statistics().commits_total == commits


async def test_what_leaves_need_not_wait_for_room_for_what_comes(tmp_path: Path):
    """On a full disk confirmed messages and cleared topics are deleted before others are tried."""
    plan = FaultPlan()
    settled = Settled()
    async with running(tmp_path / "q.db", database_type=faulty_database(plan)) as hub:
        table = a_table(hub)
        confirmed = a_local("te/a")
        table.enqueue("a", LocalEntry(confirmed, is_sent=True), settled)
        table.keep(a_local("te/kept"), settled)
        await table.flush()
        plan.fail("INSERT OR REPLACE INTO local_message", "SQLITE_FULL", times=1 << 30)
        table.dequeue("a", confirmed)
        table.keep(a_local("te/kept", b""), settled)
        table.enqueue("a", LocalEntry(a_local("te/b")), settled)
        hub.send()
        await hub.until(lambda: hub.store.statistics().failing is not None, tick_s=0.1)
        await hub.until(lambda: hub.store.statistics().commits_total > 1, tick_s=0.1)
        assert await hub.scalar("SELECT count(*) FROM local_message") == 0
        assert await hub.scalar("SELECT count(*) FROM local_queue") == 0
        assert await hub.scalar("SELECT count(*) FROM retained") == 0
        assert len(settled.all) == 2
        assert hub.store.statistics().failing is not None, "what needs room still fails"
        plan.heal()
        await hub.until(lambda: len(settled.all) == 4, tick_s=0.5)
        assert settled.all == [(0, None)] * 4
        assert hub.settled == [(0, None)]
        assert await hub.scalar("SELECT topic FROM local_message") == "te/b"


async def test_a_message_that_comes_back_to_a_session_stays(tmp_path: Path):
    """Removed and stored again for the same session within one commit, it is there."""
    async with running(tmp_path / "q.db") as hub:
        table = a_table(hub)
        message = a_local()
        for client_id in ("a", "b"):
            table.enqueue(client_id, LocalEntry(message), Settled())
        await table.flush()
        table.dequeue("a", message)
        table.enqueue("a", LocalEntry(message), Settled())
        await table.flush()
        assert await hub.scalar("SELECT count(*) FROM local_queue") == 2


async def test_how_far_an_exchange_of_qos_2_is(tmp_path: Path):
    """Packet id, PUBREC and identifiers are there again; what leaves waits for nothing."""
    path = tmp_path / "queue.db"
    async with running(path) as hub:
        table = a_table(hub)
        settled = Settled()
        messages = [a_local(f"te/{number}", qos=2) for number in range(4)]
        for packet_id, message in enumerate(messages, 1):
            entry = LocalEntry(message, 2, identifiers=b"\x0b\x05", packet_id=packet_id, waits=True)
            table.enqueue("a", entry, settled)
        await table.flush()
        assert len(settled.all) == 4
        table.mark_sent("a", messages[0])
        for message in messages[1:]:
            table.mark_received("a", message, settled)
        assert len(settled.all) == 4
        table.dequeue("a", messages[3])
        assert len(settled.all) == 5
        await table.flush()
        assert settled.all == [(0, None)] * 7
    async with running(path) as hub:
        queued = (await a_table(hub).load()).queued["a"]
        assert [(each.qos, each.packet_id, each.is_sent, each.is_received) for each in queued] == [
            (2, 1, True, False),
            (2, 2, True, True),
            (2, 3, True, True),
        ]
        assert {each.identifiers for each in queued} == {b"\x0b\x05"}


async def test_a_packet_id_is_on_disk_with_the_messages_before_it(tmp_path: Path):
    """It waits with them while an earlier commit runs."""
    async with running(tmp_path / "queue.db") as hub:
        table = a_table(hub)
        settled = Settled()
        table.keep(a_local("te/a", retain=True), settled)
        await asyncio.sleep(0)
        table.keep(a_local("te/b", retain=True), settled)
        table.receive(3, 9, settled)
        await table.flush()
        assert settled.all == [(0, None)] * 3
        assert await hub.scalar("SELECT packet_id FROM received WHERE session = 3") == 9
