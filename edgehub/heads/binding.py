"""A listening port: all addresses of a name, one number, errors with a hint.

Calls nothing of the hub. Invariants: either all addresses are bound or none is left open; a port
that is open stays open while its certificate changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, Final

from edgehub.errors import StartupError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

HANDSHAKE_TIMEOUT_S: Final = 10.0

# Finds a client that has vanished, where its protocol has no keep-alive.
_TCP_KEEP_ALIVE: Final = (
    (socket.TCP_KEEPIDLE, 60),
    (socket.TCP_KEEPINTVL, 15),
    (socket.TCP_KEEPCNT, 4),
)


class ListeningPort:
    """One port on all addresses of a host.

    Args:
        section: Section of the settings, for errors.
        purpose: What it is for, such as "HTTP", for errors.
        backlog: Connections that may wait to be accepted.
        key: Setting with its number.

    Attributes:
        key: The same.
    """

    def __init__(self, section: str, purpose: str, *, backlog: int, key: str = "port") -> None:
        self.key = key
        self._section = section
        self._purpose = purpose
        self._backlog = backlog
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each socket."""
        return [sock.getsockname()[:2] for sock in self._sockets]

    @property
    def is_accepting(self) -> bool:
        """Return whether connections are accepted."""
        return bool(self._servers)

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach it."""
        return all(
            ipaddress.ip_address(host.partition("%")[0]).is_loopback for host, _ in self.addresses
        )

    async def open(self, host: str, port: int) -> None:
        """Bind and listen on every address of `host`; connections wait until `accept`.

        Args:
            host: Address or name; empty = all addresses of this machine.
            port: 0 = any free port, the same one for all addresses.

        Raises:
            StartupError: If one of the addresses cannot be bound.
        """
        try:
            self._sockets = await _bind(host, port, self._backlog)
        except OSError as error:
            where = f"{host}:{port}"
            raise StartupError(
                f"cannot listen for {self._purpose} on {where}: "
                f"{error.strerror or error} ({self._hint(error.errno)})"
            ) from error

    async def accept(
        self,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        """Accept connections; those of an earlier call are accepted no more."""
        loop = asyncio.get_running_loop()
        # Both servers accept from one socket, so that it is open all the time.
        earlier = self._servers
        self._servers = [
            await loop.create_server(
                protocol,
                # A server closes its socket; the original is kept for the next server.
                sock=sock.dup(),
                backlog=self._backlog,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else handshake_timeout_s,
            )
            for sock in self._sockets
        ]
        for server in earlier:
            server.close()

    def no_clients(self) -> StartupError:
        """Return the error of a port on which no client could sign in."""
        where = " and ".join(f"{host}:{port}" for host, port in self.addresses)
        return StartupError(
            f"no client could sign in on {where} for {self._purpose}: clients without a password"
            " are let in on loopback addresses only, and there are no identities (set"
            " mqtt.identities_file and add some with `edgehub identity add`, or bind"
            f" {self._section}.host to 127.0.0.1)"
        )

    def close(self) -> None:
        """Stop accepting."""
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()
        self._sockets.clear()

    def _hint(self, number: int | None) -> str:
        """Return which setting to change after an error of the system."""
        setting = f"{self._section}.{self.key}"
        hints = {
            errno.EADDRINUSE: f"another program listens there; stop it or set {setting}",
            errno.EACCES: f"ports below 1024 need a privilege; set {setting}",
            errno.EADDRNOTAVAIL: f"this machine has no such address; set {self._section}.host",
        }
        return hints.get(number or 0, f"check {self._section}.host and {setting}")


def set_up_peer(transport: asyncio.BaseTransport) -> None:
    """Set up the socket of a new connection: small packets at once, and TCP keep-alive."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _TCP_KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Return the host of a peer, and host and port for logs; one that has left has neither."""
    peer = transport.get_extra_info("peername")
    return (peer[0], f"{peer[0]}:{peer[1]}") if isinstance(peer, tuple) else ("", "unknown")


async def _bind(host: str, port: int, backlog: int) -> list[socket.socket]:
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
