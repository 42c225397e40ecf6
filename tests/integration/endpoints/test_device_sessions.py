"""A device's own upstream session, at a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import paho.mqtt.publish as paho_publish
import pytest

from edgehub.clock import Clock, ManualClock, SystemClock
from edgehub.endpoints.device_session import (
    LASTED_S,
    DeviceSession,
    SessionEnd,
    SessionError,
    SessionOptions,
)
from edgehub.endpoints.device_sessions import OPENINGS_MAX, DeviceSessions
from edgehub.endpoints.device_twins import ANSWERS
from edgehub.message import DELIVERED, FailureKind
from tests.support.memory_queue import a_row
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_peer import read_packet

TOPIC = b"devices/d/messages/events/"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """One broker for all tests that do not stop it."""
    with Mosquitto(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


class Bench:
    """Sessions of the device `d`, and what they told."""

    def __init__(self, port: int, **options) -> None:
        self.options = SessionOptions(**{"host": "127.0.0.1", "port": port, **options})
        self.ends: list[SessionEnd] = []
        self.ended = asyncio.Event()
        self.messages: asyncio.Queue = asyncio.Queue()
        self.results: asyncio.Queue = asyncio.Queue()

    def session(self, clock: Clock | None = None) -> DeviceSession:
        """Make a session."""
        return DeviceSession(
            "d",
            self.options,
            clock=clock or SystemClock(),
            ended=self._ended,
            message=lambda _device, packet: self.messages.put_nowait(packet),
        )

    def send(self, session: DeviceSession, number: int, size: int = 1) -> None:
        """Send a row with a body of so many bytes."""
        row = a_row(number, body=bytes(size))
        session.send(row, TOPIC, lambda _row, result: self.results.put_nowait(result))

    def _ended(self, _device: str, end: SessionEnd, _reason: str) -> None:
        self.ends.append(end)
        self.ended.set()


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
async def bench(request, broker):
    """Sessions of either version."""
    return Bench(broker.port, level=request.param)


async def test_rows_are_confirmed(bench):
    """Each once, and the session closes with a goodbye."""
    session = bench.session()
    await session.open()
    for number in range(1, 301):
        bench.send(session, number)
    async with asyncio.timeout(10):
        results = [await bench.results.get() for _ in range(300)]
    assert set(results) == {DELIVERED}
    assert session.in_flight == 0
    assert session.unsent_bytes() == 0
    await session.close()
    assert not session.is_open
    assert bench.ends == [SessionEnd.CLOSED]


async def test_a_session_is_opened_again_after_its_end(bench):
    """As often as it is needed."""
    session = bench.session()
    for number in range(3):
        await session.open()
        bench.send(session, number + 1)
        async with asyncio.timeout(10):
            assert await bench.results.get() is DELIVERED
        await session.close()
        await session.close()


async def test_a_second_session_takes_over(bench):
    """The first one hears of it, settles its rows, and does not come back by itself."""
    first, second = bench.session(), bench.session()
    await first.open()
    await second.open()
    async with asyncio.timeout(10):
        await bench.ended.wait()
    assert bench.ends[0] in {SessionEnd.TAKEN_OVER, SessionEnd.DROPPED}
    assert not first.is_open
    assert second.is_open
    await second.close()


@pytest.mark.parametrize("lasted", [False, True])
async def test_a_close_without_a_reason_may_come_soon_or_late(broker, lasted):
    """A session that lasted is told from one that did not: its peer may have had other reasons."""
    clock = ManualClock()
    bench = Bench(broker.port, level=4, keep_alive_s=6000)
    first, second = bench.session(clock), bench.session(clock)
    await first.open()
    await clock.advance(LASTED_S + 1 if lasted else LASTED_S / 2)
    await second.open()
    async with asyncio.timeout(10):
        await bench.ended.wait()
    assert bench.ends == [SessionEnd.DROPPED_LATE if lasted else SessionEnd.DROPPED]
    await second.close()


async def test_a_lost_broker_settles_what_is_under_way(tmp_path):
    """As away, so that it comes again, and a session that cannot be opened says why."""
    broker = Mosquitto(tmp_path / "lost").start()
    bench = Bench(broker.port)
    session = bench.session()
    await session.open()
    broker.stop()
    bench.send(session, 1)
    async with asyncio.timeout(10):
        assert (await bench.results.get()).kind is FailureKind.UNREACHABLE
        await bench.ended.wait()
    with pytest.raises(SessionError):
        await session.open()
    assert not session.is_open


class StrictPeer:
    """Speaks MQTT 5 to one device, confirms on request, and ends the session over what it forbids.

    Attributes:
        unconfirmed: Packet ids of PUBLISHes without PUBACK, by connection the newest.
        most: The largest number of them.
    """

    def __init__(self, connack: bytes, *, bytes_max: int = 2**20) -> None:
        self._connack = connack
        self._bytes_max = bytes_max
        self._changed = asyncio.Event()
        self.connects = 0
        self.unconfirmed: list[int] = []
        self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self.unconfirmed.clear()
        self._writer = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, _, content = await read_packet(reader)
                if kind == 1:
                    self.connects += 1
                    writer.write(self._connack)
                elif len(content) > self._bytes_max:
                    writer.write(b"\xe0\x02\x95\x00")
                    break
                elif kind == 3:
                    at = 2 + int.from_bytes(content[:2], "big")
                    self.unconfirmed.append(int.from_bytes(content[at : at + 2], "big"))
                    self.most = max(self.most, len(self.unconfirmed))
                self._changed.set()
        writer.close()
        await writer.wait_closed()

    async def until_unconfirmed(self, count: int) -> None:
        """Wait for so many PUBLISHes without PUBACK."""
        while len(self.unconfirmed) < count:
            self._changed.clear()
            await self._changed.wait()

    def confirm(self) -> None:
        """Confirm what has come."""
        mids, self.unconfirmed = self.unconfirmed, []
        self._writer.write(b"".join(b"\x40\x02" + mid.to_bytes(2, "big") for mid in mids))


@pytest.fixture
async def listen():
    """Return a function that lets a strict peer listen; gives its port."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(peer: StrictPeer) -> int:
            server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            return server.sockets[0].getsockname()[1]

        yield start


async def test_the_peers_receive_maximum_is_kept(listen):
    """200 rows through a peer that allows 10: never 11 unconfirmed, one connection (L-07)."""
    peer = StrictPeer(b"\x20\x06\x00\x00\x03\x21\x00\x0a")
    bench = Bench(await listen(peer))
    session = bench.session()
    await session.open()
    for number in range(200):
        bench.send(session, number + 1)
    assert session.in_flight == 200
    assert session.unsent_bytes() > 190 * len(TOPIC)
    async with asyncio.timeout(10):
        for confirmed in range(0, 200, 10):
            await peer.until_unconfirmed(10)
            peer.confirm()
            results = [await bench.results.get() for _ in range(10)]
            assert set(results) == {DELIVERED}
            assert session.in_flight == 190 - confirmed
    assert (peer.most, peer.connects) == (10, 1)
    await session.close()
    # What waits for room has left nobody: it comes again like what is under way.
    await session.open()
    for number in range(15):
        bench.send(session, number + 1)
    await session.close()
    results = [bench.results.get_nowait() for _ in range(15)]
    assert {result.kind for result in results} == {FailureKind.UNREACHABLE}
    assert session.in_flight == 0


async def test_only_a_peer_that_owes_a_confirmation_is_given_up(listen):
    """Each PUBACK gives it the time anew, and without rows it owes none."""
    clock = ManualClock()
    peer = StrictPeer(b"\x20\x06\x00\x00\x03\x21\x00\x0a")
    bench = Bench(await listen(peer), keep_alive_s=6000, ack_timeout_s=60)
    session = bench.session(clock)
    await session.open()
    for number in range(30):
        bench.send(session, number + 1)
    async with asyncio.timeout(10):
        for _ in range(3):
            await peer.until_unconfirmed(10)
            await clock.advance(45)
            peer.confirm()
            assert {await bench.results.get() for _ in range(10)} == {DELIVERED}
        await clock.advance(90)
        assert session.is_open
        bench.send(session, 31)
        await peer.until_unconfirmed(1)
        await clock.advance(90)
        await bench.ended.wait()
    assert bench.ends == [SessionEnd.LOST]
    result = bench.results.get_nowait()
    assert result.kind is FailureKind.UNREACHABLE
    assert result.reason.startswith("no acknowledgement for 6")


async def test_what_is_too_large_for_the_peer_never_leaves(listen):
    """P-10: measured as a whole, by what the peer has said; the rows around it go."""
    peer = StrictPeer(b"\x20\x08\x00\x00\x05\x27\x00\x00\x03\xe8")
    bench = Bench(await listen(peer))
    session = bench.session()
    await session.open()
    fits = 1000 - 3 - 2 - len(TOPIC) - 2 - 1
    for number, size in enumerate((10, fits + 1, fits, 10)):
        bench.send(session, number + 1, size)
    async with asyncio.timeout(10):
        await peer.until_unconfirmed(3)
        peer.confirm()
        results = [await bench.results.get() for _ in range(4)]
    assert [result.kind for result in results] == [FailureKind.TOO_LARGE, None, None, None]
    assert results[0].reason == "packet of 1001 bytes, the peer takes 1000"
    assert bench.ends == []
    await session.close()


async def test_a_peer_that_ends_the_session_over_a_packet_names_it_by_its_code(listen):
    """P-10: it did not say how much it takes; the largest row is it, and does not come again."""
    peer = StrictPeer(b"\x20\x03\x00\x00\x00", bytes_max=1000)
    bench = Bench(await listen(peer))
    session = bench.session()
    await session.open()
    for number, size in enumerate((10, 2000, 900)):
        bench.send(session, number + 1, size)
    async with asyncio.timeout(10):
        results = [await bench.results.get() for _ in range(3)]
        await bench.ended.wait()
    assert [result.kind for result in results] == [
        FailureKind.TOO_LARGE,
        FailureKind.UNREACHABLE,
        FailureKind.UNREACHABLE,
    ]
    assert "packet of 20" in results[0].reason
    assert bench.ends == [SessionEnd.LOST]


async def test_no_row_is_to_blame_for_a_question_that_is_too_large(listen):
    """P-10: what was asked beside the rows was larger than all of them; a known limit is kept."""
    peer = StrictPeer(b"\x20\x03\x00\x00\x00", bytes_max=1000)
    bench = Bench(await listen(peer))
    session = bench.session()
    await session.open()
    bench.send(session, 1, 900)
    session.publish(b"$iothub/twin/PATCH/properties/reported/?$rid=1", bytes(3000))
    async with asyncio.timeout(10):
        assert (await bench.results.get()).kind is FailureKind.UNREACHABLE
        await bench.ended.wait()
    strict = StrictPeer(b"\x20\x08\x00\x00\x05\x27\x00\x00\x03\xe8")
    session = Bench(await listen(strict)).session()
    await session.open()
    with pytest.raises(SessionError, match="the peer takes 1000"):
        session.publish(b"t", bytes(3000))
    assert session.is_open
    await session.close()


async def test_messages_to_the_device_come_over_its_session(bench, broker):
    """While it is open, and those that were sent meanwhile with the next one."""
    session = bench.session()
    await session.open()
    session.subscribe("devices/d/messages/devicebound/#")
    topic = "devices/d/messages/devicebound/p=1"

    async with asyncio.timeout(10):
        await _publish(broker, topic, b"one")
        message = await bench.messages.get()
        assert (message.topic, message.body) == (topic, b"one")
        session.acknowledge(message)
        await session.close()
        await _publish(broker, topic, b"two")
        await session.open()
        message = await bench.messages.get()
        assert message.body == b"two"
        session.acknowledge(message)
        await session.close()


async def test_a_broker_that_forgot_its_sessions_is_subscribed_to_again(tmp_path):
    """Each opening subscribes to messages to the device, as long as it listens here."""
    bodies: asyncio.Queue = asyncio.Queue()

    def accept(_target, body, *_properties, done, **_) -> None:
        bodies.put_nowait(body)
        done()

    with Mosquitto(tmp_path / "forgets") as broker:
        sessions = DeviceSessions(
            SimpleNamespace(id="upstream"),
            SessionOptions(host="127.0.0.1", port=broker.port),
            on_behalf=False,
            clock=SystemClock(),
            device_bound=accept,
        )
        sessions.subscribe_device("d")
        session = sessions.session("d")
        async with asyncio.timeout(15):
            for _ in range(2):
                await sessions.open("d")
                await session.listen(ANSWERS)  # answered behind the subscription before it
                await _publish(broker, "devices/d/messages/devicebound/", b"x")
                assert await bodies.get() == b"x"
                await session.close()
                await asyncio.to_thread(_restart, broker)
            sessions.unsubscribe_device("d")
            await sessions.open("d")
            await _publish(broker, "devices/d/messages/devicebound/", b"x")
            await session.listen(ANSWERS)  # answered behind what the broker has for the device
            assert bodies.empty()
            await session.close()


async def test_answers_are_listened_for_in_each_session(tmp_path):
    """A peer that forgot the session is asked again before a question goes out."""
    with Mosquitto(tmp_path / "forgets") as broker:
        bench = Bench(broker.port)
        session = bench.session()
        async with asyncio.timeout(15):
            for _ in range(2):
                await session.open()
                await session.listen(ANSWERS)
                await _publish(broker, "$iothub/twin/res/200/?$rid=1", b"{}")
                assert (await bench.messages.get()).body == b"{}"
                await session.close()
                await asyncio.to_thread(_restart, broker)


async def _publish(broker: Mosquitto, topic: str, body: bytes) -> None:
    await asyncio.to_thread(
        paho_publish.single, topic, body, qos=1, hostname="127.0.0.1", port=broker.port
    )


def _restart(broker: Mosquitto) -> None:
    broker.stop()
    broker.start()


async def test_a_device_signs_in_with_its_own_password(tmp_path):
    """Name and file come from templates; a wrong password is an error, not a session."""
    users = {"d": "secret", "e": "other"}
    with Mosquitto(tmp_path / "users", users=users) as broker:
        await asyncio.to_thread((tmp_path / "d.password").write_text, "secret\n")
        bench = Bench(
            broker.port, username="{device}", password_file=str(tmp_path / "{device}.password")
        )
        session = bench.session()
        await session.open()
        await session.close()
        await asyncio.to_thread((tmp_path / "d.password").write_text, "wrong\n")
        with pytest.raises(SessionError, match="refused"):
            await session.open()
        await asyncio.to_thread((tmp_path / "d.password").unlink)
        with pytest.raises(SessionError):
            await session.open()


async def test_an_opening_may_be_cancelled():
    """Nothing stays open, whatever the peer does."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _r, writer: writers.append(writer), "127.0.0.1", 0)
    bench = Bench(server.sockets[0].getsockname()[1])
    session = bench.session()
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(session.open())
        await asyncio.wait({opening}, timeout=0.2)
        opening.cancel()
    assert opening.cancelled()
    assert not session.is_open
    assert bench.ends == []
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def test_few_sessions_are_opened_at_once():
    """When a link comes back all devices want theirs; the peer gets them in bounded numbers."""
    waiting: list[asyncio.StreamWriter] = []
    writers: list[asyncio.StreamWriter] = []
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(100)
        waiting.append(writer)
        seen.append(len(waiting))
        # The next turns of the loop bring whoever else is let through.
        await asyncio.sleep(0.01)
        waiting.remove(writer)
        writer.write(b"\x20\x03\x00\x00\x00")

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=500)
    sessions = DeviceSessions(
        SimpleNamespace(id="upstream"),
        SessionOptions(host="127.0.0.1", port=server.sockets[0].getsockname()[1]),
        on_behalf=False,
        clock=SystemClock(),
        device_bound=None,
    )
    names = [f"d{number}" for number in range(3 * OPENINGS_MAX)]
    async with asyncio.timeout(15), asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(sessions.open(name))
    assert sessions.open_sessions() == len(names)
    assert max(seen) <= OPENINGS_MAX
    for name in names:
        await sessions.session(name).close()
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def test_a_session_that_is_being_opened_is_not_given_up_for_room(monkeypatch):
    """Nor one that is being closed; each device has one session object as long as it is in use."""
    monkeypatch.setattr("edgehub.endpoints.device_sessions.SESSIONS_KEPT", 2)
    writers: list[asyncio.StreamWriter] = []
    connected = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(100)
        connected.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    sessions = DeviceSessions(
        SimpleNamespace(id="upstream"),
        SessionOptions(host="127.0.0.1", port=server.sockets[0].getsockname()[1]),
        on_behalf=False,
        clock=SystemClock(),
        device_bound=None,
    )
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(sessions.open("d"))
        await connected.wait()
        before = sessions.session("d")
        for number in range(5):
            sessions.session(f"other-{number}")
        assert sessions.session("d") is before
        writers[0].write(b"\x20\x03\x00\x00\x00")
        await opening
    assert sessions.open_sessions() == 1
    writers[0].close()
    await writers[0].wait_closed()
    async with asyncio.timeout(10):
        while not before.is_idle:  # noqa: ASYNC110 - a session has no event of its end
            await asyncio.sleep(0.01)
    assert sessions.open_sessions() == 0
    server.close()
