"""The socket of one upstream connection, with the buffers that paho lacks.

Looks like a socket to paho: it has `recv`, `send`, `close`, `fileno`, `setblocking` and `pending`.
Owns the socket and both buffers, calls the loop for readiness. Invariant: bytes leave in the order
in which they were written, so that paho's packets and ours never mix.

Why: paho reads a PUBACK with three system calls and writes each packet with one, which costs more
than all the rest of a message; and nobody but the owner of the buffer can say how many bytes have
not left yet. PUBACKs and PUBLISHes are taken out here, a whole read at a time: paho takes 38 us to
read a PUBLISH of MQTT 3.1.1, 92 us for one of MQTT 5, keeps it whole however large it is, and gives
the connection up over one that it cannot read.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Final

from edgehub.endpoints.congestion import leave_thin_way_to_the_window
from edgehub.mqtt.client_decoder import InboundFilter
from edgehub.mqtt.fields import REMAINING_LENGTH_MAX

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from edgehub.mqtt.client_decoder import Incoming

READ_BYTES: Final = 65_536

# Linux: bytes in the send queue that were not sent even once (include/uapi/linux/sockios.h).
SIOCOUTQNSD: Final = 0x894B


# Linux from 4.19 on: bytes_sent and bytes_retrans of struct tcp_info (include/uapi/linux/tcp.h).
TCP_INFO_SENT_AT: Final = 200
TCP_INFO_BYTES: Final = 216


class Receiver:
    """Who hears of what was taken out of one read, on the loop's thread.

    Args:
        on_pubacks: Gets the packet ids of confirmed PUBLISHes.
        on_messages: Gets incoming messages, None = nobody wants any.
        on_refusals: Gets packet ids and reason codes of PUBACKs of MQTT 5 that refuse.
        level: Protocol level of the stream.
        bytes_max: Packets larger than this lose their body.
    """

    __slots__ = ("bytes_max", "level", "on_messages", "on_pubacks", "on_refusals")

    def __init__(
        self,
        on_pubacks: Callable[[list[int]], None],
        on_messages: Callable[[list[Incoming]], None] | None = None,
        on_refusals: Callable[[list[tuple[int, int]]], None] | None = None,
        *,
        level: int = 4,
        bytes_max: int = REMAINING_LENGTH_MAX,
    ) -> None:
        self.on_pubacks = on_pubacks
        self.on_messages = on_messages
        self.on_refusals = on_refusals
        self.level = level
        self.bytes_max = bytes_max


class Channel:
    """See the module.

    Args:
        sock: Connected and non-blocking, plain or TLS with its handshake done.
        loop: The running loop.
        receiver: Hears of PUBACKs and PUBLISHes.
    """

    __slots__ = (
        "_filter",
        "_handed_over",
        "_in",
        "_loop",
        "_out",
        "_receiver",
        "_sock",
        "_write_waits_for_read",
        "_writing",
        "end_reason",
        "unsent_at_close",
    )

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        receiver: Receiver,
    ) -> None:
        self._sock: socket.socket | None = sock
        self._loop = loop
        self._receiver = receiver
        self._in = bytearray()
        self._out = bytearray()
        self._filter = InboundFilter(
            self._in.extend, level=receiver.level, bytes_max=receiver.bytes_max
        )
        self._writing = False
        self._write_waits_for_read = False
        self.end_reason = ""
        self._handed_over = 0
        self.unsent_at_close: int | None = None
        """Bytes that had not left this machine when the peer closed; None = it has not."""

    @property
    def is_open(self) -> bool:
        """Tell whether the socket is still there."""
        return self._sock is not None

    def write(self, data: bytes) -> None:
        """Send `data` behind all that was written before; what does not fit now waits here."""
        self._out += data
        if not self._writing:
            self._flush()

    def unsent_bytes(self) -> int:
        """Give the bytes that have not left this machine: in this buffer and in the kernel's."""
        if self._sock is None:
            return 0
        answer = fcntl.ioctl(self._sock.fileno(), SIOCOUTQNSD, b"\0\0\0\0")
        (in_kernel,) = struct.unpack("i", answer)
        return len(self._out) + int(in_kernel)

    def look_at_way(self) -> None:
        """Choose the congestion control by what the connection has shown of its way."""
        if self._sock is not None:
            leave_thin_way_to_the_window(self._sock)

    def send(self, data: bytes) -> int:
        """Take a packet of paho's; always whole, so that paho never keeps a queue of its own."""
        if self._sock is None:
            msg = "connection closed"
            raise ConnectionError(msg)
        self.write(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Give paho bytes of packets that are not taken out; b"" at the stream's end."""
        if not self._in and not self._fill():
            return b""
        if not self._in:
            raise BlockingIOError
        data = bytes(self._in[:size])
        del self._in[:size]
        return data

    def pending(self) -> int:
        """Give bytes that can be read without a new event of the socket."""
        in_tls = self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) else 0
        return len(self._in) + in_tls

    def fileno(self) -> int:
        """Give the descriptor, -1 once closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """Accept what is so already."""
        assert not flag

    def close(self) -> None:
        """Close the socket; harmless when closed."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if self._writing:
            self._loop.remove_writer(sock.fileno())
            self._writing = False
        sock.close()

    def _fill(self) -> bool:
        if self._sock is None:
            msg = "connection closed"
            raise ConnectionError(msg)
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError as error:
            self._note_close(error)
            self.end_reason = self.end_reason or (error.strerror or str(error))
            raise
        if self._write_waits_for_read:
            self._write_waits_for_read = False
            self._flush()
        if not data:
            self._note_close(None)
            self.end_reason = self.end_reason or "closed by the peer"
            return False
        self._filter.feed(data)
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        # Not from inside paho's read: it would take an error of ours for one of the link.
        mids, refusals, messages = self._filter.take()
        receiver = self._receiver
        if mids:
            self._loop.call_soon(receiver.on_pubacks, mids)
        if refusals and receiver.on_refusals is not None:
            self._loop.call_soon(receiver.on_refusals, refusals)
        if messages and receiver.on_messages is not None:
            self._loop.call_soon(receiver.on_messages, messages)

    def _note_close(self, error: OSError | None) -> None:
        """Note what has not left, if it is the peer that ends the connection: by FIN or by RST."""
        if self._sock is None or self.unsent_at_close is not None or self.end_reason:
            return
        if error is None:
            self.unsent_at_close = self.unsent_bytes()
        elif isinstance(error, ConnectionResetError | BrokenPipeError):
            self.unsent_at_close = len(self._out) + self._unsent_at_reset()

    def _unsent_at_reset(self) -> int:
        # A reset empties the kernel's queue, but not its count of what has left. Under TLS that
        # count is of other bytes; there what the kernel had taken counts as gone.
        assert self._sock is not None
        if isinstance(self._sock, ssl.SSLSocket):
            return 0
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        if len(info) < TCP_INFO_BYTES:
            return 0
        sent, sent_again = struct.unpack_from("QQ", info, TCP_INFO_SENT_AT)
        return max(0, self._handed_over - int(sent - sent_again))

    def _flush(self) -> None:
        sock = self._sock
        out = self._out
        while out and sock is not None:
            try:
                count = sock.send(out)
            except (BlockingIOError, ssl.SSLWantWriteError):
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(sock.fileno(), self._flush)
                return
            except ssl.SSLWantReadError:
                self._write_waits_for_read = True
                return
            except OSError as error:
                # The reader sees the same end and tells paho; here there is nobody to tell.
                self._note_close(error)
                self.end_reason = error.strerror or str(error)
                out.clear()
                break
            del out[:count]
            self._handed_over += count
        if self._writing and sock is not None:
            self._writing = False
            self._loop.remove_writer(sock.fileno())
