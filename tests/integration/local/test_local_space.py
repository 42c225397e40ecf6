"""The local topic space over real sockets: who gets what, once, in order, within bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import mqtt5
import pytest

from edgehub.clock import ManualClock
from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.local_message import LocalMessage
from edgehub.message import Message, Refusal
from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import AT_LEAST_ONCE, AT_MOST_ONCE, Client5
from tests.support.mqtt_listener import MemoryLocal, MemorySessions, running
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.local_message import Settle
    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

HASH = PasswordHash.of(b"secret")


async def published(client: Client5, topic: str, body: bytes = b"x", **options: object) -> int:
    """Publish with QoS 1 and give the reason code of the PUBACK."""
    client.publish(topic, body, **options)
    ((_, code),) = await client.codes(1)
    return code


async def got(client: Client5, count: int = 1) -> list[tuple[str, bytes]]:
    """Take and confirm messages, and make sure that no more follow."""
    taken = []
    for _ in range(count):
        packet = await client.read(mqtt5.PublishPacket)
        if packet.packet_id:
            client.send(mqtt5.PubAckPacket(packet.packet_id))
        taken.append((packet.topic, bytes(packet.payload)))
    await client.pong()
    return taken


def local(bench: Bench) -> dict[str, object]:
    """Counts of the space that are not zero; drops by reason."""
    figures = bench.listener.statistics().local
    return {reason: count for reason, count in figures.dropped.items() if count}


async def gone(bench: Bench, client: Client5) -> None:
    """Cut the connection and wait until the hub has noticed."""
    ended = sum(bench.ended().values())
    client.raw.cut()
    while sum(bench.ended().values()) == ended:
        await (await Client5.open(bench.port)).close()
    await bench.sessions.settled()


async def test_one_copy_with_the_best_quality_of_service():
    """However many filters of a client take a message, it comes once, as the best of them says."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "a")
        await client.subscribe("te/#", max_qos=AT_MOST_ONCE, retain_as_published=False)
        await client.subscribe("te/+", "#", retain_as_published=True)
        await client.subscribe("+/x", max_qos=AT_MOST_ONCE, no_local=True)
        other = await Client5.signed_in(bench.port, "b")
        assert await published(other, "te/x", retain=True) == 0
        packet = await client.read(mqtt5.PublishPacket)
        assert (int(packet.qos), packet.retain, packet.topic) == (1, True, "te/x")
        await client.pong()
        for each in (client, other):
            await each.close()


async def test_no_local():
    """A client does not get its own messages where it asked so, but those of others."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "a")
        await client.subscribe("te/#", no_local=True)
        await client.subscribe("c8y/#")
        assert await published(client, "te/x") == 0
        client.publish("c8y/x", b"own")
        packets = {type(await client.read_any()) for _ in range(2)}
        assert packets == {mqtt5.PubAckPacket, mqtt5.PublishPacket}
        await client.close()


async def test_a_filter_takes_the_level_above_its_rest():
    """M-04: `te/plant/3/#` takes `te/plant/3` and what is below it; retained ones come likewise."""
    topics = ("te/plant/3", "te/plant/3/", "te/plant/3/x", "te/plant/33", "te/plant")
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "a")
        await client.subscribe("te/plant/3/#")
        sender = await Client5.signed_in(bench.port, "b")
        for topic in topics:
            assert await published(sender, topic, retain=True) == 0
        assert [topic for topic, _ in await got(client, 3)] == list(topics[:3])
        late = await Client5.signed_in(bench.port, "c")
        await late.subscribe("te/plant/3/#")
        assert sorted(topic for topic, _ in await got(late, 3)) == sorted(topics[:3])
        for each in (client, sender, late):
            await each.close()


async def test_dollar_topics_need_a_filter_of_their_own():
    """M-03: of `#` and `$edge/#` only the second takes topics of the hub, so one copy comes."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "watch")
        assert await client.subscribe("#", "$edge/#", "+/clients/+/connected") == [1, 1, 1]
        retained = await client.read(mqtt5.PublishPacket)
        assert (retained.topic, retained.retain) == ("$edge/clients/watch/connected", True)
        client.send(mqtt5.PubAckPacket(retained.packet_id))
        wild = await Client5.signed_in(bench.port, "wild")
        # With these alone nothing of the hub comes, neither what is retained nor what is new.
        assert await wild.subscribe("#", "+/clients/+/connected", "+/#") == [1, 1, 1]
        assert await got(client) == [("$edge/clients/wild/connected", b"1")]
        other = await Client5.signed_in(bench.port, "site/7")
        assert await got(client) == [("$edge/clients/site%2F7/connected", b"1")]
        await gone(bench, other)
        assert await got(client) == [("$edge/clients/site%2F7/connected", b"0")]
        assert await got(wild, 0) == []
        for each in (client, wild):
            await each.close()


async def test_clients_as_topics():
    """M-15: an id with a slash is one level, and a stored session shows as away from the start."""
    sessions = MemorySessions()
    sessions.table["site/7"] = {"te/#": 1}
    async with running(sessions=sessions) as bench:
        client = await Client5.signed_in(bench.port, "w")
        assert await client.subscribe("$edge/clients/+/connected") == [1]
        assert await got(client, 2) == [
            ("$edge/clients/site%2F7/connected", b"0"),
            ("$edge/clients/w/connected", b"1"),
        ]
        assert await published(client, "$edge/clients/x/connected") == 0x90
        await client.close()


async def test_invented_ids_fill_nothing():
    """Of clients that went so many are remembered, the latest."""
    async with running() as bench:
        for number in range(1005):
            client = await RawClient.signed_in(bench.port, f"c{number}")
            client.send(wire.DISCONNECT)
            assert await client.closed()
            await client.close()
        watch = await Client5.signed_in(bench.port, "w")
        await watch.subscribe("$edge/clients/+/connected", max_qos=AT_MOST_ONCE)
        taken = await got(watch, 1001)
        assert {topic for topic, _ in taken} == {
            "$edge/clients/w/connected",
            *(f"$edge/clients/c{number}/connected" for number in range(5, 1005)),
        }
        await watch.close()


async def test_what_may_be_subscribed_to():
    """Any filter that takes a topic of the space is granted, others and wrong ones are not."""
    async with running(subscriptions_max=8, local_topics=("site/+/cmd",)) as bench:
        client = await Client5.signed_in(bench.port)
        filters = ["#", "+/x", "te/#", "site/#", "site/a/cmd", "site/a/x", "b/#"]
        assert await client.subscribe(*filters) == [1, 1, 1, 1, 1, 0x8F, 0x8F]
        deep = "te" + "/x" * 64
        assert await client.subscribe(deep, "te/" + "y" * 4100) == [0x8F, 0x8F]
        assert await client.subscribe("te/1", "te/2", "te/3", "te/4") == [1, 1, 1, 0x97]
        assert await published(client, deep) == 0x90
        assert await published(client, "site/a/x") == 0x90
        client.send(mqtt5.UnsubscribePacket(2, ["te/1", "te/9"]))
        answer = await client.read(mqtt5.UnsubAckPacket)
        assert [int(code) for code in answer.reason_codes] == [0, 0x11]
        await client.close()
        old = await RawClient.signed_in(bench.port, "old")
        old.send(
            wire.subscribe(
                ("te/#", 2),
                ("$share/g/te/#", 1),
                *((name, 0) for name in ("te/#/x", "te+", "$share/g", "$share//te/#")),
                *((name, 0) for name in ("$share/+/te/#", "$share/g/b/#", "$share/g/")),
            )
        )
        assert await old.read() == (wire.SUBACK, b"\x00\x01\x02\x01" + b"\x80" * 7)
        await old.close()


async def test_properties_pass_unaltered():
    """What MQTT 5 says beside the payload reaches the receiver as it was; an alias is resolved."""
    async with running() as bench:
        receiver = await Client5.signed_in(bench.port, "r")
        await receiver.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s")
        options = {
            "user_properties": [("a", "1"), ("a", "2"), ("", "")],
            "content_type": "text/plain",
            "response_topic": "te/answer",
            "correlation_data": b"\x00\xff",
            "payload_format_indicator": 1,
            "message_expiry_interval": 100,
        }
        sender.publish("te/x", b"1", topic_alias=1, **options)
        sender.publish("", b"2", topic_alias=1, packet_id=2)
        assert await sender.codes(2) == [(1, 0), (2, 0)]
        first = await receiver.read(mqtt5.PublishPacket)
        assert first.topic_alias is None
        assert {name: getattr(first, name) for name in options} == options
        second = await receiver.read(mqtt5.PublishPacket)
        assert (second.topic, bytes(second.payload)) == ("te/x", b"2")
        for each in (receiver, sender):
            await each.close()


async def test_expiry():
    """Waiting shortens what is left; what is over is neither sent nor kept, on disk too."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        away = await Client5.signed_in(bench.port, "away", session_expiry_interval=1000)
        assert await away.subscribe("te/q") == [1]
        await gone(bench, away)
        sender = await Client5.signed_in(bench.port, "s")
        for topic in ("te/q", "te/r"):
            for name, seconds in (("short", 10), ("long", 100)):
                options = {"message_expiry_interval": seconds, "retain": topic == "te/r"}
                where = topic if topic == "te/q" else f"te/r/{name}"
                assert await published(sender, where, name.encode(), **options) == 0
        await clock.advance(20)
        away = await Client5.signed_in(
            bench.port, "away", clean_start=False, session_expiry_interval=1000
        )
        packet = await away.read(mqtt5.PublishPacket)
        assert (bytes(packet.payload), packet.message_expiry_interval) == (b"long", 80)
        await sender.subscribe("te/r/#")
        packet = await sender.read(mqtt5.PublishPacket)
        assert (bytes(packet.payload), packet.message_expiry_interval) == (b"long", 80)
        await clock.advance(30)
        assert set(bench.local.retained) == {"te/r/long"}
        assert local(bench) == {"expired": 1}
        for each in (away, sender):
            await each.close()


async def test_what_waits_expires_without_a_connection():
    """The queue of a client that stays away is cleaned up, and its room is free again."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        away = await Client5.signed_in(bench.port, "away", session_expiry_interval=1000)
        await away.subscribe("te/#")
        await gone(bench, away)
        sender = await Client5.signed_in(bench.port, "s", keep_alive=0)
        await published(sender, "te/q", message_expiry_interval=10)
        await published(sender, "te/q")
        await clock.advance(31)
        figures = bench.listener.statistics().local
        assert (figures.queued, len(bench.local.queued), figures.queues) == (1, 1, 1)
        await sender.close()


async def test_a_publish_waits_for_the_disk_where_it_must():
    """PUBACK comes with the commit for stored sessions and retained values, else at once."""
    async with running() as bench:
        stored = await Client5.signed_in(bench.port, "st", session_expiry_interval=100)
        await stored.subscribe("te/stored")
        plain = await Client5.signed_in(bench.port, "pl")
        await plain.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "se")
        bench.local.free = False
        sender.publish("te/stored", packet_id=1)
        sender.publish("te/kept", packet_id=2, retain=True)
        sender.publish("te/plain", packet_id=3)
        await sender.pong()
        assert len(await got(plain, 3)) == 3
        assert len(bench.local.waiting) == 2
        bench.local.commit()
        assert await sender.codes(3) == [(1, 0), (2, 0), (3, 0)]
        for each in (stored, plain, sender):
            await each.close()


async def test_redelivery():
    """What was not confirmed comes again with its packet id and DUP, before what is new."""
    async with running() as bench:
        options = {"session_expiry_interval": 100}
        client = await Client5.signed_in(bench.port, "c", receive_max=2, **options)
        await client.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s")
        for body in (b"1", b"2", b"3"):
            await published(sender, "te/x", body)
        first = [await client.read(mqtt5.PublishPacket) for _ in range(2)]
        await client.pong()
        # A second connection takes the session over.
        again = await Client5.signed_in(
            bench.port, "c", clean_start=False, receive_max=2, **options
        )
        second = [await again.read(mqtt5.PublishPacket) for _ in range(2)]
        await again.pong()
        assert [(p.packet_id, bytes(p.payload), p.duplicate) for p in second] == [
            (p.packet_id, bytes(p.payload), True) for p in first
        ]
        again.send(mqtt5.PubAckPacket(second[0].packet_id))
        third = await again.read(mqtt5.PublishPacket)
        assert (bytes(third.payload), third.duplicate) == (b"3", False)
        assert third.packet_id not in {p.packet_id for p in second[1:]}
        for packet in (second[1], third):
            again.send(mqtt5.PubAckPacket(packet.packet_id))
        await again.pong()
        assert bench.local.queued == {}
        for each in (client, again, sender):
            await each.close()


async def test_stored_sessions():
    """M-14: five commands wait for the client that keeps its session, none for the one that not."""
    async with running() as bench:
        client = await RawClient.signed_in(bench.port, "c1", clean=False)
        client.send(wire.subscribe(("te/cmd/1", 1)))
        assert (await client.read())[0] == wire.SUBACK
        client.send(wire.DISCONNECT)
        assert await client.closed()
        sender = await Client5.signed_in(bench.port, "s")
        for number in range(5):
            await published(sender, "te/cmd/1", b"%d" % number)
        back = await RawClient.signed_in(bench.port, "c1", clean=False)
        assert [(await back.read_publish())[1] for _ in range(5)] == [b"%d" % n for n in range(5)]
        back.send(wire.DISCONNECT)
        assert await back.closed()
        fresh = await RawClient.signed_in(bench.port, "c1", clean=True)
        await fresh.pong()
        assert bench.local.queued == {}
        assert local(bench) == {"session_ended": 5}
        for each in (client, back, fresh, sender):
            await each.close()


async def test_a_restart_keeps_what_was_stored():
    """Retained values and queues are there after a restart; what was sent comes with DUP."""
    clock = ManualClock()
    sessions, disk = MemorySessions(), MemoryLocal(clock)
    options = {"clock": clock, "sessions": sessions, "local": disk}
    async with running(**options) as bench:
        client = await Client5.signed_in(bench.port, "c", session_expiry_interval=1000)
        await client.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s", session_expiry_interval=1000)
        await published(sender, "te/x", b"sent", retain=True)
        assert bytes((await client.read(mqtt5.PublishPacket)).payload) == b"sent"
        await gone(bench, client)
        await published(sender, "te/x", b"waits")
        await sender.close()
    async with running(**options) as bench:
        late = await Client5.signed_in(bench.port, "late")
        await late.subscribe("te/x")
        assert await got(late) == [("te/x", b"sent")]
        client = await Client5.signed_in(
            bench.port, "c", clean_start=False, session_expiry_interval=1000
        )
        packets = [await client.read(mqtt5.PublishPacket) for _ in range(2)]
        assert [(bytes(p.payload), p.duplicate) for p in packets] == [
            (b"sent", True),
            (b"waits", False),
        ]
        for each in (client, late):
            await each.close()


async def test_a_session_that_expires():
    """With its interval its queue goes, and its subscriptions cost nothing any more."""
    clock = ManualClock()
    async with running(clock=clock) as bench:
        client = await Client5.signed_in(bench.port, "c", session_expiry_interval=60)
        await client.subscribe("te/#")
        await gone(bench, client)
        sender = await Client5.signed_in(bench.port, "s", keep_alive=0)
        await published(sender, "te/x")
        assert len(bench.local.queued) == 1
        await clock.advance(61)
        figures = bench.listener.statistics().local
        assert (figures.queued, figures.queued_bytes, figures.subscription_bytes) == (0, 0, 0)
        assert bench.local.queued == {}
        await sender.close()


async def test_queues_are_bounded():
    """The newest is dropped for a client whose queue is full, as Mosquitto does, and counted."""
    async with running(
        local_queue_max=3, local_queue_bytes_max=4500, local_queues_bytes_max=5000
    ) as bench:
        for name in ("a", "b"):
            client = await Client5.signed_in(bench.port, name, session_expiry_interval=100)
            await client.subscribe(f"te/{name}/#")
            await gone(bench, client)
        sender = await Client5.signed_in(bench.port, "s")
        for number in range(5):
            assert await published(sender, "te/a/x", b"%d" % number) == 0
        assert local(bench) == {"queue_full": 2}
        assert await published(sender, "te/b/x", b"y" * 3500) == 0
        assert await published(sender, "te/b/x", b"y" * 400) == 0
        assert local(bench) == {"queue_full": 2, "queues_full": 1}
        client = await Client5.signed_in(bench.port, "a", clean_start=False)
        assert await got(client, 3) == [("te/a/x", b"%d" % n) for n in range(3)]
        for each in (client, sender):
            await each.close()


async def test_retained_messages_are_bounded():
    """Beyond the bound a new topic is refused, one that is there may change, a clear makes room."""
    async with running(local_retained_max=2) as bench:
        client = await Client5.signed_in(bench.port)
        topics = ["te/1", "te/2", "te/3", "te/1"]
        codes = [await published(client, topic, retain=True) for topic in topics]
        assert codes == [0, 0, 0x97, 0]
        assert await published(client, "te/3") == 0
        assert await published(client, "te/2", b"", retain=True) == 0
        assert await published(client, "te/3", retain=True) == 0
        assert set(bench.local.retained) == {"te/1", "te/3"}
        assert bench.dropped() == {"retained_full": 1}
        await client.close()
        old = await RawClient.signed_in(bench.port, "old")
        old.send(wire.publish("te/9", b"x", qos=1, flags=1))
        assert await old.read_pubacks(1) == [1]
        assert bench.dropped() == {"retained_full": 2}
        await old.close()


async def test_retained_messages_that_have_expired_make_room():
    """A topic is kept where another one's time is over, long before anybody has swept."""
    clock = ManualClock()
    async with running(clock=clock, local_retained_max=2) as bench:
        sender = await Client5.signed_in(bench.port, "sender")
        for topic, seconds in (("te/1", 5), ("te/2", 20)):
            await published(sender, topic, retain=True, message_expiry_interval=seconds)
        assert await published(sender, "te/3", retain=True) == 0x97
        await clock.advance(6)
        assert await published(sender, "te/3", retain=True) == 0
        assert set(bench.local.retained) == {"te/2", "te/3"}
        assert await published(sender, "te/4", retain=True) == 0x97
        await sender.close()


async def test_retained_bytes_are_bounded():
    """Large values count by their size."""
    async with running(local_retained_bytes_max=10_000) as bench:
        client = await Client5.signed_in(bench.port)
        assert await published(client, "te/1", b"x" * 6000, retain=True) == 0
        assert await published(client, "te/2", b"x" * 6000, retain=True) == 0x97
        assert await published(client, "te/1", b"x" * 9000, retain=True) == 0
        await client.close()


async def test_a_slow_reader_costs_itself_alone():
    """A client that does not read loses QoS 0 and waits with QoS 1; others get all."""
    async with running() as bench:
        slow = await Client5.signed_in(bench.port, "slow", keep_alive=0)
        await slow.subscribe("te/#")
        slow.raw.stop_reading()
        quick = await Client5.signed_in(bench.port, "quick")
        await quick.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s")
        body = b"x" * 100_000
        for number in range(100):
            sender.publish("te/0", body, qos=AT_MOST_ONCE)
            if number % 10 == 0:
                await published(sender, "te/1", b"%d" % number)
            await sender.pong()
            packets = 2 if number % 10 == 0 else 1
            await got(quick, packets)
        assert local(bench)["slow_reader"] > 10
        connection = next(each for each in bench.connections() if each.client.id == "slow")
        assert connection.unsent_bytes < 2 * 256 * 1024
        slow.raw.read_on()
        numbers = []
        while len(numbers) < 10:
            packet = await slow.read(mqtt5.PublishPacket)
            if packet.topic == "te/1":
                numbers.append(int(packet.payload))
                slow.send(mqtt5.PubAckPacket(packet.packet_id))
        assert numbers == list(range(0, 100, 10))
        for each in (slow, quick, sender):
            await each.close()


async def test_many_retained_messages_come_whole():
    """All retained values reach a subscriber, however small its window and the bound of queues."""
    async with running(local_queue_max=10) as bench:
        sender = await Client5.signed_in(bench.port, "s")
        for number in range(1500):
            sender.publish(f"te/{number}", b"x", retain=True, packet_id=number % 500 + 1)
            if number % 500 == 499:
                await sender.codes(500)
        client = await Client5.signed_in(bench.port, "c", receive_max=3)
        await client.subscribe("te/#")
        assert len(await got(client, 1500)) == 1500
        for each in (client, sender):
            await each.close()


async def test_subscribing_again_while_retained_messages_are_sent():
    """What a filter takes is sent from the first one again; an end of the subscription ends it."""
    async with running() as bench:
        sender = await Client5.signed_in(bench.port, "s")
        for number in range(20):
            await published(sender, f"te/{number}", retain=True)
        client = await Client5.signed_in(bench.port, "c", receive_max=5)
        await client.subscribe("te/+")
        first = [await client.read(mqtt5.PublishPacket) for _ in range(5)]
        assert await client.subscribe("te/+") == [1]
        for packet in first:
            client.send(mqtt5.PubAckPacket(packet.packet_id))
        assert len(await got(client, 20)) == 20
        await client.subscribe("te/+")
        first = [await client.read(mqtt5.PublishPacket) for _ in range(5)]
        client.send(mqtt5.UnsubscribePacket(2, ["te/+"]))
        await client.read(mqtt5.UnsubAckPacket)
        for packet in first:
            client.send(mqtt5.PubAckPacket(packet.packet_id))
        await client.pong()
        for each in (client, sender):
            await each.close()


async def test_too_large_for_the_client():
    """A message over the client's Maximum Packet Size is left out, those behind it come."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "c", max_packet_size=100)
        await client.subscribe("te/#")
        sender = await Client5.signed_in(bench.port, "s")
        for qos in (AT_MOST_ONCE, AT_LEAST_ONCE):
            for body in (b"x" * 200, b"y"):
                sender.publish("te/x", body, qos=qos)
        await sender.codes(2)
        assert await got(client, 2) == [("te/x", b"y")] * 2
        assert local(bench) == {"packet_too_large": 2}
        for each in (client, sender):
            await each.close()


@pytest.fixture
def rights_file(tmp_path: Path) -> Path:
    """Identities with rights: `press` for its own topics, `mute` for none, `free` for all."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as identities:
        for identity_id, rights in {
            "press": (("te/device/{id}/#", "c8y/s"), ("te/device/{id}/cmd/#",)),
            "mute": ((), ()),
            "free": (None, None),
        }.items():
            identities[identity_id] = Identity(
                id=identity_id, password=HASH, publish=rights[0], subscribe=rights[1]
            )
    return path


async def test_rights(rights_file: Path):
    """An identity publishes and subscribes within its filters; without any it may do all."""
    async with running(identities_file=rights_file) as bench:
        options = {"password": b"secret"}
        press = await Client5.signed_in(bench.port, "press", **options)
        filters = ["te/device/press/cmd/+", "te/device/press/#", "#", "$edge/#", "te/device/+/cmd"]
        assert await press.subscribe(*filters) == [1, 0x87, 0x87, 0x87, 0x87]
        assert await published(press, "te/device/press/m") == 0
        assert await published(press, "te/device/other/m") == 0x87
        mute = await Client5.signed_in(bench.port, "mute", **options)
        assert await mute.subscribe("te/x") == [0x87]
        assert await published(mute, "te/x") == 0x87
        free = await Client5.signed_in(bench.port, "free", **options)
        assert await free.subscribe("#") == [1]
        assert bench.dropped() == {"not_authorized": 2}
        for each in (press, mute, free):
            await each.close()
        old = await RawClient.signed_in(bench.port, "mute", user="mute", password=b"secret")
        old.send(wire.subscribe(("te/x", 1)) + wire.publish("te/x", b"x", qos=1, packet_id=9))
        assert await old.read() == (wire.SUBACK, b"\x00\x01\x80")
        assert await old.read_pubacks(1) == [9]
        await old.close()


async def test_rights_that_went_meanwhile(rights_file: Path):
    """What waits on a topic that the client may not read any more is not sent."""
    sessions = MemorySessions()
    sessions.table["press"] = {"te/#": 1}
    async with running(identities_file=rights_file, sessions=sessions) as bench:
        sender = await Client5.signed_in(bench.port, "s")
        await published(sender, "te/secret")
        await published(sender, "te/device/press/cmd/a")
        press = await Client5.signed_in(
            bench.port, "press", password=b"secret", clean_start=False, session_expiry_interval=9
        )
        assert await got(press) == [("te/device/press/cmd/a", b"x")]
        await published(sender, "te/device/press/cmd/a")
        await press.pong()
        assert local(bench) == {"no_right": 1}
        for each in (press, sender):
            await each.close()


async def test_wills(rights_file: Path):
    """A will on a local topic is published, retained, with its properties, when its client goes."""
    async with running(identities_file=rights_file) as bench:
        watch = await Client5.signed_in(bench.port, "w")
        await watch.subscribe("te/#")
        will = mqtt5.Will(
            "te/gone", payload=b"bye", retain=True, qos=AT_LEAST_ONCE, content_type="t"
        )
        client = await Client5.signed_in(bench.port, "c", will=will)
        await gone(bench, client)
        packet = await watch.read(mqtt5.PublishPacket)
        assert (packet.topic, bytes(packet.payload), packet.content_type) == (
            "te/gone",
            b"bye",
            "t",
        )
        assert set(bench.local.retained) == {"te/gone"}
        for client_id, topic, code in [
            ("press", "te/x", 0x87),
            ("c", "$edge/x", 0x90),
            ("c", "b", 0x90),
        ]:
            client = await Client5.open(bench.port)
            options = {"password": b"secret"} if client_id == "press" else {}
            answer = await client.connect(client_id, will=mqtt5.Will(topic), **options)
            assert int(answer.reason_code) == code
            await client.close()
        await watch.close()


async def test_routes_take_local_messages():
    """M-05: `/mqtt/<filter>` hands a message to the router, and the PUBACK waits for its commit."""
    async with running(local_topics=("site/#",)) as bench:
        bench.listener.follow_routes(["site/+/tele/#"])
        bench.router.holding = True
        client = await Client5.signed_in(bench.port, "dev/mod")
        for number, topic in enumerate(
            ["site/d1/tele", "site/d1/tele/a/b", "site/d1/telemetry"], start=1
        ):
            client.publish(
                topic, b"x", packet_id=number, user_properties=[("k", "v")], retain=number == 1
            )
        await client.pong()
        bench.router.settle(1)
        bench.router.settle(refusal=Refusal.LIMIT)
        assert await client.codes(3) == [(1, 0x97), (2, 0), (3, 0)]
        first, second = bench.router.messages
        assert (first.source, second.source) == ("/mqtt/site/d1/tele", "/mqtt/site/d1/tele/a/b")
        assert (first.device_id, first.module_id, first.body) == ("dev", "mod", b"x")
        assert first.properties == {"k": "v", "mqtt-retain": "true"}
        assert second.properties == {"k": "v"}
        bench.listener.follow_routes([])
        assert await published(client, "site/d1/tele") == 0
        await client.close()


async def test_qos_0_for_routes_follows_the_setting():
    """Without `store_qos0` QoS 0 reaches local clients while the uplink is down, but no route."""
    async with running(store_qos0=False) as bench:
        bench.listener.follow_routes(["te/#"])
        bench.link["up"] = False
        client = await Client5.signed_in(bench.port)
        await client.subscribe("te/#")
        client.publish("te/x", b"1", qos=AT_MOST_ONCE)
        assert await got(client) == [("te/x", b"1")]
        assert bench.router.messages == []
        assert bench.dropped() == {"qos0_offline": 1}
        bench.link["up"] = True
        client.publish("te/x", b"2", qos=AT_MOST_ONCE)
        await got(client)
        assert [m.body for m in bench.router.messages] == [b"2"]
        await client.close()


async def test_dialect_and_local_space_side_by_side():
    """A client has deliveries of both, with packet ids of their own, within one window."""
    async with running() as bench:
        client = await Client5.signed_in(bench.port, "hub/m", receive_max=2)
        await client.subscribe("devices/hub/modules/m/inputs/#", "te/#")
        sender = await Client5.signed_in(bench.port, "s")
        await published(sender, "te/1")
        settled = asyncio.Event()
        message = Message("d", None, "/messages/", {}, {}, b"x")
        bench.listener.deliver("m", "i", message, lambda _result: settled.set())
        await published(sender, "te/2")
        packets = [await client.read(mqtt5.PublishPacket) for _ in range(2)]
        await client.pong()
        assert len({packet.packet_id for packet in packets}) == 2
        client.send(mqtt5.PubAckPacket(packets[1].packet_id))
        third = await client.read(mqtt5.PublishPacket)
        assert (packets[0].topic, third.topic) == ("te/1", "te/2")
        assert settled.is_set()
        # Dialect messages are not part of the space.
        sender.publish("devices/s/messages/events/", b"x")
        await sender.codes(1)
        await client.pong()
        for each in (client, sender):
            await each.close()


async def test_what_a_part_of_the_hub_answers_comes_behind_what_it_answers():
    """A mapper that clears a finished command at once does not clear it before it was finished."""
    async with running() as bench:
        space = bench.listener.context.space

        def clear(message: LocalMessage, settle: Settle, token: int) -> None:
            if message.body:
                space.publish(
                    LocalMessage(message.topic, b"", publisher=space.hub_id, qos=1, retain=True),
                    lambda _token, _refusal: None,
                    0,
                )
            settle(token, None)

        space.subscribe_inner(("te/+/cmd",), clear)
        watcher = await Client5.signed_in(bench.port, "watcher")
        await watcher.subscribe("te/#")
        device = await Client5.signed_in(bench.port, "device")
        assert await published(device, "te/x/cmd", b"successful", retain=True) == 0
        assert await got(watcher, 2) == [("te/x/cmd", b"successful"), ("te/x/cmd", b"")]
        await device.close()
        await watcher.close()
