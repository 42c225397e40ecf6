"""WebSocket below an asyncio protocol: the server's side of a connection.

Owns the handshake and the frames. To the event loop it is the protocol of a TCP connection, and to
the protocol above it is that one's transport: a stream of bytes in binary messages, or one text a
call. Invariants: nothing reaches the protocol above before the handshake is done, nor while it has
paused reading; what is kept of a peer that has not ended its message is bounded; pings are answered
here; frames are parsed in slices, as a read may hold tens of thousands of them.

Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct
from websockets.exceptions import InvalidMessage
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from edgehub.heads.binding import peer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.typing import Subprotocol

    from edgehub.clock import Clock, TimerHandle

CLOSE_TIMEOUT_S: Final = 5.0
HEAD_BYTES_MAX: Final = 16 * 1024
"""Longest request with its headers."""

SLICE_S: Final = 0.002
"""Longest time for the frames of one peer at once."""

_PIECE_BYTES: Final = 1024
_SHOWN_CHARS_MAX: Final = 200
_DATA: Final = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


class WebSocketOptions(Struct, frozen=True, kw_only=True):
    """What a head takes over WebSocket.

    Attributes:
        check: Returns status and text of a refusal, None = the request is accepted.
        refused: Called with the peer's address and the reason of a handshake that failed.
        message_bytes_max: Largest text; of a stream the largest frame.
        first_bytes_max: Largest frame until the protocol above has written, as strangers need not
            have the process keep more, None = as later.
        subprotocols: One of these is agreed on, empty = none is needed.
        is_text: Whether `data_received` and `write` carry one text each, in UTF-8. Otherwise they
            carry a stream of bytes, whose pieces need not be those of the peer.
    """

    check: Callable[[Request], tuple[HTTPStatus, str] | None]
    refused: Callable[[str, str], None]
    message_bytes_max: int
    first_bytes_max: int | None = None
    subprotocols: tuple[Subprotocol, ...] = ()
    is_text: bool = False


class WebSocketConnection(asyncio.Protocol, asyncio.Transport):
    """One WebSocket.

    `get_extra_info("path")` returns the path of its request, with the query.

    Args:
        above: The protocol that uses it; its `connection_made` is called with the TCP connection,
            so that its time limit for a sign-in includes the handshake.
        options: What it takes.
        clock: For the time that a peer has to close.
    """

    __slots__ = (
        "_abort_timer",
        "_above",
        "_at",
        "_clock",
        "_has_written",
        "_head_bytes",
        "_is_lost",
        "_is_paused",
        "_loss",
        "_next_slice",
        "_options",
        "_parts",
        "_path",
        "_protocol",
        "_refusal",
        "_transport",
        "_unread",
    )

    def __init__(self, above: asyncio.Protocol, options: WebSocketOptions, clock: Clock) -> None:
        super().__init__()
        self._above = above
        self._options = options
        self._clock = clock
        # Runs once the last frame was sent; what comes after that is discarded.
        self._abort_timer: TimerHandle | None = None
        # A stream is one message of any length.
        text_bytes_max = options.message_bytes_max if options.is_text else None
        self._protocol = ServerProtocol(
            subprotocols=options.subprotocols or None,
            max_size=(text_bytes_max, options.first_bytes_max or options.message_bytes_max),
        )
        self._has_written = False
        self._head_bytes = 0
        # Of a text that has not ended.
        self._parts: list[bytes] = []
        self._path = self._refusal = ""
        # Bytes that wait for the next slice, from `_at` on.
        self._unread = b""
        self._at = 0
        self._next_slice: asyncio.Handle | None = None
        # Whether the protocol above has paused reading.
        self._is_paused = False
        self._is_lost = False
        self._loss: Exception | None = None

    # The protocol of the TCP connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the peer sends its request."""
        self._transport = cast("asyncio.Transport", transport)
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what frames carry; the request comes first."""
        if self._abort_timer is None:
            self._unread = self._unread[self._at :] + data
            self._at = 0
            if self._next_slice is None and not self._is_paused:
                self._read_slice()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, once the frames received before the end have had their slices."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._is_lost, self._loss = True, exc
        if self._next_slice is None:
            self._read_slice()

    def pause_writing(self) -> None:
        """Pass it on: the peer does not read."""
        self._above.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on: the peer has caught up."""
        self._above.resume_writing()

    # The transport of the protocol above.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection below, or the `path` of the request."""
        return self._path if name == "path" else self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a message; dropped once either side has begun to close."""
        if self._protocol.state is State.OPEN:
            if not self._has_written:
                self._has_written = True
                self._protocol.max_fragment_size = self._options.message_bytes_max
            send = self._protocol.send_text if self._options.is_text else self._protocol.send_binary
            send(data)
            self._flush()

    def can_write_eof(self) -> bool:
        """Return whether the close handshake can begin."""
        return self._protocol.state is State.OPEN

    def write_eof(self) -> None:
        """Begin the close handshake; the connection ends with the peer's answer."""
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._flush()

    def close(self) -> None:
        """Send a last frame, and close once everything is written."""
        if self._protocol.state is State.OPEN:
            self.write_eof()
        self._transport.close()

    def abort(self) -> None:
        """Close without writing what is left."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether nothing can be written any more."""
        return self._transport.is_closing() or self._protocol.close_expected()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        self._is_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._is_paused = False
        if not self._is_lost:
            self._read_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return bytes that are not written yet."""
        return self._transport.get_write_buffer_size()

    # Parts.

    def _read_slice(self) -> None:
        """Parse for `SLICE_S` what waits, and hand it to the protocol above."""
        self._next_slice = None
        began_s = self._clock.monotonic()
        stream: list[bytes] = []
        while self._at < len(self._unread):
            end = self._at + _PIECE_BYTES
            if self._protocol.state is State.CONNECTING:
                # Frames that follow the request at once must not be answered before it.
                end = self._unread.find(b"\n", self._at, end) + 1 or end
            piece = self._unread[self._at : end]
            self._at = end
            self._parse(piece, stream)
            if self._is_paused or self._clock.monotonic() - began_s >= SLICE_S:
                break
        if data := b"".join(stream):
            self._above.data_received(data)
        self._flush()
        if self._is_lost or not self._is_paused:
            self._read_on()

    def _read_on(self) -> None:
        """Read the next slice in the next turn of the loop, or else more from the peer."""
        if self._at < len(self._unread):
            if not self._transport.is_closing():
                self._transport.pause_reading()
            if self._next_slice is None:
                self._next_slice = asyncio.get_running_loop().call_soon(self._read_slice)
        elif self._is_lost:
            self._above.connection_lost(self._loss)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _parse(self, data: bytes, stream: list[bytes]) -> None:
        protocol = self._protocol
        is_connecting = protocol.state is State.CONNECTING
        self._head_bytes += len(data) if is_connecting else 0
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._accept(event)
            elif (
                isinstance(event, Frame) and event.opcode in _DATA and not self._take(event, stream)
            ):
                break
        if is_connecting:
            self._check_handshake()

    def _accept(self, request: Request) -> None:
        self._path = request.path
        refusal = self._options.check(request)
        if refusal is None:
            response = self._protocol.accept(request)
        else:
            self._refusal = refusal[1]
            response = self._protocol.reject(refusal[0], f"{refusal[1]}\n")
        self._protocol.send_response(response)

    def _check_handshake(self) -> None:
        if self._protocol.close_expected():
            error = self._protocol.handshake_exc
            if isinstance(error, InvalidMessage):
                # The library closes without an answer, and a client cannot see why.
                cause = str(error.__cause__)[:_SHOWN_CHARS_MAX]
                self._refuse(HTTPStatus.BAD_REQUEST, f"{error}: {cause!a}")
            else:
                self._report(self._refusal or str(error))
        elif self._protocol.state is State.CONNECTING and self._head_bytes > HEAD_BYTES_MAX:
            reason = f"the request has more than {HEAD_BYTES_MAX} bytes"
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
            self._end()

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._protocol.reject(status, f"{reason}\n").serialize())
        self._report(reason)

    def _report(self, reason: str) -> None:
        self._unread = b""
        _, address = peer_of(self._transport)
        self._options.refused(address, reason)

    def _take(self, frame: Frame, stream: list[bytes]) -> bool:
        """Take a frame with data; returns whether it may be followed by others."""
        is_text = self._options.is_text
        if frame.opcode is not Opcode.CONT and is_text is (frame.opcode is Opcode.BINARY):
            wanted = "text" if is_text else "binary"
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, f"{wanted} messages only")
            return False
        if not is_text:
            stream.append(bytes(frame.data))
            return True
        if frame.data:
            self._parts.append(bytes(frame.data))
        if frame.fin:
            text = b"".join(self._parts)
            self._parts.clear()
            if text:
                self._above.data_received(text)
        return True

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
            else:
                self._end()

    def _end(self) -> None:
        self._unread = b""
        # Closing while the peer still sends would make its system discard the last frame.
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self._abort_timer = self._clock.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
