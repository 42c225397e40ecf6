"""WebSocket below a protocol, with a transport that records what is done to it."""

from __future__ import annotations

import asyncio

import pytest
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.uri import parse_uri

from edgehub.clock import SystemClock
from edgehub.heads import websocket
from edgehub.heads.websocket import WebSocketConnection, WebSocketOptions
from tests.support.route_tables import until


class Recorder(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep data."""
        assert not self.is_lost
        self.received.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep that it is the end."""
        del exc
        assert not self.is_lost
        self.is_lost = True


class PeerTransport(asyncio.Transport):
    """The transport of a TCP connection whose peer is the test."""

    def __init__(self) -> None:
        super().__init__({})
        self.written = b""
        self.is_reading = True
        self._is_closing = False

    def write(self, data: bytes) -> None:
        """Keep what is written."""
        self.written += data

    def pause_reading(self) -> None:
        """Record that nothing is read."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Record that more is read."""
        self.is_reading = True

    def can_write_eof(self) -> bool:
        """Return that the write side can be closed."""
        return True

    def write_eof(self) -> None:
        """Close the write side."""

    def abort(self) -> None:
        """Close."""
        self._is_closing = True

    def close(self) -> None:
        """Close."""
        self._is_closing = True

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._is_closing


class Peer:
    """A connection to the server's side, and the client's side of it."""

    def __init__(self, *, is_text: bool = False, path: str = "/") -> None:
        self.refused: list[tuple[str, str]] = []
        self.above = Recorder()
        self.transport = PeerTransport()
        self.server = WebSocketConnection(
            self.above,
            WebSocketOptions(
                check=lambda _: None,
                refused=lambda *refusal: self.refused.append(refusal),
                message_bytes_max=20_000,
                first_bytes_max=1000,
                is_text=is_text,
            ),
            SystemClock(),
        )
        self.client = ClientProtocol(parse_uri(f"ws://localhost{path}"))
        self.server.connection_made(self.transport)

    def connect(self) -> None:
        """Shake hands."""
        self.client.send_request(self.client.connect())
        self.flush()

    def send(self, *frames: Frame) -> None:
        """Have the server read frames at once."""
        for frame in frames:
            self.client.send_frame(frame)
        self.flush()

    def flush(self) -> None:
        """Have the server read what the client has to send, and the client read the answer."""
        self.server.data_received(b"".join(self.client.data_to_send()))
        self.read()

    def read(self) -> None:
        """Have the client read what the server wrote."""
        written, self.transport.written = self.transport.written, b""
        if written:
            self.client.receive_data(written)


@pytest.fixture(name="slices_of_a_piece")
def _slices_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of a slice be over after its first piece."""
    monkeypatch.setattr(websocket, "SLICE_S", 0.0)


@pytest.mark.usefixtures("slices_of_a_piece")
async def test_a_read_full_of_small_frames():
    """Other callbacks run between the slices of a read, and the peer is not read during them."""
    peer = Peer()
    peer.connect()
    frames = [Frame(Opcode.BINARY, b"%d," % number) for number in range(2000)]
    peer.send(*frames)
    turns = 0
    while not peer.transport.is_reading:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    assert b"".join(peer.above.received) == b"".join(frame.data for frame in frames)


@pytest.mark.usefixtures("slices_of_a_piece")
async def test_a_pause_between_slices():
    """A protocol that has paused reading gets nothing more before it reads on."""
    peer = Peer()
    peer.connect()
    peer.above.transport.pause_reading()
    peer.send(*[Frame(Opcode.BINARY, b"x")] * 1000)
    await asyncio.sleep(0)
    assert peer.above.received == []
    assert not peer.transport.is_reading
    peer.above.transport.resume_reading()
    await until(lambda: peer.transport.is_reading)
    assert b"".join(peer.above.received) == b"x" * 1000


@pytest.mark.usefixtures("slices_of_a_piece")
async def test_the_end_of_the_connection_during_slices():
    """What was read before the end reaches the protocol before it does, paused or not."""
    peer = Peer()
    peer.connect()
    peer.send(*[Frame(Opcode.BINARY, b"x")] * 1000)
    peer.above.transport.pause_reading()
    peer.transport.close()
    peer.server.connection_lost(None)
    await until(lambda: peer.above.is_lost)
    assert b"".join(peer.above.received) == b"x" * 1000


async def test_frames_of_a_stranger():
    """A frame may have the full size once the protocol has written, as after a sign-in."""
    peer = Peer()
    peer.connect()
    peer.send(Frame(Opcode.BINARY, bytes(1000)))
    peer.above.transport.write(b"hello")
    peer.send(Frame(Opcode.BINARY, bytes(20_000)))
    assert [len(each) for each in peer.above.received] == [1000, 20_000]
    stranger = Peer()
    stranger.connect()
    stranger.send(Frame(Opcode.BINARY, bytes(1001)))
    assert stranger.client.close_rcvd.code == CloseCode.MESSAGE_TOO_BIG
    assert stranger.above.received == []


async def test_nothing_follows_a_refused_frame():
    """Frames after one that is refused are not taken, those before it are."""
    peer = Peer()
    peer.connect()
    peer.send(
        Frame(Opcode.BINARY, b"1"),
        Frame(Opcode.TEXT, b"2", fin=False),
        Frame(Opcode.CONT, b"3"),
        Frame(Opcode.BINARY, b"4"),
    )
    assert peer.above.received == [b"1"]
    assert peer.client.close_rcvd.code == CloseCode.UNSUPPORTED_DATA


async def test_empty_fragments_of_a_text():
    """A text may have any number of empty fragments."""
    peer = Peer(is_text=True)
    peer.connect()
    peer.send(Frame(Opcode.TEXT, b"te", fin=False), *[Frame(Opcode.CONT, b"", fin=False)] * 100)
    peer.send(Frame(Opcode.CONT, b"xt"))
    assert peer.above.received == [b"text"]


async def test_a_refused_peer_that_has_left():
    """The address of a peer that reset its connection is not known any more."""
    peer = Peer()
    peer.server.data_received(b"no request\r\n\r\n")
    assert peer.refused == [("unknown", "did not receive a valid HTTP request")]
