"""Messages of QoS 2 in both directions: once, over connections and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mqtt5
import pytest

from edgehub.message import Message, Refusal
from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import AT_LEAST_ONCE, BOUND, EVENTS, EXACTLY_ONCE, Client5
from tests.support.mqtt_listener import Changes, MemoryLocal, MemorySessions, running
from tests.support.mqtt_wire import PUBCOMP, PUBREC, PUBREL, RawClient, acknowledgement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

LOCAL = ("site/#",)
STORED = {"clean_start": False, "session_expiry_interval": 1000}


class Clients:
    """Makes clients of MQTT 5 and closes them all."""

    def __init__(self) -> None:
        self._open: list[RawClient] = []

    async def __call__(self, bench: Bench, client_id: str = "dev1", **options: object) -> Client5:
        """Return a client that has signed in."""
        client = await Client5.signed_in(bench.port, client_id, **options)
        self._open.append(client.raw)
        return client

    async def old(self, bench: Bench, client_id: str = "dev1", **options: object) -> RawClient:
        """Return a client of 3.1.1 that has signed in."""
        client = await RawClient.signed_in(bench.port, client_id, **options)
        self._open.append(client)
        return client

    async def close(self) -> None:
        """Close all."""
        for client in self._open:
            await client.close()


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    """Return a maker of clients."""
    clients = Clients()
    yield clients
    await clients.close()


def send(client: Client5, topic: str = EVENTS, packet_id: int = 7, body: bytes = b"x") -> None:
    """Send a PUBLISH of QoS 2."""
    client.publish(topic, body, qos=EXACTLY_ONCE, packet_id=packet_id)


async def released(client: Client5, packet_id: int = 7) -> int:
    """Send PUBREL; return the reason code of PUBCOMP."""
    client.send(mqtt5.PubRelPacket(packet_id))
    answer = await client.read(mqtt5.PubCompPacket)
    assert answer.packet_id == packet_id
    return int(answer.reason_code)


async def recorded(client: Client5, packet_id: int = 7) -> int:
    """Read PUBREC; return its reason code."""
    answer = await client.read(mqtt5.PubRecPacket)
    assert answer.packet_id == packet_id
    return int(answer.reason_code)


async def published(client: Client5, body: bytes, **expected: object) -> mqtt5.PublishPacket:
    """Read a PUBLISH with this body and these fields."""
    packet = await client.read(mqtt5.PublishPacket)
    assert bytes(packet.payload) == body
    assert {name: getattr(packet, name) for name in expected} == expected
    return packet


# From clients.


async def test_pubrec_and_pubcomp_wait_for_the_disk(clients: Clients) -> None:
    """PUBREC follows message and packet id, PUBCOMP the end of the packet id."""
    async with running() as bench:
        client = await clients(bench, **STORED)
        await bench.sessions.settled()
        bench.router.holding = True
        bench.sessions.free.clear()
        send(client)
        await bench.router.received(1)
        bench.router.settle()
        await client.pong()
        bench.sessions.free.set()
        assert await recorded(client) == 0
        assert {packet_id for _, packet_id in bench.sessions.received} == {7}
        bench.sessions.free.clear()
        client.send(mqtt5.PubRelPacket(7), mqtt5.PubRelPacket(7))
        await client.pong()
        bench.sessions.free.set()
        for _ in range(2):
            assert int((await client.read(mqtt5.PubCompPacket)).reason_code) == 0
        assert bench.sessions.received == set()


async def test_a_repetition_waits_for_the_message_that_is_under_way(clients: Clients) -> None:
    """Also over another connection: it is neither taken twice nor acknowledged early."""
    async with running() as bench:
        first = await clients(bench, **STORED)
        bench.router.holding = True
        send(first)
        await bench.router.received(1)
        second = await clients(bench, **STORED)
        send(second)
        await second.pong()
        bench.router.settle()
        assert await recorded(second) == 0
        assert await released(second) == 0
        assert len(bench.router.messages) == 1


async def test_a_refused_message_leaves_its_packet_id_free(clients: Clients) -> None:
    """The next PUBLISH with it is another message; 3.1.1 is closed and sends it again."""
    async with running() as bench:
        client = await clients(bench, **STORED)
        bench.router.refusal = Refusal.LIMIT
        send(client, body=b"1")
        assert await recorded(client) == 0x97
        old = await clients.old(bench, "dev2", clean=False)
        data = wire.publish("devices/dev2/messages/events/", b"1", qos=2, packet_id=9)
        old.send(data)
        assert await old.closed()
        bench.router.refusal = None
        send(client, body=b"2")
        assert await recorded(client) == 0
        old = await clients.old(bench, "dev2", clean=False)
        old.send(data)
        assert await old.read() == (PUBREC, b"\0\x09")
        assert [message.body for message in bench.router.messages] == [b"1", b"1", b"2", b"1"]


async def test_a_message_refused_late_leaves_the_disk(clients: Clients) -> None:
    """Its packet id was stored with it, and goes."""
    async with running() as bench:
        client = await clients(bench, **STORED)
        bench.router.holding = True
        send(client)
        (message,) = await bench.router.received(1)
        # As the store does when it appends: the id is stored along.
        message.message_id = "s-1"
        send(client, packet_id=8)
        (_, message) = await bench.router.received(2)
        bench.router.settle(refusal=Refusal.INVALID)
        assert await recorded(client) == 0x83
        assert await recorded(client, 8) == 0x83
        await bench.sessions.settled()
        assert bench.sessions.received == set()
        assert await released(client) == 0x92


async def test_a_local_message_that_routes_take_comes_before_its_packet_id(
    clients: Clients,
) -> None:
    """What other parts of the hub do with it may be durable later, so the id waits for them."""
    async with running() as bench:
        bench.listener.follow_routes(["te/#"])
        client = await clients(bench, **STORED)
        bench.router.holding = True
        send(client, "te/a")
        await bench.router.received(1)
        await bench.sessions.settled()
        assert bench.sessions.received == bench.local.received == set()
        bench.router.settle()
        assert await recorded(client) == 0
        assert {packet_id for _, packet_id in bench.sessions.received} == {7}
        assert bench.local.received == set()


async def test_packet_ids_outlive_the_hub(clients: Clients) -> None:
    """A stored session knows what it has received after a restart, and no more after its end."""
    sessions, local = MemorySessions(), None
    async with running(sessions=sessions) as bench:
        local = bench.local
        client = await clients(bench, **STORED)
        send(client)
        assert await recorded(client) == 0
        send(client, "te/a", packet_id=8)
        assert await recorded(client, 8) == 0
        await sessions.settled()
    assert {packet_id for _, packet_id in local.received} == {8}
    sessions.received |= local.received
    async with running(sessions=sessions) as bench:
        client = await clients(bench, **STORED)
        for packet_id in (7, 8):
            send(client, packet_id=packet_id)
            assert await recorded(client, packet_id) == 0
        assert bench.router.messages == []
        assert await released(client, 8) == 0
        await client.close()
        client = await clients(bench, clean_start=True, session_expiry_interval=1000)
        send(client)
        assert await recorded(client) == 0
        assert len(bench.router.messages) == 1


async def test_without_a_stored_session_nothing_is_written(clients: Clients) -> None:
    """Packet ids of a connection are gone with it."""
    async with running() as bench:
        for _ in range(2):
            client = await clients(bench)
            send(client)
            assert await recorded(client) == 0
            await client.close()
        assert len(bench.router.messages) == 2
        assert bench.sessions.writes == 0


async def test_a_session_that_ends_with_its_connection_now(clients: Clients) -> None:
    """What it has received is known, and written no more."""
    async with running() as bench:
        client = await clients(bench, **STORED)
        send(client)
        assert await recorded(client) == 0
        client = await clients(bench, clean_start=False)
        send(client)
        assert await recorded(client) == 0
        assert await released(client) == 0
        assert len(bench.router.messages) == 1


async def test_there_is_an_end_to_unreleased_packet_ids(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound of the hub a message is refused, and the bound is shown."""
    monkeypatch.setattr("edgehub.heads.mqtt.sessions.RECEIVED_MAX", 2)
    async with running() as bench:
        client = await clients(bench)
        other = await clients(bench, "dev2", **STORED)
        send(client)
        assert await recorded(client) == 0
        send(other, "te/a")
        assert await recorded(other) == 0
        send(client, packet_id=8)
        assert await recorded(client, 8) == 0x97
        (bound,) = [each for each in bench.listener.statistics().bounds if "QoS 2" in each.name]
        assert (bound.used, bound.limit) == (2, 2)
        assert await released(client) == 0
        send(client, packet_id=8)
        assert await recorded(client, 8) == 0
        assert bench.dropped() == {"limit": 1}


async def test_what_belongs_to_nothing_is_answered(clients: Clients) -> None:
    """Both versions can end an exchange of which the hub knows nothing; PUBACK needs no answer."""
    async with running() as bench:
        client = await clients(bench)
        assert await released(client) == 0x92
        client.send(mqtt5.PubRecPacket(5), mqtt5.PubCompPacket(6))
        answer = await client.read(mqtt5.PubRelPacket)
        assert (answer.packet_id, int(answer.reason_code)) == (5, 0x92)
        client.send(mqtt5.PubRecPacket(5, reason_code=mqtt5.PubRecReasonCode.UNSPECIFIED_ERROR))
        await client.pong()
        old = await clients.old(bench, "dev2")
        old.send(acknowledgement(PUBREL, 5) + acknowledgement(PUBREC, 6))
        assert await old.read() == (PUBCOMP, b"\0\5")
        assert await old.read() == (PUBREL, b"\0\6")


async def test_more_than_the_receive_maximum_ends_the_connection(clients: Clients) -> None:
    """Exchanges without PUBCOMP count, those of an earlier connection do not."""
    async with running() as bench:
        client = await clients(bench, **STORED)
        for packet_id in range(1, 1025):
            send(client, packet_id=packet_id)
        for packet_id in range(1, 1025):
            assert await recorded(client, packet_id) == 0
        send(client, packet_id=2000)
        assert int((await client.goodbye()).reason_code) == 0x93
        client = await clients(bench, **STORED)
        send(client, packet_id=2000)
        assert await recorded(client, 2000) == 0


async def test_a_will_with_qos_2(clients: Clients) -> None:
    """It arrives with the quality that its client chose."""
    async with running(local_topics=LOCAL) as bench:
        reader = await clients(bench, "panel")
        assert await reader.subscribe("site/#", max_qos=EXACTLY_ONCE) == [2]
        will = mqtt5.Will("site/gone", payload=b"bye", qos=EXACTLY_ONCE)
        client = await clients(bench, will=will)
        client.raw.cut()
        await published(reader, b"bye", qos=EXACTLY_ONCE)


# To clients.


async def test_each_step_waits_for_the_disk(clients: Clients) -> None:
    """PUBLISH follows its packet id, PUBREL the PUBREC; what is behind waits for its turn."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients(bench, **STORED)
        await client.subscribe("site/#", max_qos=EXACTLY_ONCE)
        sender = await clients(bench, "dev2")
        bench.local.free = False
        send(sender, "site/a", 1, b"1")
        sender.publish("site/a", b"2", packet_id=2)
        await sender.pong()
        await client.pong()
        bench.local.commit()
        packet = await published(client, b"1", qos=EXACTLY_ONCE, duplicate=False)
        await published(client, b"2", qos=AT_LEAST_ONCE)
        client.send(mqtt5.PubRecPacket(packet.packet_id))
        await client.pong()
        bench.local.commit()
        assert (await client.read(mqtt5.PubRelPacket)).packet_id == packet.packet_id
        client.send(mqtt5.PubRecPacket(packet.packet_id))
        assert (await client.read(mqtt5.PubRelPacket)).packet_id == packet.packet_id
        client.send(mqtt5.PubCompPacket(packet.packet_id))
        await client.pong()
        assert [each.qos for each in bench.local.queued.values()] == [1]


async def test_an_exchange_goes_on_over_connections_and_restarts(clients: Clients) -> None:
    """PUBLISH comes again with its packet id and DUP; after PUBREC only PUBREL does."""
    sessions = MemorySessions()
    async with running(sessions=sessions, local_topics=LOCAL) as bench:
        local = bench.local
        client = await clients(bench, **STORED)
        await client.subscribe("site/#", max_qos=EXACTLY_ONCE)
        sender = await clients(bench, "dev2")
        for number in (1, 2, 3):
            send(sender, "site/a", number, b"%d" % number)
        ids = [(await published(client, b"%d" % number)).packet_id for number in (1, 2, 3)]
        client.send(mqtt5.PubRecPacket(ids[0]))
        assert (await client.read(mqtt5.PubRelPacket)).packet_id == ids[0]
        again = await clients(bench, **STORED)
        assert (await again.read(mqtt5.PubRelPacket)).packet_id == ids[0]
        await published(again, b"2", duplicate=True, packet_id=ids[1])
        await published(again, b"3", duplicate=True, packet_id=ids[2])
        again.send(mqtt5.PubCompPacket(ids[0]), mqtt5.PubRecPacket(ids[1]))
        assert (await again.read(mqtt5.PubRelPacket)).packet_id == ids[1]
        await again.close()
        send(sender, "site/a", 4, b"4")
        for packet_id in (1, 2, 3, 4):
            assert await recorded(sender, packet_id) == 0
    async with running(sessions=sessions, local=local, local_topics=LOCAL) as bench:
        client = await clients(bench, **STORED)
        assert (await client.read(mqtt5.PubRelPacket)).packet_id == ids[1]
        await published(client, b"3", duplicate=True, packet_id=ids[2])
        packet = await published(client, b"4", duplicate=False, qos=EXACTLY_ONCE)
        assert packet.packet_id not in ids[1:]


async def test_a_message_that_fits_no_more_is_not_left_half_done(clients: Clients) -> None:
    """Its client may know the packet id, so PUBREL follows in place of the PUBLISH."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients(bench, **STORED)
        await client.subscribe("site/#", max_qos=EXACTLY_ONCE)
        sender = await clients(bench, "dev2")
        send(sender, "site/a", 1, b"x" * 500)
        packet = await published(client, b"x" * 500)
        client = await clients(bench, **STORED, max_packet_size=400)
        assert (await client.read(mqtt5.PubRelPacket)).packet_id == packet.packet_id
        client.send(mqtt5.PubCompPacket(packet.packet_id))
        send(sender, "site/a", 2, b"y" * 500)
        send(sender, "site/a", 3, b"z")
        await published(client, b"z")
        assert bench.listener.statistics().local.dropped["packet_too_large"] == 2


async def test_a_client_refuses_a_message(clients: Clients) -> None:
    """A failure in PUBREC ends the exchange; the packet id is free."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients(bench, receive_max=1)
        await client.subscribe("site/#", max_qos=EXACTLY_ONCE)
        sender = await clients(bench, "dev2")
        send(sender, "site/a", 1, b"1")
        send(sender, "site/a", 2, b"2")
        packet = await published(client, b"1")
        await client.pong()
        code = mqtt5.PubRecReasonCode.QUOTA_EXCEEDED
        client.send(mqtt5.PubRecPacket(packet.packet_id, reason_code=code))
        await published(client, b"2")


async def test_retained_messages_for_a_stored_session(clients: Clients) -> None:
    """They are stored as others are, so each arrives once, also where it waits already."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients(bench, **STORED)
        sender = await clients(bench, "dev2")
        sender.publish("site/a", b"1", qos=EXACTLY_ONCE, packet_id=1, retain=True)
        assert await recorded(sender, 1) == 0
        ids = set()
        for _ in range(2):
            assert await client.subscribe("site/#", max_qos=EXACTLY_ONCE) == [2]
            packet = await published(client, b"1", qos=EXACTLY_ONCE, retain=True)
            ids.add(packet.packet_id)
        assert len(ids) == 2
        assert {each.packet_id for each in bench.local.queued.values()} == ids


async def test_devices_are_granted_qos_2_and_served_with_1(clients: Clients) -> None:
    """What comes from upstream has QoS 1; the identifier of the subscription goes along."""
    async with running() as bench:
        client = await clients(bench)
        wanted = [mqtt5.TopicFilter(BOUND, max_qos=EXACTLY_ONCE)]
        client.send(mqtt5.SubscribePacket(1, wanted, subscription_id=9))
        assert list((await client.read(mqtt5.SubAckPacket)).reason_codes) == [2]
        results = Changes()
        message = Message("dev1", None, "/messages/", {}, {}, b"x")
        bench.send("dev1", message, results)
        await published(client, b"x", qos=AT_LEAST_ONCE, subscription_ids=[9])


async def test_identifiers_wait_with_their_message(clients: Clients) -> None:
    """They are part of the session, over a restart too."""
    sessions = MemorySessions()
    async with running(sessions=sessions, local_topics=LOCAL) as bench:
        local: MemoryLocal = bench.local
        client = await clients(bench, **STORED)
        for number, name in ((3, "site/a"), (2**28 - 1, "site/#")):
            wanted = [mqtt5.TopicFilter(name, max_qos=AT_LEAST_ONCE)]
            client.send(mqtt5.SubscribePacket(1, wanted, subscription_id=number))
            await client.read(mqtt5.SubAckPacket)
        await client.raw.end()
        sender = await clients(bench, "dev2")
        sender.publish("site/a", b"1")
        assert await sender.codes(1) == [(1, 0)]
    async with running(sessions=sessions, local=local, local_topics=LOCAL) as bench:
        client = await clients(bench, **STORED)
        packet = await published(client, b"1")
        assert sorted(packet.subscription_ids) == [3, 2**28 - 1]
        sender = await clients(bench, "dev2")
        sender.publish("site/b", b"2")
        packet = await published(client, b"2")
        assert packet.subscription_ids == [2**28 - 1]


# Shared subscriptions.


async def test_members_take_turns(clients: Clients) -> None:
    """Each message goes to one of them; one that is away comes last, with QoS 0 not at all."""
    async with running(local_topics=LOCAL) as bench:
        first, second = [await clients(bench, name) for name in ("m1", "m2")]
        away = await clients(bench, "m3", **STORED)
        for each in (away, first, second):
            assert await each.subscribe("$share/g/site/#") == [1]
        await away.raw.end()
        sender = await clients(bench, "dev2")
        for number in range(1, 5):
            sender.publish("site/a", b"%d" % number, packet_id=number)
        await sender.codes(4)
        for client, bodies in ((first, (b"1", b"3")), (second, (b"2", b"4"))):
            for body in bodies:
                await published(client, body)
        for client in (first, second):
            client.send(mqtt5.UnsubscribePacket(1, ["$share/g/site/#"]))
            await client.read(mqtt5.UnsubAckPacket)
        sender.publish("site/a", b"lost", qos=mqtt5.QoS.AT_MOST_ONCE)
        sender.publish("site/a", b"kept", packet_id=5)
        assert await sender.codes(1) == [(5, 0)]
        away = await clients(bench, "m3", **STORED)
        await published(away, b"kept")


async def test_a_member_has_its_own_subscription_too(clients: Clients) -> None:
    """One copy by the group, one by its own; retained ones only by its own."""
    async with running(local_topics=LOCAL) as bench:
        sender = await clients(bench, "dev2")
        sender.publish("site/a", b"old", retain=True)
        assert await sender.codes(1) == [(1, 0)]
        member = await clients(bench, "m1", **STORED)
        await member.subscribe("$share/g/site/#", "$share/h/site/#")
        await member.pong()
        await member.subscribe("site/a")
        await published(member, b"old", retain=True)
        sender.publish("site/a", b"new")
        for _ in range(3):
            await published(member, b"new", retain=False)
        await member.pong()


async def test_messages_of_a_member_that_ends_go_to_another(clients: Clients) -> None:
    """But for those of QoS 2 that it may have."""
    async with running(local_topics=LOCAL) as bench:
        first = await clients(bench, "m1", receive_max=2)
        await first.subscribe("$share/g/site/#", max_qos=EXACTLY_ONCE)
        sender = await clients(bench, "dev2")
        sender.publish("site/a", b"1", qos=EXACTLY_ONCE, packet_id=1)
        sender.publish("site/a", b"2", packet_id=2)
        sender.publish("site/a", b"3", qos=EXACTLY_ONCE, packet_id=3)
        for body in (b"1", b"2"):
            await published(first, body)
        await first.pong()
        second = await clients(bench, "m2")
        await second.subscribe("$share/g/site/#", max_qos=EXACTLY_ONCE)
        first.raw.cut()
        for body in (b"2", b"3"):
            await published(second, body)
        await second.pong()
        assert bench.listener.statistics().local.dropped["session_ended"] == 1
