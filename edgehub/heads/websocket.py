"""WebSocket below an asyncio protocol: the server's side of a connection.

Owns the handshake and the frames. To the event loop it is the protocol of a TCP connection, and to
the protocol above it is that one's transport: a stream of bytes in binary messages, or one text a
call. Invariants: nothing reaches the protocol above before the handshake is done; what is kept of a
peer that has not ended its message is bounded; pings are answered here.

Source: RFC 6455.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from http import HTTPStatus

    from websockets.typing import Subprotocol

    from edgehub.clock import Clock, TimerHandle

CLOSE_TIMEOUT_S: Final = 5.0
HEAD_BYTES_MAX: Final = 16 * 1024
"""Longest request with its headers; larger ones are closed without an answer."""

_DATA: Final = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketOptions:
    """What a head takes over WebSocket.

    Attributes:
        check: Returns status and text of a refusal, None = the request is accepted.
        refused: Called with the peer's address and the reason of a handshake that failed.
        message_bytes_max: Largest text; of a stream the largest frame.
        subprotocols: One of these is agreed on, empty = none is needed.
        is_text: Whether `data_received` and `write` carry one text each, in UTF-8. Otherwise they
            carry a stream of bytes, whose pieces need not be those of the peer.
    """

    check: Callable[[Request], tuple[HTTPStatus, str] | None]
    refused: Callable[[str, str], None]
    message_bytes_max: int
    subprotocols: tuple[Subprotocol, ...] = ()
    is_text: bool = False

    @property
    def size_limits(self) -> tuple[int | None, int]:
        """Largest message and largest frame; a stream is one message of any length."""
        return (self.message_bytes_max if self.is_text else None), self.message_bytes_max


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
        "_clock",
        "_head_bytes",
        "_options",
        "_parts",
        "_path",
        "_protocol",
        "_refusal",
        "_transport",
    )

    def __init__(self, above: asyncio.Protocol, options: WebSocketOptions, clock: Clock) -> None:
        super().__init__()
        self._above = above
        self._options = options
        self._clock = clock
        # Runs once the last frame was sent; what comes after that is discarded.
        self._abort_timer: TimerHandle | None = None
        self._protocol = ServerProtocol(
            subprotocols=options.subprotocols or None, max_size=options.size_limits
        )
        self._head_bytes = 0
        # Of a text that has not ended.
        self._parts: list[bytes] = []
        self._path = self._refusal = ""

    # The protocol of the TCP connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the peer sends its request."""
        self._transport = cast("asyncio.Transport", transport)
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Pass on what frames carry; the request comes first."""
        protocol = self._protocol
        if self._abort_timer is not None:
            return
        if protocol.state is State.CONNECTING:
            self._head_bytes += len(data)
        protocol.receive_data(data)
        received: list[bytes] = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._accept(event)
            elif isinstance(event, Frame) and event.opcode in _DATA:
                self._take(event, received)
        if protocol.state is State.CONNECTING:
            self._check_handshake()
        for each in received if self._options.is_text else [b"".join(received)]:
            if each:
                self._above.data_received(each)
        self._flush()

    def eof_received(self) -> None:
        """Close the connection, as the peer ended it."""
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._above.connection_lost(exc)

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
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return bytes that are not written yet."""
        return self._transport.get_write_buffer_size()

    # Parts.

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
            self._report(self._refusal or str(self._protocol.handshake_exc))
        elif self._head_bytes > HEAD_BYTES_MAX:
            self._report(f"the request has more than {HEAD_BYTES_MAX} bytes")
            self.abort()

    def _report(self, reason: str) -> None:
        host, port = self._transport.get_extra_info("peername")[:2]
        self._options.refused(f"{host}:{port}", reason)

    def _take(self, frame: Frame, received: list[bytes]) -> None:
        if frame.opcode is not Opcode.CONT and self._options.is_text is (
            frame.opcode is Opcode.BINARY
        ):
            wanted = "text" if self._options.is_text else "binary"
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, f"{wanted} messages only")
            received.clear()
        elif not self._options.is_text:
            received.append(bytes(frame.data))
        else:
            self._parts.append(bytes(frame.data))
            if frame.fin:
                received.append(b"".join(self._parts))
                self._parts.clear()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._end()

    def _end(self) -> None:
        # Closing while the peer still sends would make its system discard the last frame.
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
        self._abort_timer = self._clock.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
