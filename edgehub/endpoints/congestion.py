"""Which congestion control the kernel uses where BBR costs more than it gains.

Pure, apart from the sockets it is given. How much may be under way is the pump's business; BBR
looks for it as well. It sends a short request at the rate that the last ones showed, and these show
little: at 256 kbit/s and 600 ms requests of 2 kB took half a second longer than their way. And it
measures its own round trip every ten seconds with four packets under way, which on such a way
leaves a tenth of the link idle and puts unsent bytes in front of an alarm. On wide ways that lose
packets it is the better one, and stays.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

WAY_BYTES_MAX: Final = 32_768
"""Rate by round trip of a way on which the others fill the link too, with one packet of a hundred
lost."""
WAY_S_MIN: Final = 0.1
"""Round trip below which BBR's own measurement costs nothing to speak of."""

_NAME_BYTES_MAX: Final = 16
_BBR: Final = b"bbr"
_OTHERS: Final = (b"cubic", b"reno")
_INFO_BYTES: Final = 168
# struct tcp_info of linux/tcp.h: tcpi_min_rtt in microseconds, tcpi_delivery_rate in bytes/s.
_MIN_RTT_AT: Final = 148
_DELIVERY_RATE_AT: Final = 160


def send_requests_at_once(sock: socket.socket) -> None:
    """Use another congestion control than BBR for this connection, where the system lets us."""
    if _name(sock).startswith(_BBR):
        for other in _OTHERS:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, other)
                return


def leave_thin_way_to_the_window(sock: socket.socket) -> None:
    """Do the same if the connection has shown that its way is thin and long."""
    if not _name(sock).startswith(_BBR):
        return
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return
    way_s = struct.unpack_from("I", info, _MIN_RTT_AT)[0] / 1e6
    rate_bytes_s = struct.unpack_from("Q", info, _DELIVERY_RATE_AT)[0]
    if way_s >= WAY_S_MIN and rate_bytes_s * way_s <= WAY_BYTES_MAX:
        send_requests_at_once(sock)


def _name(sock: socket.socket) -> bytes:
    try:
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES_MAX)
    except OSError:
        # Not a TCP socket, or not this kernel.
        return b""
    return name.partition(b"\0")[0]
