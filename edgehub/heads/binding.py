"""Listening sockets: all addresses of a name, one port, errors with a hint.

Pure functions on sockets; calls nothing of the hub. Invariant: either all addresses are bound or
none is left open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket


async def bind(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """Bind and listen on every address of `host`.

    Args:
        host: Address or name; empty = all addresses of this machine.
        port: 0 = any free port, the same one for all addresses.
        backlog: Connections that may wait to be accepted.

    Raises:
        OSError: If one of the addresses cannot be bound.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = undo.enter_context(socket.socket(family, kind, protocol))
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            sock.listen(backlog)
            sockets.append(sock)
        undo.pop_all()
    return sockets


def is_loopback(sock: socket.socket) -> bool:
    """Return whether only this machine can reach a bound socket."""
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def bind_hint(section: str, error: OSError, *, port: str = "port") -> str:
    """Return why binding failed, and which key of `section` to set; `port` is that of the port."""
    hints = {
        errno.EADDRINUSE: f"another program listens there; stop it or set {section}.{port}",
        errno.EACCES: f"ports below 1024 need a privilege; set {section}.{port}",
        errno.EADDRNOTAVAIL: f"this machine has no such address; set {section}.host",
    }
    hint = hints.get(error.errno or 0, f"check {section}.host and {section}.{port}")
    return f"{error.strerror or error} ({hint})"
