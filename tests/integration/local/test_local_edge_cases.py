"""The local topic space at its edges: restarts, odd texts, rights that go, a disk that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mqtt5
import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identities import read_identity_list
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.heads.mqtt.local.options import DEPARTED_MAX
from edgehub.heads.mqtt.local.retained import SEARCH_PAUSE_S, SEARCH_STEPS
from edgehub.heads.mqtt.local.tables import LocalEntry
from edgehub.local_message import LocalMessage
from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import AT_LEAST_ONCE, Client5
from tests.support.mqtt_listener import MemoryLocal, MemorySessions, running
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

HASH = PasswordHash.of(b"secret")


async def published(client: Client5, topic: str, body: bytes = b"x", **options: object) -> int:
    """Publish with QoS 1 and give the reason code of the PUBACK."""
    client.publish(topic, body, **options)
    ((_, code),) = await client.codes(1)
    return code


async def gone(bench: Bench, client: Client5) -> None:
    """Cut the connection and wait until the hub has noticed."""
    ended = sum(bench.ended().values())
    client.raw.cut()
    while sum(bench.ended().values()) == ended:
        await (await Client5.open(bench.port)).close()
    await bench.sessions.settled()


async def test_what_was_sent_after_it_was_stored_comes_again_with_dup():
    """Stored while the client was away, sent, not confirmed, hub restarted: DUP is set.

    It stays so over a connection that ends before the message has its turn.
    """
    clock = ManualClock()
    options = {"clock": clock, "sessions": MemorySessions(), "local": MemoryLocal(clock)}
    session = {"clean_start": False, "session_expiry_interval": 1000}
    async with running(**options) as bench:
        client = await Client5.signed_in(bench.port, "c", **session)
        await client.subscribe("te/#")
        await gone(bench, client)
        sender = await Client5.signed_in(bench.port, "s")
        for number in range(3):
            await published(sender, "te/x", b"%d" % number)
        client = await Client5.signed_in(bench.port, "c", receive_max=2, **session)
        packets = [await client.read(mqtt5.PublishPacket) for _ in range(2)]
        assert [packet.duplicate for packet in packets] == [False, False]
        await client.pong()
        for each in (client, sender):
            await each.close()
    async with running(**options) as bench:
        client = await Client5.signed_in(bench.port, "c", receive_max=1, **session)
        await client.read(mqtt5.PublishPacket)
        await client.pong()
        await gone(bench, client)
        client = await Client5.signed_in(bench.port, "c", **session)
        packets = [await client.read(mqtt5.PublishPacket) for _ in range(3)]
        assert [(bytes(p.payload), p.duplicate) for p in packets] == [
            (b"0", True),
            (b"1", True),
            (b"2", False),
        ]
        await client.close()


async def test_what_waits_for_a_session_that_is_no_more_leaves_the_disk():
    """A hub that is killed as a session ends finds its queue and nobody to send it to."""
    clock = ManualClock()
    disk = MemoryLocal(clock)
    message = LocalMessage("te/x", b"x", publisher="s", qos=1)
    disk.enqueue("c", LocalEntry(message), lambda _token, _refusal: None)
    async with running(clock=clock, local=disk):
        assert disk.queued == {}


async def test_retained_messages_go_on_after_a_disconnect_in_the_middle():
    """The search is given up with the connection and begun again with the next one."""
    clock = ManualClock()
    disk = MemoryLocal(clock)
    for number in range(2 * SEARCH_STEPS):
        topic = f"te/{number}"
        disk.retained[topic] = LocalMessage(topic, b"x", publisher="s", retain=True)
    disk.retained["te/a/last"] = LocalMessage("te/a/last", b"found", publisher="s", retain=True)
    session = {"clean_start": False, "session_expiry_interval": 1000}
    async with running(clock=clock, local=disk) as bench:
        client = await Client5.signed_in(bench.port, "c", **session)
        await client.subscribe("te/+/last")
        await client.pong()
        await gone(bench, client)
        client = await Client5.signed_in(bench.port, "c", **session)
        for _ in range(4):
            await clock.advance(SEARCH_PAUSE_S)
        packet = await client.read(mqtt5.PublishPacket)
        assert (packet.topic, bytes(packet.payload)) == ("te/a/last", b"found")
        await client.close()


@pytest.mark.parametrize(
    "topic", ["te/\x01", "te/a\nb", "te/\x7f", "te/\x85", "te/\ufdd0", "te/\uffff"]
)
async def test_topics_that_receivers_close_over_are_refused(topic: str):
    """Libmosquitto takes them for malformed at each repetition; what follows would starve."""
    async with running() as bench:
        watch = await Client5.signed_in(bench.port, "w")
        await watch.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s")
        assert await published(sender, topic, retain=True) == 0x90
        assert await published(sender, "te/é ü\u200b") == 0
        assert (await watch.read(mqtt5.PublishPacket)).topic == "te/é ü\u200b"
        assert bench.dropped() == {"topic_not_allowed": 1}
        for each in (watch, sender):
            await each.close()


@pytest.mark.parametrize(
    "properties",
    [
        {"content_type": "text\n"},
        {"response_topic": "te/\x01"},
        {"user_properties": [("a", "b\tc")]},
        {"user_properties": [("good", "1"), ("a\ufffe", "")]},
    ],
)
async def test_properties_that_receivers_close_over_are_refused(properties: dict):
    """Likewise for the texts that are passed on, of messages and of wills."""
    async with running() as bench:
        sender = await Client5.signed_in(bench.port, "s")
        assert await published(sender, "te/x", **properties) == 0x99
        fine = {"content_type": "a/b", "response_topic": "r", "user_properties": [("ä", "")]}
        assert await published(sender, "te/x", **fine) == 0
        assert bench.dropped() == {"property_unfit": 1}
        client = await Client5.open(bench.port)
        answer = await client.connect("c", will=mqtt5.Will("te/x", **properties))
        assert int(answer.reason_code) == 0x99
        for each in (client, sender):
            await each.close()


async def test_bounds_count_bytes():
    """A topic or filter of other letters counts what it takes in UTF-8."""
    async with running(local_retained_bytes_max=5000) as bench:
        client = await Client5.signed_in(bench.port)
        assert await client.subscribe("te/" + "ü" * 2000, "te/" + "ü" * 2100) == [1, 0x8F]
        assert bench.listener.statistics().local.subscription_bytes > 4000
        assert await published(client, "te/" + "\U0001f600" * 1100, retain=True) == 0
        assert bench.listener.statistics().local.retained_bytes > 4400
        assert await published(client, "te/" + "\U0001f600" * 300, retain=True) == 0x97
        await client.close()


async def test_what_waits_for_the_disk_counts_whole():
    """Topics and properties are held as bodies are, so the bound of the backlog counts them."""
    async with running() as bench:
        bench.listener.follow_routes(["te/#"])
        bench.router.holding = True
        client = await Client5.signed_in(bench.port, "d")
        long = "x" * 20_000
        client.publish(f"te/{long}", b"")
        client.publish("te/x", b"", packet_id=2, user_properties=[("k", long)])
        client.publish(f"devices/d/messages/events/k={long}", b"", packet_id=3)
        client.publish(
            "devices/d/messages/events/", b"", packet_id=4, user_properties=[("k", long)]
        )
        client.publish("te/x", b"", packet_id=5, response_topic=long)
        await client.pong()
        assert bench.listener.statistics().unacknowledged_bytes > 5 * 20_000
        bench.router.settle()
        await client.codes(5)
        sizes = []
        for number in range(1, 3):
            # The second time the topic is known.
            client.publish(f"devices/d/messages/events/k={long[:900]}", b"", packet_id=number)
            await client.pong()
            sizes.append(bench.listener.statistics().unacknowledged_bytes)
        assert sizes[1] == 2 * sizes[0] > 2 * 900
        bench.router.settle()
        await client.codes(2)
        assert bench.listener.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_a_right_that_went_holds_for_wills_too(tmp_path: Path):
    """A will is published under the rights of that moment, also where it waited."""
    path = tmp_path / "identities.jsonl"

    def write(**rights: object) -> None:
        with changing(path) as identities:
            identities["c"] = Identity(id="c", password=HASH, **rights)

    write()
    async with running(identities_file=path) as bench:
        watch = await Client5.signed_in(bench.port, "w")
        await watch.subscribe("te/#")
        for rights, delay in (({"publish": ()}, 0), ({"disabled": True}, 0), ({"publish": ()}, 1)):
            write()
            bench.identities.apply(read_identity_list(path))
            will = mqtt5.Will("te/gone", qos=AT_LEAST_ONCE, will_delay_interval=delay)
            client = await Client5.signed_in(
                bench.port, "c", will=will, password=b"secret", session_expiry_interval=1
            )
            write(**rights)
            bench.identities.apply(read_identity_list(path))
            before = bench.dropped().get("not_authorized", 0)
            bench.listener.identities_changed()
            assert int((await client.goodbye()).reason_code) == 0x98
            while bench.dropped().get("not_authorized", 0) == before:
                await watch.pong()
            await client.close()
        watch.publish("te/x", b"x")
        assert (await watch.read(mqtt5.PublishPacket)).topic == "te/x"
        await watch.close()


async def test_presence_of_all_stored_sessions():
    """After a start every client with a stored session is shown as away, however many there are."""
    sessions = MemorySessions()
    sessions.table = {f"s{number}": {} for number in range(DEPARTED_MAX + 50)}
    async with running(sessions=sessions) as bench:
        watch = await Client5.signed_in(bench.port, "w")
        back = await RawClient.signed_in(bench.port, "s7", clean=True)
        await back.end()
        await back.close()
        await watch.subscribe("$edge/clients/#", max_qos=mqtt5.QoS.AT_MOST_ONCE)
        shown = {}
        for _ in range(DEPARTED_MAX + 51):
            packet = await watch.read(mqtt5.PublishPacket)
            shown[packet.topic] = bytes(packet.payload)
        assert sum(payload == b"0" for payload in shown.values()) == DEPARTED_MAX + 50
        await watch.close()


async def test_clients_without_a_session_are_forgotten_in_the_end():
    """Of clients that went for good the last 1 000 are shown, so that invented ids fill nothing."""
    async with running() as bench:
        for number in range(DEPARTED_MAX + 3):
            client = await RawClient.signed_in(bench.port, f"c{number}")
            client.send(wire.DISCONNECT)
            assert await client.closed()
            await client.close()
        watch = await Client5.signed_in(bench.port, "w")
        await watch.subscribe("$edge/clients/+/connected", max_qos=mqtt5.QoS.AT_MOST_ONCE)
        shown = [await watch.read(mqtt5.PublishPacket) for _ in range(DEPARTED_MAX + 1)]
        assert "$edge/clients/c2/connected" not in {packet.topic for packet in shown}
        await watch.pong()
        await watch.close()


async def test_a_subscription_is_not_confirmed_twice_before_it_is_durable():
    """The same SUBSCRIBE again, over another connection too, waits for the same write."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, "c", clean=False)
        await bench.sessions.settled()
        bench.sessions.free.clear()
        client.send(wire.subscribe(("te/x", 1)) + wire.subscribe(("te/x", 1), packet_id=2))
        await client.pong()
        back = await RawClient.signed_in(bench.port, "c", clean=False)
        back.send(wire.subscribe(("te/x", 1), packet_id=3) + wire.unsubscribe("te/y", packet_id=4))
        await back.pong()
        bench.sessions.free.set()
        assert await back.read() == (wire.SUBACK, b"\x00\x03\x01")
        assert await back.read() == (wire.UNSUBACK, b"\x00\x04")
        # Nothing is on its way any more, and nothing changes: no write.
        writes = bench.sessions.writes
        back.send(wire.subscribe(("te/x", 1), packet_id=5))
        assert await back.read() == (wire.SUBACK, b"\x00\x05\x01")
        assert bench.sessions.writes == writes
        for each in (client, back):
            await each.close()


async def test_who_clears_a_topic_again_waits_for_the_disk_too():
    """The second clear is confirmed no sooner than the first, which is what makes it true."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port)
        other = await Client5.signed_in(bench.port, "other")
        await published(client, "te/x", retain=True)
        bench.local.free = False
        for each in (client, other):
            each.publish("te/x", b"", retain=True)
            await each.pong()
            # A PUBACK of the same read would come behind the first answer.
            await each.pong()
        third = await Client5.signed_in(bench.port, "third")
        assert await published(third, "te/y", b"", retain=True) == 0
        bench.local.commit()
        for each in (client, other):
            assert await each.codes(1) == [(1, 0)]
        for each in (client, other, third):
            await each.close()


async def test_the_queue_of_a_session_that_ends_leaves_without_delay():
    """A kill right after a clean start does not bring back what the earlier session had waiting."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, "c", clean=False)
        client.send(wire.subscribe(("te/x", 1)))
        assert (await client.read())[0] == wire.SUBACK
        await client.end()
        await client.close()
        sender = await Client5.signed_in(bench.port, "s")
        for _ in range(2):
            await published(sender, "te/x")
        fresh = await RawClient.signed_in(bench.port, "c", clean=True)
        assert bench.local.queued == {}
        assert bench.local.hastened
        for each in (fresh, sender):
            await each.close()


async def test_what_is_over_makes_room_in_a_full_queue():
    """A message is not dropped for others that nobody wants any more; those in flight stay."""
    clock = ManualClock()
    async with running(clock=clock, local_queue_max=4) as bench:
        session = {"clean_start": False, "session_expiry_interval": 1000, "keep_alive": 0}
        client = await Client5.signed_in(bench.port, "c", receive_max=1, **session)
        await client.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s", keep_alive=0)
        for number in range(4):
            await published(sender, "te/x", b"%d" % number, message_expiry_interval=2 + number % 2)
        assert bytes((await client.read(mqtt5.PublishPacket)).payload) == b"0"
        await published(sender, "te/x", b"no room")
        await clock.advance(2.5)
        await published(sender, "te/x", b"room")
        await published(sender, "te/x", b"no room")
        dropped = bench.listener.statistics().local.dropped
        assert (dropped["expired"], dropped["queue_full"]) == (1, 2)
        await gone(bench, client)
        await clock.advance(1)
        await published(sender, "te/x", b"room too")
        client = await Client5.signed_in(bench.port, "c", **session)
        packets = [await client.read(mqtt5.PublishPacket) for _ in range(3)]
        assert [bytes(packet.payload) for packet in packets] == [b"0", b"room", b"room too"]
        assert bench.listener.statistics().local.dropped["expired"] == 3
        for each in (client, sender):
            await each.close()
