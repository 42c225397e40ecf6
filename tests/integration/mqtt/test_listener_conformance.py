"""What both MQTT specifications ask of a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import mqtt5
import pytest

from tests.support import mqtt_wire as wire
from tests.support.mqtt5_client import AT_LEAST_ONCE, EXACTLY_ONCE, Client5
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import PUBCOMP, PUBREC, PUBREL, RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"
BOUND = "devices/dev1/messages/devicebound/#"
LOCAL = ("site/#",)

ILL_FORMED = [b"a\xffb", b"a\xed\xa0\x80b", b"a\0b", EVENTS.encode() + b"k=\xc3"]
WILDCARDS = [b"", b"site/#", b"site/+/a", b"#", EVENTS.encode() + b"k=1+1"]


class Clients:
    """Connections that are closed at the end of a test, however it ends."""

    def __init__(self) -> None:
        self._open: list[RawClient] = []

    async def connected(self, bench: Bench) -> RawClient:
        """Return a client that has not signed in."""
        client = await RawClient.open(bench.port)
        self._open.append(client)
        return client

    async def raw(self, bench: Bench, **options: Any) -> RawClient:
        """Return a client that has signed in with 3.1.1."""
        client = await RawClient.signed_in(bench.port, **options)
        self._open.append(client)
        return client

    async def five(self, bench: Bench, client_id: str = "dev1") -> Client5:
        """Return a client that has signed in with MQTT 5."""
        client = await Client5.signed_in(bench.port, client_id)
        self._open.append(client.raw)
        return client

    async def close(self) -> None:
        """Close all."""
        for client in self._open:
            await client.close()


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    """Return a maker of connections."""
    clients = Clients()
    yield clients
    await clients.close()


async def ending(client: RawClient, data: bytes) -> int | None:
    """Send what must end the connection; return the reason code of the DISCONNECT, if any.

    A PINGREQ follows, so that a server that goes on answers at once.
    """
    client.send(data + wire.PINGREQ)
    try:
        head, body = await client.read()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    assert head == 0xE0, f"the server goes on with {head:#04x}"
    assert await client.closed()
    return body[0]


def publish5(topic: bytes, *, flags: int = 0x32) -> bytes:
    """Return a PUBLISH of MQTT 5 without properties."""
    packet_id = b"\0\1" if flags & 0x06 else b""
    return wire.packet(flags & 0xF | 0x30, wire.field(topic) + packet_id + b"\0" + b"x")


@pytest.mark.parametrize("topic", [*ILL_FORMED, *WILDCARDS])
async def test_a_malformed_topic_closes_the_connection(clients: Clients, topic: bytes) -> None:
    """Ill-formed UTF-8, NUL and wildcards in a PUBLISH [MQTT-1.5.3-1, 1.5.3-2, 3.3.2-2]."""
    async with running() as bench:
        client = await clients.raw(bench)
        assert await ending(client, wire.publish(topic, b"x", qos=1)) is None
        assert bench.router.messages == []


@pytest.mark.parametrize("topic", [*ILL_FORMED, *WILDCARDS])
async def test_a_malformed_topic_ends_mqtt_5_with_a_reason(clients: Clients, topic: bytes) -> None:
    """Malformed packet, or protocol error [MQTT-1.5.4-1, 1.5.4-2, 3.3.2-2]."""
    async with running() as bench:
        client = await clients.five(bench)
        assert await ending(client.raw, publish5(topic)) in {0x81, 0x82}
        assert bench.router.messages == []


@pytest.mark.parametrize(
    "topic",
    ["", *ILL_FORMED],
)
async def test_a_will_with_a_malformed_topic_gets_no_connack(
    clients: Clients, topic: bytes | str
) -> None:
    """3.1.1 closes without a word [MQTT-3.1.0-2, 3.1.3-10]."""
    async with running() as bench:
        client = await clients.connected(bench)
        assert await ending(client, wire.connect(will=(topic, b"x"))) is None


async def test_dup_with_qos_0_closes_the_connection(clients: Clients) -> None:
    """Nothing can be a repetition of what is sent at most once [MQTT-3.3.1-2]."""
    async with running() as bench:
        client = await clients.raw(bench)
        assert await ending(client, wire.publish(EVENTS, b"x", flags=0x08)) is None
        five = await clients.five(bench, "dev2")
        topic = b"devices/dev2/messages/events/"
        assert await ending(five.raw, publish5(topic, flags=0x38)) in {0x81, 0x82}
        assert bench.router.messages == []


@pytest.mark.parametrize(
    "data", [wire.subscribe(("", 1)), wire.unsubscribe("")], ids=["subscribe", "unsubscribe"]
)
async def test_an_empty_filter_closes_the_connection(clients: Clients, data: bytes) -> None:
    """A topic filter has at least one character [MQTT-4.7.3-1]."""
    async with running() as bench:
        client = await clients.raw(bench)
        assert await ending(client, data) is None


@pytest.mark.parametrize(
    "data",
    [
        wire.packet(0x82, b"\0\1\0" + wire.field("") + b"\1"),
        wire.packet(0xA2, b"\0\1\0" + wire.field("")),
    ],
    ids=["subscribe", "unsubscribe"],
)
async def test_an_empty_filter_ends_mqtt_5_with_a_reason(clients: Clients, data: bytes) -> None:
    """Malformed packet, or protocol error [MQTT-4.7.3-1]."""
    async with running() as bench:
        client = await clients.five(bench)
        assert await ending(client.raw, data) in {0x81, 0x82}


@pytest.mark.parametrize("head", [0x80, 0x83, 0xA0, 0xC1, 0x41])
async def test_wrong_reserved_flags_are_a_malformed_packet(clients: Clients, head: int) -> None:
    """The answer is reason code 0x81 [MQTT-2.1.3-1]."""
    async with running() as bench:
        client = await clients.five(bench)
        assert await ending(client.raw, wire.packet(head, b"\0\1\0")) == 0x81


@pytest.mark.parametrize("code", [0x01, 0x11, 0x7F, 0xFF])
async def test_an_unknown_code_in_a_puback_is_a_protocol_error(clients: Clients, code: int) -> None:
    """Only the codes of section 3.4.2.1 may be used."""
    async with running() as bench:
        client = await clients.five(bench)
        assert await ending(client.raw, wire.packet(0x40, b"\0\1" + bytes([code]))) in {0x81, 0x82}


async def test_qos_2_is_taken_once_however_often_it_is_sent(clients: Clients) -> None:
    """PUBREC after the commit; a repetition before PUBREL is the same message [MQTT-4.3.3]."""
    async with running() as bench:
        client = await clients.raw(bench)
        client.send(wire.publish(EVENTS, b"once", qos=2, packet_id=7))
        assert await client.read() == (PUBREC, b"\0\7")
        client.send(wire.publish(EVENTS, b"once", qos=2, packet_id=7, flags=0x08))
        assert await client.read() == (PUBREC, b"\0\7")
        client.send(wire.packet(PUBREL, b"\0\7"))
        assert await client.read() == (PUBCOMP, b"\0\7")
        client.send(wire.publish(EVENTS, b"two", qos=2, packet_id=7))
        assert await client.read() == (PUBREC, b"\0\7")
        assert [message.body for message in bench.router.messages] == [b"once", b"two"]


async def test_qos_2_is_deduplicated_over_connections_of_a_stored_session(clients: Clients) -> None:
    """What was received before the connection broke is not taken again after it."""
    async with running() as bench:
        first = await clients.raw(bench, clean=False)
        first.send(wire.publish(EVENTS, b"once", qos=2, packet_id=7))
        assert await first.read() == (PUBREC, b"\0\7")
        first.cut()
        second = await clients.raw(bench, clean=False)
        second.send(wire.publish(EVENTS, b"once", qos=2, packet_id=7, flags=0x08))
        assert await second.read() == (PUBREC, b"\0\7")
        second.send(wire.packet(PUBREL, b"\0\7"))
        assert await second.read() == (PUBCOMP, b"\0\7")
        assert [message.body for message in bench.router.messages] == [b"once"]


async def test_a_subscription_is_granted_qos_2_and_served_with_it(clients: Clients) -> None:
    """Local topics travel with the lower of both qualities, 2 included."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients.five(bench)
        assert await client.subscribe("site/a", max_qos=EXACTLY_ONCE) == [2]
        sender = await clients.five(bench, "dev2")
        sender.publish("site/a", b"x", qos=EXACTLY_ONCE)
        packet = await client.read(mqtt5.PublishPacket)
        assert (packet.qos, bytes(packet.payload)) == (EXACTLY_ONCE, b"x")


async def test_a_shared_subscription_has_each_message_at_one_member(clients: Clients) -> None:
    """`$share/<group>/<filter>` of local topics, in MQTT 5."""
    async with running(local_topics=LOCAL) as bench:
        members = [await clients.five(bench, f"dev{number}") for number in (1, 2)]
        for member in members:
            assert await member.subscribe("$share/g/site/a") == [1]
        sender = await clients.five(bench, "dev3")
        for number in range(1, 11):
            sender.publish("site/a", b"%d" % number, packet_id=number)
        await sender.codes(10)
        taken: list[bytes] = []
        for member in members:
            member.raw.send(wire.PINGREQ)
            while not isinstance(packet := await member.read_any(), mqtt5.PingRespPacket):
                assert isinstance(packet, mqtt5.PublishPacket)
                taken.append(bytes(packet.payload))
        assert sorted(taken, key=int) == [b"%d" % number for number in range(1, 11)]


async def test_a_message_carries_the_identifiers_of_its_subscriptions(clients: Clients) -> None:
    """All that match, in one copy [MQTT-3.3.4-3]."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients.five(bench)
        for number, name in ((3, "site/a"), (4, "site/#")):
            wanted = [mqtt5.TopicFilter(name, max_qos=AT_LEAST_ONCE)]
            client.send(mqtt5.SubscribePacket(1, wanted, subscription_id=number))
            answer = await client.read(mqtt5.SubAckPacket)
            assert [int(code) for code in answer.reason_codes] == [1]
        sender = await clients.five(bench, "dev2")
        sender.publish("site/a", b"x")
        packet = await client.read(mqtt5.PublishPacket)
        assert sorted(packet.subscription_ids) == [3, 4]


async def test_topics_that_begin_with_a_dollar_are_not_for_clients(clients: Clients) -> None:
    """A PUBLISH there is refused in words, and no wildcard takes it [MQTT-4.7.2-1]."""
    async with running(local_topics=LOCAL) as bench:
        reader = await clients.five(bench)
        assert await reader.subscribe("#", "+/a") == [1, 1]
        sender = await clients.five(bench, "dev2")
        sender.publish("$site/a", b"x")
        answer = await sender.read(mqtt5.PubAckPacket)
        assert int(answer.reason_code) == 0x90
        assert answer.reason_str
        sender.publish("site/a", b"y")
        packet = await reader.read(mqtt5.PublishPacket)
        assert bytes(packet.payload) == b"y"


async def test_a_filter_that_is_refused_has_its_code(clients: Clients) -> None:
    """The others of the packet are granted; 3.1.1 has one code for all refusals."""
    async with running(local_topics=LOCAL) as bench:
        client = await clients.five(bench)
        assert await client.subscribe("elsewhere", "site/#") == [0x8F, 1]
        old = await clients.raw(bench, client_id="dev2")
        old.send(wire.subscribe(("elsewhere", 2), ("site/#", 2)))
        assert await old.read() == (wire.SUBACK, b"\0\1\x80\2")


async def test_aliases_and_keep_alive_are_the_client_s(clients: Clients) -> None:
    """A client that allows topic aliases gets whole topics; its keep-alive holds as it is."""
    async with running(local_topics=LOCAL) as bench:
        client = await Client5.open(bench.port)
        answer = await client.connect("dev1", topic_alias_max=10, keep_alive=7)
        assert answer.server_keep_alive is None
        assert [each.connected.keep_alive.seconds for each in bench.connections()] == [7]
        await client.subscribe("site/#")
        sender = await clients.five(bench, "dev2")
        for packet_id in (1, 2):
            sender.publish("site/a", b"x", packet_id=packet_id)
            packet = await client.read(mqtt5.PublishPacket)
            assert (packet.topic, packet.topic_alias) == ("site/a", None)
        await client.close()
