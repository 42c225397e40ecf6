"""The transport of a connection: bytes to write, and reasons to pause reading.

Owns the transport of the event loop. Invariant: the client is read exactly while there is no reason
to pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from edgehub.devices.server_tls import ClientCertificate
from edgehub.heads.binding import peer_of, set_up_peer

if TYPE_CHECKING:
    import asyncio

    from edgehub.clock import Clock, TimerHandle

CLOSE_TIMEOUT_S: Final = 5.0

# Reasons not to read; several can hold at once.
SIGNING_IN: Final = 1
BACKLOG: Final = 2
WRITING: Final = 4
DRAINING: Final = 8
TURN: Final = 16
STORING: Final = 32


class ClientTransport:
    """The transport of one client.

    Attributes:
        out: Bytes to write with the next `flush`; further ones may be appended right before it.
        pauses: Reasons not to read at present, as bits.
        address: Host and port of the peer, for logs and lists.
        host: Its host alone.
        certificate: What the client has shown, None = nothing.
    """

    __slots__ = (
        "_abort_timer",
        "_clock",
        "_out_bytes",
        "_transport",
        "address",
        "certificate",
        "host",
        "out",
        "pauses",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._abort_timer: TimerHandle | None = None
        self.out: list[bytes] = []
        self._out_bytes = 0
        self.pauses = 0
        self.address = self.host = ""
        self.certificate: ClientCertificate | None = None

    def attach(self, transport: asyncio.BaseTransport, *, write_buffer_bytes_max: int) -> None:
        """Set up a new transport and its socket."""
        self._transport = cast("asyncio.Transport", transport)
        self.host, self.address = peer_of(transport)
        self.certificate = ClientCertificate.of(transport.get_extra_info("ssl_object"))
        set_up_peer(transport)
        self._transport.set_write_buffer_limits(high=write_buffer_bytes_max)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the client to read."""
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._out_bytes

    def has_room(self, bytes_max: int) -> bool:
        """Return whether the client reads, and less than so many bytes wait for it."""
        return not self.pauses & WRITING and self.unsent_bytes < bytes_max

    def add(self, data: bytes) -> None:
        """Collect bytes for the next `flush`."""
        self.out.append(data)
        self._out_bytes += len(data)

    def flush(self) -> None:
        """Write what was collected, at once."""
        out = self.out
        if out:
            transport = self._transport
            if transport is not None and not transport.is_closing():
                transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
            self._out_bytes = 0

    def pause(self, why: int) -> None:
        """Stop reading until `resume` is called with the same reason."""
        if not self.pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self.pauses |= why

    def resume(self, why: int) -> bool:
        """End a reason to pause; returns whether reading goes on."""
        was_paused = self.pauses
        self.pauses &= ~why
        if not was_paused or self.pauses:
            return False
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.resume_reading()
        return True

    def close(self, disconnect: bytes = b"", *, linger: bool = False) -> None:
        """Write what is left, then close; abort if that takes longer than `CLOSE_TIMEOUT_S`.

        Args:
            disconnect: A last packet, empty = none.
            linger: Wait for the client to close once it has read that packet: closing while it
                still sends would make its system discard the packet.
        """
        if disconnect:
            self.add(disconnect)
        self.flush()
        transport = self._transport
        if transport is None or self._abort_timer is not None:
            return
        if disconnect and linger and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            if self.pauses:
                transport.resume_reading()
        else:
            transport.close()
        self._abort_timer = self._clock.call_later(CLOSE_TIMEOUT_S, transport.abort)

    def abort(self) -> None:
        """Close without writing what is left."""
        if self._transport is not None:
            self._transport.abort()

    def lost(self) -> None:
        """Forget the transport; it is closed."""
        self._transport = None
        if self._abort_timer is not None:
            self._abort_timer.cancel()
