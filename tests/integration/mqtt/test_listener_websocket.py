"""MQTT over WebSocket beside plain MQTT: real clients, odd frames, refused requests."""

from __future__ import annotations

import asyncio
import ssl

import paho.mqtt.client as paho
import pytest
import uvloop
from structlog.testing import capture_logs
from websockets.frames import CloseCode, Opcode

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.devices.server_tls import read_server_tls
from edgehub.heads.websocket import HEAD_BYTES_MAX
from tests.support import mqtt_wire as wire
from tests.support.certificates import Authority
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient
from tests.support.route_tables import until
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    """The authority of servers and clients."""
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority):
    """What a server shows, with client certificates allowed."""
    return read_server_tls("mqtt", *authority.server(), authority.certificate).context


@pytest.fixture
def identities(tmp_path):
    """One identity, with a password."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as entries:
        entries["dev1"] = Identity(id="dev1", password=PasswordHash.of(b"secret"))
    return path


async def signed_in(port: int, **options: object) -> WebSocketClient:
    """Connect and sign in as dev1; fails unless the hub accepts."""
    client = await WebSocketClient.open(port, **options)
    client.send(wire.connect("dev1"))
    assert await client.read() == bytes((wire.CONNACK, 2, 0, 0))
    return client


@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("path", ["/mqtt", "/$iothub/websocket"])
def test_paho(authority, server, protocol, path):
    """A paho client publishes with and without TLS and gets its own local message."""

    async def exchange(port: int, *, encrypted: bool) -> None:
        loop = asyncio.get_running_loop()
        seen: asyncio.Queue[object] = asyncio.Queue()
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id="dev1",
            protocol=protocol,
            transport="websockets",
        )
        client.ws_set_options(path=path)
        if encrypted:
            client.tls_set_context(ssl.create_default_context(cafile=authority.certificate))

        def notify(thing: object) -> None:
            loop.call_soon_threadsafe(seen.put_nowait, thing)

        client.on_connect = lambda *_: client.subscribe("te/x", 1)
        client.on_publish = lambda *_: notify("acknowledged")
        client.on_subscribe = lambda *_: notify("subscribed")
        client.on_message = lambda _c, _d, message: notify(message.payload)
        client.connect_async("127.0.0.1", port)
        client.loop_start()
        assert await seen.get() == "subscribed"
        for number in range(100):
            client.publish(EVENTS, b"%d" % number + b"x" * 1000, qos=1)
        for _ in range(100):
            assert await seen.get() == "acknowledged"
        large = bytes(200_000)
        client.publish("te/x", large, qos=0)
        assert {await seen.get(), await seen.get()} == {"acknowledged", large}
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)

    async def scenario() -> None:
        async with asyncio.timeout(15), running(tls=server, ws_port=0, wss_port=0) as bench:
            await exchange(bench.ws_port, encrypted=False)
            await exchange(bench.wss_port, encrypted=True)
            assert len(bench.router.messages) == 200
            assert bench.ended() == {"disconnect": 2}

    uvloop.run(scenario())


async def test_frames_need_not_be_packets():
    """Packets may share frames, span them, and be pieces of one endless message."""
    async with running(ws_port=0) as bench:
        client = await signed_in(bench.ws_port)
        packets = b"".join(wire.publish(EVENTS, b"%d" % n, qos=1, packet_id=n) for n in (1, 2, 3))
        client.send(packets[:5], packets[5:70], b"", packets[70:])
        client.send_fragments(wire.PINGREQ[:1], b"", wire.PINGREQ[1:] + wire.PINGREQ)
        client.send(b"?", opcode=Opcode.PING)
        received, pongs = b"", []
        wanted = b"".join(wire.puback(n) for n in (1, 2, 3)) + 2 * bytes((wire.PINGRESP, 0))
        while len(received) < len(wanted) or not pongs:
            frame = await client.read_frame()
            if frame.opcode is Opcode.PONG:
                pongs.append(frame)
            else:
                received += frame.data
        assert sorted(received) == sorted(wanted)
        assert [m.body for m in await bench.router.received(3)] == [b"1", b"2", b"3"]
        assert pongs[0].data == b"?"
        await client.close()


async def test_a_large_message_in_small_frames():
    """The limit of a frame is none of a message: a client may send all of its packets in one."""
    async with running(ws_port=0, message_bytes_max=1000) as bench:
        client = await signed_in(bench.ws_port)
        fragments = [wire.publish(EVENTS, bytes(900), packet_id=n, qos=1) for n in range(1, 101)]
        client.send_fragments(*fragments)
        assert len(await bench.router.received(100)) == 100
        await client.close()


@pytest.mark.parametrize(
    ("send", "code"),
    [
        (lambda client: client.send(b"text", opcode=Opcode.TEXT), CloseCode.UNSUPPORTED_DATA),
        (lambda client: client.send(bytes(80_000)), CloseCode.MESSAGE_TOO_BIG),
        (lambda client: client.send(b"x", opcode=Opcode.CONT), CloseCode.PROTOCOL_ERROR),
        (lambda client: client.send(wire.DISCONNECT), CloseCode.NORMAL_CLOSURE),
        (lambda client: client.send(b"\xf0\0"), CloseCode.NORMAL_CLOSURE),
    ],
    ids=["text", "large", "continuation", "disconnect", "no packet"],
)
async def test_the_hub_closes(send, code):
    """A client gets a close frame with the reason, and then the end of the connection."""
    async with running(ws_port=0, message_bytes_max=1000) as bench:
        client = await signed_in(bench.ws_port)
        send(client)
        assert (await client.closed()).code == code
        await client.close()
        await until(lambda: not bench.listener.statistics().connections)


async def test_the_client_closes():
    """A close frame is answered, the client has left, and its messages are taken."""
    async with running(ws_port=0) as bench:
        client = await signed_in(bench.ws_port)
        client.send(wire.publish(EVENTS, b"last", qos=1, packet_id=1))
        client.protocol.send_close(CloseCode.GOING_AWAY)
        client.flush()
        assert (await client.closed()).code == CloseCode.GOING_AWAY
        await client.close()
        assert [m.body for m in bench.router.messages] == [b"last"]
        await until(lambda: bench.ended() == {"lost": 1})


async def test_the_hub_stops():
    """What was acknowledged before the end arrives before the close frame."""
    async with running(ws_port=0) as bench:
        client = await signed_in(bench.ws_port)
        bench.router.holding = True
        client.send(wire.publish(EVENTS, qos=1, packet_id=7))
        await bench.router.received(1)
        draining = asyncio.ensure_future(bench.listener.drain())
        await asyncio.sleep(0)
        bench.router.settle()
        await draining
        await bench.listener.close()
        assert await client.read() == wire.puback(7)
        assert (await client.closed()).code == CloseCode.NORMAL_CLOSURE
        await client.close()


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        ({"path": "/"}, 404, "/mqtt and /$iothub/websocket"),
        ({"path": "/mqtt/x"}, 404, "/mqtt and /$iothub/websocket"),
        ({"subprotocol": None}, 400, "subprotocol"),
        ({"subprotocol": "amqp"}, 400, "subprotocol"),
        ({"headers": {"Origin": "https://example.org"}}, 403, "mqtt.anonymous"),
        ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403, "mqtt.anonymous"),
        ({"host": "rebound.example.org"}, 421, "mqtt.anonymous"),
    ],
)
async def test_a_refused_request(options, status, reason):
    """The answer and the log say why."""
    async with running(ws_port=0) as bench:
        with capture_logs() as events:
            client = await WebSocketClient.open(bench.ws_port, **options)
            await client.closed()
        assert client.response.status_code == status
        assert reason in client.response.body.decode()
        assert [(e["event"], reason in e["reason"]) for e in events if "reason" in e] == [
            ("mqtt.websocket_refused", True)
        ]
        await client.close()


async def test_pages_of_other_sites_with_credentials(identities):
    """Where clients need a password, a page may come from anywhere."""
    async with running(ws_port=0, anonymous=False, identities_file=identities) as bench:
        client = await WebSocketClient.open(
            bench.ws_port,
            "/mqtt?session=1",
            host="hub.example.org",
            headers={"Origin": "https://example.org"},
        )
        client.send(wire.connect("dev1", user="dev1", password=b"secret"))
        assert await client.read() == bytes((wire.CONNACK, 2, 0, 0))
        await client.close()


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", 426, "Connection"),
        (b"POST /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "POST"),
        (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nX: " + bytes(20_000), 431, "8192"),
        (b"GET /mqtt HTTP/1.1\r\n" + b"X: y\r\n" * (HEAD_BYTES_MAX // 6 + 1), 431, "128 headers"),
        (b"GET /mqtt HTTP/1.1\r\n" + (b"X: " + bytes(8_000) + b"\r\n") * 3, 400, "header value"),
        (b"GET /mqtt HTTP/1.1\r\n" + (b"X: " + b"y" * 8_000 + b"\r\n") * 3, 431, "16384 bytes"),
        (wire.connect("dev1") + b"\r\n", 400, "MQTT"),
        (b"\r\n\r\n", 400, "request line"),
    ],
    ids=["no upgrade", "post", "long", "many", "malformed", "large", "MQTT", "empty"],
)
async def test_what_is_no_handshake(request_bytes, status, reason):
    """Answer and log say once what is wrong; the next client gets in."""
    async with running(ws_port=0) as bench:
        with capture_logs() as events:
            client = await RawClient.open(bench.ws_port)
            client.send(request_bytes)
            answer = await client.rest()
            await client.close()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert reason in answer.partition(b"\r\n\r\n")[2].decode()
        refusals = [e for e in events if e["event"].startswith("mqtt.websocket")]
        assert [(e["event"], reason in e["reason"]) for e in refusals] == [
            ("mqtt.websocket_refused", True)
        ]
        await (await signed_in(bench.ws_port)).close()


async def test_a_silent_client():
    """The time limit of the sign-in includes the handshake."""
    async with running(ws_port=0, connect_timeout_s=0.2) as bench:
        before = await RawClient.open(bench.ws_port)
        after = await WebSocketClient.open(bench.ws_port)
        await before.closed()
        assert (await after.closed()).code == CloseCode.NORMAL_CLOSURE
        assert bench.ended() == {"connect_timeout": 2}
        await before.close()
        await after.close()


async def test_a_client_that_does_not_read():
    """It is no longer read while its answers pile up, and goes on where it was."""
    async with running(ws_port=0, write_buffer_bytes_max=1000) as bench:
        client = await signed_in(bench.ws_port)
        client.stop_reading()
        while not bench.listener.statistics().paused:
            client.send(wire.PINGREQ * 1000)
            await client.flushed()
        client.read_on()
        while bench.listener.statistics().paused:
            assert set(await client.read()) == {wire.PINGRESP, 0}
        await client.close()


async def test_sign_in_by_certificate(authority, server, identities):
    """A certificate signs in over WebSocket as it does without."""
    options = {"identities_file": identities, "anonymous": False}
    async with running(tls=server, wss_port=0, **options) as bench:
        context = ssl.create_default_context(cafile=authority.certificate)
        context.load_cert_chain(*authority.client("dev1"))
        client = await signed_in(bench.wss_port, tls=context)
        assert bench.connections()[0].client.identity.id == "dev1"
        await client.close()
