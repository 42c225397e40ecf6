"""WebSocket without sockets: any cut of any frames, and junk."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from edgehub.clock import ManualClock
from edgehub.heads.websocket import CLOSE_TIMEOUT_S, WebSocketConnection, WebSocketOptions

MESSAGE_BYTES_MAX = 100


class Wire(asyncio.Transport):
    """A TCP connection that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.is_closed = self.is_ended = False

    def write(self, data: bytes) -> None:
        """Keep it."""
        assert not self.is_ended, "nothing follows the end"
        self.written += data

    def can_write_eof(self) -> bool:
        """Plain TCP can."""
        return True

    def write_eof(self) -> None:
        """End what is written."""
        self.is_ended = True

    def resume_reading(self) -> None:
        """Nothing is paused."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_closed

    def close(self) -> None:
        """Close."""
        self.is_closed = True

    def abort(self) -> None:
        """Close at once."""
        self.is_closed = True


class Above(asyncio.Protocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Keep it."""
        assert data
        self.pieces.append(data)


class Bench:
    """A connection between a client's bytes and a protocol above."""

    def __init__(self, *, is_text: bool = False) -> None:
        self.wire, self.above, self.clock = Wire(), Above(), ManualClock()
        self.refused: list[str] = []
        options = WebSocketOptions(
            check=lambda _: None,
            refused=lambda _, reason: self.refused.append(reason),
            message_bytes_max=MESSAGE_BYTES_MAX,
            is_text=is_text,
        )
        self.connection = WebSocketConnection(self.above, options, self.clock)
        self.connection.connection_made(self.wire)

    def receive(self, data: bytes, cuts: list[int]) -> None:
        """Pass bytes on in pieces, as the event loop does until the connection is closed."""
        places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        for begin, end in itertools.pairwise(places):
            if self.wire.is_closed:
                break
            self.connection.data_received(data[begin:end])


def handshake() -> bytes:
    """Return the request of a client."""
    client = ClientProtocol(parse_uri("ws://localhost/"))
    client.send_request(client.connect())
    return b"".join(client.data_to_send())


def framed(frames: list[Frame]) -> bytes:
    """Return frames as the client writes them."""
    return b"".join(frame.serialize(mask=True, extensions=[]) for frame in frames)


CUTS = st.lists(st.integers(0, 10_000), max_size=8)
PIECES = st.lists(st.binary(max_size=MESSAGE_BYTES_MAX), max_size=8)


@given(pieces=PIECES, cuts=CUTS, pings=st.integers(0, 3))
def test_a_stream(pieces, cuts, pings):
    """Bytes arrive in order whatever frames they are in and however these are cut."""
    bench = Bench()
    request = handshake()
    last = len(pieces) - 1
    frames = [
        Frame(Opcode.CONT if number else Opcode.BINARY, piece, fin=number == last)
        for number, piece in enumerate(pieces)
    ]
    frames[1:1] = [Frame(Opcode.PING, b"?")] * pings
    bench.receive(request + framed(frames), cuts)
    assert b"".join(bench.above.pieces) == b"".join(pieces)
    assert bench.wire.written.count(b"\x8a\x01?") == pings
    assert not bench.wire.is_ended


@given(texts=st.lists(st.text(min_size=1, max_size=25)), cuts=CUTS)
def test_texts(texts, cuts):
    """Each arrives whole."""
    bench = Bench(is_text=True)
    request = handshake()
    encoded = [text.encode("utf-8", "replace") for text in texts]
    bench.receive(request + framed([Frame(Opcode.TEXT, each) for each in encoded]), cuts)
    assert bench.above.pieces == encoded


@given(data=st.binary(), cuts=CUTS, is_text=st.booleans())
def test_junk_after_the_handshake(data, cuts, is_text):
    """Nothing is raised, and what is kept of it is bounded."""
    bench = Bench(is_text=is_text)
    bench.receive(handshake() + data, cuts)
    if is_text:
        assert all(len(piece) <= MESSAGE_BYTES_MAX for piece in bench.above.pieces)
    bench.connection.close()
    bench.connection.connection_lost(None)


@given(data=st.binary(max_size=300), cuts=CUTS)
def test_junk_in_place_of_the_handshake(data, cuts):
    """It reaches nobody, and is refused once at most."""
    bench = Bench()
    bench.receive(b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n", cuts)
    bench.receive(data, cuts)
    assert bench.above.pieces == []
    assert len(bench.refused) == 1


async def test_a_peer_that_does_not_close():
    """The connection is given up some seconds after the last frame; what comes is discarded."""
    bench = Bench()
    request = handshake()
    bench.receive(request + framed([Frame(Opcode.TEXT, b"x")]), [])
    assert bench.wire.is_ended
    bench.receive(framed([Frame(Opcode.BINARY, b"late")]), [])
    await bench.clock.advance(CLOSE_TIMEOUT_S)
    assert bench.wire.is_closed
    assert bench.above.pieces == []
