"""TCP connections to a host name, some of whose addresses may be unreachable.

Owns no state: a name is resolved at each connect. `loop.create_connection` tries one address after
the other, and uvloop's has no `happy_eyeballs_delay`. The caller bounds the time.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Final, cast

from aiohappyeyeballs import AddrInfoType, start_connection

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPT_DELAY_S: Final = 0.25
"""RFC 8305, section 5: after this time without an answer the next address is tried too."""

_SIOCOUTQNSD: Final = 0x894B
"""Linux: bytes in the send queue that were not sent even once (include/uapi/linux/sockios.h)."""


async def connect_tcp(host: str, port: int) -> socket.socket:
    """Connect to the address of `host` that answers first, by RFC 8305.

    Returns:
        A connected socket that does not block; attempts at other addresses are closed.

    Raises:
        OSError: If the name has no address, or none of them takes the connection.
    """
    return await _first_to_answer(await _addresses(host, port))


async def reachable_host(host: str, port: int) -> str:
    """Return the address of `host` that answers first, for a library that connects by itself.

    A host with one address is returned as it is.

    Raises:
        OSError: As `connect_tcp`.
    """
    addresses = await _addresses(host, port)
    if len(addresses) == 1:
        return host
    with await _first_to_answer(addresses) as sock:
        numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        return socket.getnameinfo(sock.getpeername(), numeric)[0]


def unsent_in_kernel(sock: socket.socket) -> int:
    """Return the bytes that the kernel has taken and not sent even once; 0 = it is closed."""
    if sock.fileno() < 0:
        return 0
    (unsent,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, b"\0\0\0\0"))
    return int(unsent)


async def ready(descriptor: int, add: Callable[..., Any], remove: Callable[[int], Any]) -> None:
    """Wait until a descriptor can be read or written, by the given methods of the loop."""
    event = asyncio.Event()
    add(descriptor, event.set)
    try:
        await event.wait()
    finally:
        remove(descriptor)


class _Connector:
    """The one method of a loop that `start_connection` calls.

    uvloop's resolves the address a second time, in threads, and the scope of a link-local address
    (`fe80::1%eth0`) is lost there.
    """

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        error = sock.connect_ex(address)
        if error == errno.EINPROGRESS:
            loop = asyncio.get_running_loop()
            await ready(sock.fileno(), loop.add_writer, loop.remove_writer)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))


async def _addresses(host: str, port: int) -> list[AddrInfoType]:
    loop = asyncio.get_running_loop()
    # uvloop resolves a numeric address by itself, without a thread, but drops its scope.
    kind = 0 if "%" in host else socket.SOCK_STREAM
    found = await loop.getaddrinfo(host, port, type=kind, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(found))


async def _first_to_answer(addresses: list[AddrInfoType]) -> socket.socket:
    loop = cast("asyncio.AbstractEventLoop", _Connector())
    return await start_connection(addresses, happy_eyeballs_delay=ATTEMPT_DELAY_S, loop=loop)
