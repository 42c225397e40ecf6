"""Which congestion control the kernel uses where BBR costs more than it gains.

Pure, apart from the sockets it is given. How much may be in flight is decided by the pump; BBR
estimates it as well. It sends a short request at the rate that the last ones showed, and these show
little: at 256 kbit/s and 600 ms requests of 2 kB took half a second more than needed. And it
measures its own round trip every ten seconds with four packets in flight, which on such a path
leaves a tenth of the link idle and puts unsent bytes in front of an alarm. On wide paths that lose
packets it is the better one, and stays.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

PATH_BYTES_MAX: Final = 32_768
"""Rate times round trip of a path on which the others fill the link too, with one packet in a
hundred lost."""
PATH_S_MIN: Final = 0.1
"""Round trip below which BBR's own measurement costs nothing worth mentioning."""

_NAME_BYTES_MAX: Final = 16
_BBR: Final = b"bbr"
_OTHERS: Final = (b"cubic", b"reno")
_INFO_BYTES: Final = 168
# struct tcp_info of linux/tcp.h: tcpi_min_rtt in microseconds, tcpi_delivery_rate in bytes/s.
_MIN_RTT_AT: Final = 148
_DELIVERY_RATE_AT: Final = 160


def avoid_bbr(sock: socket.socket) -> None:
    """Use another congestion control than BBR for this connection, where the system lets us."""
    if _name(sock).startswith(_BBR):
        for other in _OTHERS:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, other)
                return


def avoid_bbr_on_thin_path(sock: socket.socket) -> None:
    """Do the same if the connection has shown that its path is thin and long."""
    if not _name(sock).startswith(_BBR):
        return
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return
    path_s = struct.unpack_from("I", info, _MIN_RTT_AT)[0] / 1e6
    rate_bytes_s = struct.unpack_from("Q", info, _DELIVERY_RATE_AT)[0]
    if path_s >= PATH_S_MIN and rate_bytes_s * path_s <= PATH_BYTES_MAX:
        avoid_bbr(sock)


def _name(sock: socket.socket) -> bytes:
    try:
        name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES_MAX)
    except OSError:
        # Not a TCP socket, or not this kernel.
        return b""
    return name.partition(b"\0")[0]
