"""A thin, breakable TCP link: a proxy on loopback that passes bytes at a set rate.

Owns its listening socket and the connections through it; calls nothing of the hub but the clock. It
keeps socket buffers small and holds at most a few hundred bytes per connection and direction, so
that what waits for the link waits at the sender, as it would in front of a modem. Invariant: per
direction all connections share one rate, and bytes leave in the order they came.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle

CONNECT_TIMEOUT_S: Final = 2.0
CHUNK_BYTES: Final = 256
PENDING_BYTES_MAX: Final = 512
# A busy event loop feeds the link a little late; that is made up for, a real pause is not.
CREDIT_S: Final = 0.05
# The kernel doubles it for its own use; its minimum is a little over two kilobytes.
SOCKET_BUFFER_BYTES: Final = 1152
# On loopback a segment may be larger than our receive buffer, which stalls the sender; small
# segments, agreed on at connect, keep the flow even.
SEGMENT_BYTES: Final = 536


class Pacer:
    """One direction of the link: hands chunks on no faster than the rate, after the delay.

    Args:
        rate_bit_s: Bits per second.
        delay_s: One-way delay behind the bottleneck.
        clock: Where time comes from.

    Attributes:
        rate_bytes_s: Bytes per second that the link can carry.
        bytes_passed: Bytes that the link has carried so far.
    """

    def __init__(self, *, rate_bit_s: float, delay_s: float, clock: Clock) -> None:
        self.rate_bytes_s = rate_bit_s / 8
        self._delay_s = delay_s
        self._clock = clock
        self._free_at = clock.monotonic()
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()
        self._timer: TimerHandle | None = None
        self.bytes_passed = 0

    @property
    def pending_bytes_max(self) -> int:
        """Bytes of one connection that may be on the link: before and behind the bottleneck."""
        return PENDING_BYTES_MAX + int(self.rate_bytes_s * self._delay_s)

    def put(self, size: int, arrive: Callable[[], None]) -> None:
        """Put `size` bytes on the link; `arrive` is called when the last of them is through."""
        self._queue.append((size, arrive))
        if self._timer is None:
            self._free_at = max(self._free_at, self._clock.monotonic() - CREDIT_S)
            self._start_next()

    def change_rate(self, rate_bit_s: float) -> None:
        """Go on at another rate; what is being transmitted ends at the old one."""
        self.rate_bytes_s = rate_bit_s / 8

    def clear(self) -> None:
        """Lose what has not passed the bottleneck; what is beyond still arrives."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_next(self) -> None:
        # Counting from when the link fell free, not from when a late timer fired, keeps the rate.
        self._free_at += self._queue[0][0] / self.rate_bytes_s
        wait_s = max(0.0, self._free_at - self._clock.monotonic())
        self._timer = self._clock.call_later(wait_s, self._passed)

    def _passed(self) -> None:
        size, arrive = self._queue.popleft()
        self.bytes_passed += size
        self._timer = None
        if self._queue:
            self._start_next()
        if self._delay_s > 0:
            self._clock.call_later(self._delay_s, arrive)
        else:
            arrive()


class _Side(asyncio.BufferedProtocol):
    """One end of one proxied connection; what it reads goes over the pacer to its peer."""

    def __init__(self, pacer: Pacer, lost: Callable[[_Side], None]) -> None:
        self.peer: _Side | None = None
        self._pacer = pacer
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(CHUNK_BYTES)
        self._pending_bytes = 0
        self._peer_is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's; they behave alike.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=PENDING_BYTES_MAX)

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        chunk = bytes(self._buffer[:nbytes])
        self._pending_bytes += nbytes
        self._pacer.put(nbytes, lambda: self._arrived(chunk))
        self._adjust_reading()

    def eof_received(self) -> bool:
        # The end travels behind the bytes before it; until then this side stays open.
        self._pacer.put(0, self._ended)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if exc is not None and self.peer is not None:
            self.peer.abort()
        elif self.peer is not None:
            self._pacer.put(0, self._ended)
        self._lost(self)

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.hold(full=True)

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.hold(full=False)

    def hold(self, *, full: bool) -> None:
        self._peer_is_full = full
        self._adjust_reading()

    def write(self, chunk: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(chunk)

    def finish(self) -> None:
        """Close once everything written has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close with a reset, as a link that goes away ends in time-outs and resets."""
        if self._transport is not None:
            _reset_on_close(self._transport.get_extra_info("socket"))
            self._transport.abort()

    def _arrived(self, chunk: bytes) -> None:
        self._pending_bytes -= len(chunk)
        if self.peer is not None:
            self.peer.write(chunk)
        self._adjust_reading()

    def _ended(self) -> None:
        if self.peer is not None:
            self.peer.finish()
        self.finish()

    def _adjust_reading(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._pending_bytes >= self._pacer.pending_bytes_max or self._peer_is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class ThinLink:
    """A TCP proxy from a port of its own to `host:port`, with the manners of a thin link.

    Args:
        host: Where connections go.
        port: Its port.
        up_bit_s: Rate towards `host`, bits per second of TCP payload.
        down_bit_s: Rate back.
        delay_s: One-way delay, both ways.
        clock: Where time comes from.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        up_bit_s: float,
        down_bit_s: float,
        delay_s: float = 0.0,
        clock: Clock,
    ) -> None:
        self._target = (host, port)
        self.up = Pacer(rate_bit_s=up_bit_s, delay_s=delay_s, clock=clock)
        self.down = Pacer(rate_bit_s=down_bit_s, delay_s=delay_s, clock=clock)
        self.is_cut = False
        self._sides: set[_Side] = set()
        self._listener: socket.socket | None = None

    @property
    def port(self) -> int:
        """Port on 127.0.0.1 that leads into the link; known once it is open."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    async def open(self) -> None:
        """Bind a free port."""
        listener = socket.socket()
        listener.setblocking(False)
        _keep_small(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self._listener = listener

    async def run(self) -> None:
        """Pass connections on until cancelled."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        try:
            while True:
                near, _ = await loop.sock_accept(self._listener)
                if self.is_cut:
                    _reset_on_close(near)
                    near.close()
                else:
                    await self._join(near)
        finally:
            self._drop_all()

    def cut(self) -> None:
        """Take the link down: connections end, new ones are refused, what was on it is lost."""
        self.is_cut = True
        self._drop_all()

    def restore(self) -> None:
        """Accept new connections again."""
        self.is_cut = False

    async def close(self) -> None:
        """Release the port."""
        self._drop_all()
        if self._listener is not None:
            self._listener.close()

    async def _join(self, near: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        near_side = _Side(self.up, self._sides.discard)
        far_side = _Side(self.down, self._sides.discard)
        near_side.peer, far_side.peer = far_side, near_side
        far = socket.socket()
        far.setblocking(False)
        _keep_small(far)
        try:
            # The target is on this machine: an answer comes at once, so one at a time will do.
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.sock_connect(far, self._target)
        except OSError:
            far.close()
            _reset_on_close(near)
            near.close()
            return
        await loop.create_connection(lambda: far_side, sock=far)
        await loop.connect_accepted_socket(lambda: near_side, near)
        self._sides |= {near_side, far_side}
        if self.is_cut:
            self._drop_all()

    def _drop_all(self) -> None:
        self.up.clear()
        self.down.clear()
        for side in list(self._sides):
            side.abort()
        self._sides.clear()


def _keep_small(sock: socket.socket) -> None:
    # Set before listen and connect, so that accepted sockets and the peer's segments follow.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _reset_on_close(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
