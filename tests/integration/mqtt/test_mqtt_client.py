"""The MQTT client: against a real Mosquitto in both versions, and against a peer made by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from edgehub.clock import ManualClock, SystemClock
from edgehub.mqtt.client import Client, ClientOptions, LinkError
from edgehub.mqtt.packets import publish
from edgehub.mqtt.subscription_options import NO_LOCAL
from tests.support import mqtt_wire as wire
from tests.support.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from edgehub.clock import Clock
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_packets import RefusedPublish

pytestmark = pytest.mark.integration

LEVELS = pytest.mark.parametrize("level", [4, 5])
NO_PROPERTIES = {4: b"", 5: b"\0"}
CONNACK = {4: b"\x20\x02\x00\x00", 5: b"\x20\x03\x00\x00\x00"}


class Bench:
    """A client, and what it was called with."""

    def __init__(self, clock: Clock | None = None, **options: object) -> None:
        self.confirmed: list[int] = []
        self.unmatched: list[int] = []
        self.refused: list[RefusedPublish] = []
        self.messages: list[IncomingPublish] = []
        self.ends: list[str] = []
        self.client = Client(
            ClientOptions(**({"client_id": "c", "clean_session": True} | options)),
            clock=clock or SystemClock(),
            on_confirmed=self.confirmed.extend,
            on_unmatched=self.unmatched.extend,
            on_refused=self.refused.extend,
            on_messages=self.messages.extend,
            on_closed=self.ends.append,
        )

    async def open(self, port: int) -> Client:
        """Sign in."""
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        async with asyncio.timeout(5):
            await self.client.open(sock)
        return self.client


async def until(condition) -> None:
    """Wait for what the client does with what it reads; it has no event for it."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - lists have no event
            await asyncio.sleep(0.005)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path) as running:
        yield running


@LEVELS
async def test_messages_go_round_at_mosquitto(broker: Mosquitto, level: int) -> None:
    """Subscribe, publish with both qualities, confirm, unsubscribe."""
    bench = Bench(level=level)
    client = await bench.open(broker.port)
    assert await client.subscribe(["a/+", "b"]) == []
    client.begin()
    none = NO_PROPERTIES[level]
    ids = []
    for _ in range(3):
        ids.append(client.next_packet_id(ids))
    for packet_id in ids:
        client.write(publish(b"a/1", b"%d" % packet_id, packet_id, properties=none))
    client.write(publish(b"b", b"last", 0, qos=0, properties=none))
    await until(lambda: len(bench.messages) == 4 and len(bench.confirmed) == 3)
    assert bench.confirmed == ids
    assert [(each.topic, each.body, each.qos) for each in bench.messages] == [
        *(("a/1", b"%d" % packet_id, 1) for packet_id in ids),
        ("b", b"last", 0),
    ]
    client.acknowledge_all(bench.messages)
    await client.unsubscribe(["a/+", "b"])
    await client.close()
    assert (bench.ends, client.is_open) == (["closed by this hub"], False)


@LEVELS
async def test_messages_of_qos_2_come_once_and_are_done_with(broker: Mosquitto, level: int) -> None:
    """The acknowledgement is a PUBREC, PUBREL is answered; a kept session has nothing to repeat."""
    options = {"client_id": "kept", "clean_session": False, "level": level}
    receiver = Bench(**options)
    client = await receiver.open(broker.port)
    codes = await client.request_subscribe([("q", 2)])
    assert codes == b"\x02"
    client.begin()
    async with aiomqtt.Client("127.0.0.1", broker.port) as sender:
        await sender.publish("q", b"twice?", qos=2)
    await until(lambda: receiver.messages)
    (message,) = receiver.messages
    assert (message.body, message.qos) == (b"twice?", 2)
    client.acknowledge(message)
    # The answer to a later packet follows PUBREL.
    await client.subscribe(["other"])
    await client.close()
    again = Bench(**options)
    client = await again.open(broker.port)
    client.begin()
    assert client.connack.session_present
    await client.subscribe(["other"])
    await client.close()
    assert again.messages == []


@LEVELS
async def test_messages_of_qos_2_are_confirmed_once_the_server_has_them(
    broker: Mosquitto, level: int
) -> None:
    """Its PUBREC is answered; that nobody gets it is told where the version has a word for it."""
    bench = Bench(level=level)
    client = await bench.open(broker.port)
    for qos, topic in ((2, b"q"), (1, b"nobody")):
        packet_id = client.next_packet_id(())
        client.write(publish(topic, b"x", packet_id, qos=qos, properties=NO_PROPERTIES[level]))
    await until(lambda: len(bench.confirmed) == 2)
    assert bench.unmatched == ([2] if level == 5 else [])
    assert bench.refused == []
    await client.close()


async def test_options_of_a_subscription_of_mqtt_5(broker: Mosquitto) -> None:
    """No local keeps the client's own messages away; the identifier comes with the others."""
    bench = Bench(level=5)
    client = await bench.open(broker.port)
    assert await client.subscribe(["n"], options=1 | NO_LOCAL) == []
    assert await client.subscribe(["i"], identifier=7) == []
    client.begin()
    for topic in (b"n", b"i"):
        client.write(publish(topic, b"x", client.next_packet_id(()), properties=b"\0"))
    await until(lambda: len(bench.confirmed) == 2 and bench.messages)
    assert [(each.topic, each.properties) for each in bench.messages] == [("i", b"\x0b\x07")]
    await client.close()


@pytest.mark.parametrize(("level", "text"), [(4, "Not authorized"), (5, "Not authorized")])
async def test_a_wrong_password_is_a_refusal_for_good(
    tmp_path: Path, level: int, text: str
) -> None:
    """With its words, in both versions; the socket is closed."""
    with Mosquitto(tmp_path, users={"u": "right"}) as broker:
        bench = Bench(level=level, username="u", password="wrong")
        with pytest.raises(LinkError, match=text) as refused:
            await bench.open(broker.port)
        assert (refused.value.parked, refused.value.connect_refused) == (True, True)
        assert bench.ends == []


async def test_a_take_over_has_a_code_in_mqtt_5(broker: Mosquitto) -> None:
    """Whichever way the broker says it, the older connection ends and is closed by the peer."""
    first, second = Bench(level=5), Bench(level=5)
    one = await first.open(broker.port)
    two = await second.open(broker.port)
    async with asyncio.timeout(5):
        assert "closed by the peer" in await one.wait_closed()
    assert one.unsent_at_close == 0
    assert two.is_open
    await two.close()


class Peer:
    """One accepted connection of a server made by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def packet(self) -> bytes:
        """Read one short packet."""
        async with asyncio.timeout(5):
            head = await self.reader.readexactly(2)
            return head + await self.reader.readexactly(head[1])


@contextlib.asynccontextmanager
async def connected(
    bench: Bench, connack: bytes | None = None
) -> AsyncIterator[tuple[Client, Peer]]:
    """Connect a client to a peer made by hand."""
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: peers.put_nowait(Peer(reader, writer)), "127.0.0.1", 0
    )
    async with server:
        opening = asyncio.create_task(bench.open(server.sockets[0].getsockname()[1]))
        peer = await peers.get()
        await peer.packet()
        peer.writer.write(connack or CONNACK[bench.client.level])
        try:
            yield await opening, peer
        finally:
            bench.client.abort("end of test")
            peer.writer.close()


@LEVELS
async def test_messages_wait_until_begin(level: int) -> None:
    """What a server that has kept the session sends right behind CONNACK is not lost."""
    none = NO_PROPERTIES[level]
    early = b"".join(publish(b"t", b"%d" % n, n, properties=none) for n in (1, 2))
    bench = Bench(level=level)
    async with connected(bench, CONNACK[level] + early) as (client, peer):
        peer.writer.write(publish(b"t", b"3", 3, properties=none))
        peer.writer.write(wire.puback(9))
        await until(lambda: bench.confirmed == [9])
        assert bench.messages == []
        client.begin()
        assert [each.body for each in bench.messages] == [b"1", b"2", b"3"]


async def test_what_connack_of_mqtt_5_says_is_kept() -> None:
    """Bounds and abilities of the server, and its keep-alive in place of the client's."""
    clock = ManualClock()
    said = bytes.fromhex("21000a 2700000400 2500 2a00 2900 130005")
    bench = Bench(clock, level=5, keep_alive_s=60)
    connack = bytes((0x20, len(said) + 3, 1, 0, len(said))) + said
    async with connected(bench, connack) as (client, peer):
        known = client.connack
        assert (known.session_present, known.receive_maximum) == (True, 10)
        assert (known.packet_bytes_max, known.keep_alive_s) == (1024, 5)
        assert (known.retains, known.shares, known.identifies) == (False, False, False)
        await clock.advance(5)
        assert await peer.packet() == wire.PINGREQ


async def test_a_quiet_connection_is_asked_and_a_silent_one_is_given_up() -> None:
    """PINGREQ after the keep-alive without packets; the same again without answer is the end."""
    clock = ManualClock()
    bench = Bench(clock, keep_alive_s=10)
    async with connected(bench) as (client, peer):
        await clock.advance(9)
        client.write(publish(b"t", b"", 1))
        peer.writer.write(wire.puback(1))
        assert (await peer.packet())[0] == 0x32
        await until(lambda: bench.confirmed == [1])
        await clock.advance(9.5)
        await clock.advance(0.5)
        assert await peer.packet() == wire.PINGREQ
        peer.writer.write(b"\xd0\x00\x40\x02\x00\x02")
        await until(lambda: bench.confirmed == [1, 2])
        await clock.advance(10)
        assert await peer.packet() == wire.PINGREQ
        await clock.advance(9.9)
        assert client.is_open
        await clock.advance(0.1)
        assert not client.is_open
        assert await client.wait_closed() == "no answer to PINGREQ, silent for 20 s"
        assert client.unsent_at_close is None


@pytest.mark.parametrize(
    ("level", "junk", "words", "answer"),
    [
        (4, b"\x10\x00", "not for a server to send", b""),
        (4, CONNACK[4], "a second CONNACK", b""),
        (5, CONNACK[5], "a second CONNACK", b"\xe0\x01\x81"),
        (5, b"\x51\x02\x00\x01", "not for a server to send", b"\xe0\x01\x81"),
        (5, b"\x20\x06\x00\x00\x03\x21\x00\x00", "is 0", b"\xe0\x01\x82"),
    ],
)
async def test_a_peer_that_speaks_no_mqtt_is_closed(
    level: int, junk: bytes, words: str, answer: bytes
) -> None:
    """With what was wrong as the reason; one of MQTT 5 is told, as far as bytes still go out."""
    bench = Bench(level=level)
    async with connected(bench) as (client, peer):
        peer.writer.write(wire.puback(3) + junk)
        async with asyncio.timeout(5):
            reason = await client.wait_closed()
        assert reason.startswith("the peer broke the MQTT protocol: ")
        assert words in reason
        assert bench.confirmed == [3]
        assert bench.ends == [reason]
        assert client.unsent_at_close is None
        with contextlib.suppress(ConnectionError):
            assert await peer.reader.read(100) in {answer, b""}


@pytest.mark.parametrize("first", [b"\x40\x02\x00\x01", b"\xd0\x00", b"\x30\x03\x00\x01t"])
async def test_the_first_packet_is_connack(first: bytes) -> None:
    """Anything else is refused, and counts as an answer to CONNECT."""
    bench = Bench()
    with pytest.raises(LinkError, match="the first packet is not CONNACK") as refused:
        async with connected(bench, first):
            pass
    assert refused.value.connect_refused
    assert (bench.confirmed, bench.messages, bench.ends) == ([], [], [])


async def test_a_disconnect_of_the_server_is_the_reason() -> None:
    """Code and words; it is the peer that closed, with nothing unsent."""
    bench = Bench(level=5)
    async with connected(bench) as (client, peer):
        peer.writer.write(bytes.fromhex("e007 8e 05 1f0002") + b"no")
        async with asyncio.timeout(5):
            assert await client.wait_closed() == "closed by the peer: Session taken over (no)"
        assert (client.close_code, client.unsent_at_close) == (0x8E, 0)


async def test_bytes_beyond_the_socket_wait_and_are_counted() -> None:
    """What a full socket does not take leaves later, in order, and shows as unsent."""
    bench = Bench()
    async with connected(bench) as (client, peer):
        data = bytes(range(256)) * 40_000
        client.write(data)
        client.write(b"end")
        await asyncio.sleep(0)
        assert 0 < client.unsent_bytes() <= len(data) + 3
        async with asyncio.timeout(10):
            assert await peer.reader.readexactly(len(data) + 3) == data + b"end"
        assert client.unsent_bytes() == 0


@pytest.mark.parametrize("resets", [False, True])
async def test_what_had_not_left_at_the_peers_close_is_known(*, resets: bool) -> None:
    """After FIN and after RST: less than was written, more than fits into sockets."""
    bench = Bench()
    async with connected(bench) as (client, peer):
        client.write(bytes(20_000_000))
        await asyncio.sleep(0.05)
        sock: socket.socket = peer.writer.get_extra_info("socket")
        if resets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.writer.transport.abort()
        async with asyncio.timeout(5):
            await client.wait_closed()
        assert client.unsent_at_close is not None
        assert 1_000_000 < client.unsent_at_close < 20_000_100


async def test_requests_end_with_the_connection() -> None:
    """Those that wait get the reason, later ones too; nothing is written any more."""
    bench = Bench()
    async with connected(bench) as (client, peer):
        waiting = asyncio.create_task(client.subscribe(["a"]))
        assert (await peer.packet())[0] == 0x82
        client.abort("enough")
        with pytest.raises(LinkError, match="enough"):
            await waiting
        with pytest.raises(LinkError, match="enough"):
            await client.unsubscribe(["a"])
        client.write(b"x")
        client.acknowledge_all(bench.messages)
        assert client.unsent_bytes() == 0


async def test_a_suback_with_too_few_codes_is_an_error() -> None:
    """Which filter was granted cannot be told."""
    bench = Bench()
    async with connected(bench) as (client, peer):
        waiting = asyncio.create_task(client.subscribe(["a", "b"]))
        packet = await peer.packet()
        peer.writer.write(b"\x90\x03" + packet[2:4] + b"\x01")
        with pytest.raises(LinkError, match="1 codes in SUBACK for 2 filters"):
            await waiting


async def test_packet_ids_go_round_and_leave_out_what_is_in_use() -> None:
    """From 1 to 65 535, then from 1 again; an id that awaits its SUBACK is in use too."""
    bench = Bench()
    async with connected(bench) as (client, _):
        answer = client.request_subscribe([("a", 1)])
        ids = [client.next_packet_id((5,)) for _ in range(65_535)]
        assert ids[:4] == [2, 3, 4, 6]
        assert ids[-3:] == [65_535, 2, 3]
        answer.cancel()


async def test_a_pause_nests() -> None:
    """Reading goes on after as many resumes as there were pauses."""
    bench = Bench()
    async with connected(bench) as (client, peer):
        client.pause_reading()
        client.pause_reading()
        peer.writer.write(wire.puback(1))
        client.resume_reading()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await until(lambda: bench.confirmed)
        client.resume_reading()
        await until(lambda: bench.confirmed == [1])


async def test_a_close_sends_what_was_written_and_a_disconnect() -> None:
    """In this order; a peer that does not read is left after a second."""
    bench = Bench()
    async with connected(bench) as (client, peer):
        client.write(publish(b"t", b"x", 1))
        await client.close()
        assert await peer.packet() == publish(b"t", b"x", 1)
        assert await peer.packet() == wire.DISCONNECT
        assert bench.ends == ["closed by this hub"]
    bench = Bench()
    async with connected(bench) as (client, _):
        client.write(bytes(20_000_000))
        async with asyncio.timeout(4):
            await client.close()
        assert bench.ends == ["closed by this hub"]
