"""TCP connections to a host name, one of whose addresses may lead nowhere.

Owns no state: a name is resolved at each connect. Why not `loop.create_connection`: it waits for
one address after the other, and uvloop's has no `happy_eyeballs_delay`. The caller bounds the time.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from aiohappyeyeballs import AddrInfoType, start_connection

ATTEMPT_DELAY_S: Final = 0.25
"""RFC 8305, section 5: an address that has not answered for so long gets company by the next."""


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


async def _addresses(host: str, port: int) -> list[AddrInfoType]:
    loop = asyncio.get_running_loop()
    return list(dict.fromkeys(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


async def _first_to_answer(addresses: list[AddrInfoType]) -> socket.socket:
    return await start_connection(addresses, happy_eyeballs_delay=ATTEMPT_DELAY_S)
