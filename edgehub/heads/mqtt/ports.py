"""The ports of the MQTT listener: plain, over TLS, and each of these over WebSocket.

Owns the listening sockets and their servers. Invariant: a port that is open stays open while its
certificate changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from edgehub.errors import StartupError
from edgehub.heads.binding import bind, bind_hint
from edgehub.heads.mqtt.connection import MqttConnection
from edgehub.heads.mqtt.limits import BACKLOG

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from edgehub.devices.handshakes import ServerContext
    from edgehub.heads.mqtt.context import ListenerContext

PORTS: Final = ("port", "tls_port", "ws_port", "wss_port")
"""Settings with the numbers of ports."""
_ENCRYPTED: Final = ("tls_port", "wss_port")


class ListeningPort:
    """One port on all addresses of the listener's host.

    Args:
        context: Shared by its connections.
        key: Setting with its number.

    Attributes:
        key: The same.
        is_encrypted: Whether it speaks TLS.
    """

    def __init__(self, context: ListenerContext, key: str) -> None:
        self._context = context
        self.key = key
        self.is_encrypted = key in _ENCRYPTED
        self._protocol: Callable[[], asyncio.Protocol] = lambda: MqttConnection(context)
        if key.startswith("ws"):
            # Loaded by listeners with such a port only.
            from edgehub.heads.mqtt.websocket import mqtt_over_websocket  # noqa: PLC0415

            self._protocol = mqtt_over_websocket(context)
        self.sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each socket."""
        return [sock.getsockname()[:2] for sock in self.sockets]

    @property
    def is_accepting(self) -> bool:
        """Whether connections are accepted."""
        return bool(self._servers)

    async def open(self) -> None:
        """Bind and listen; connections wait until `accept`.

        Raises:
            StartupError: If an address cannot be had.
        """
        settings = self._context.settings
        host, port = settings.host, getattr(settings, self.key)
        try:
            self.sockets = await bind(host, port, backlog=BACKLOG)
        except OSError as error:
            hint = bind_hint("mqtt", error, port=self.key)
            raise StartupError(f"cannot listen for MQTT on {host}:{port}: {hint}") from error

    async def accept(self, tls: ServerContext | None) -> None:
        """Accept connections, with this certificate from now on where the port is encrypted."""
        loop = asyncio.get_running_loop()
        # Both servers accept from one socket, so that it is open all the time.
        earlier = self._servers
        self._servers = [
            await loop.create_server(
                self._protocol,
                # A server closes its socket; the original is kept for the next server.
                sock=sock.dup(),
                backlog=BACKLOG,
                ssl=tls if self.is_encrypted else None,
                ssl_handshake_timeout=(
                    self._context.settings.connect_timeout_s if self.is_encrypted else None
                ),
            )
            for sock in self.sockets
        ]
        for server in earlier:
            server.close()

    def close(self) -> None:
        """Stop accepting."""
        for server in self._servers:
            server.close()
        for sock in self.sockets:
            sock.close()
        self._servers.clear()
        self.sockets.clear()


def ports_of(context: ListenerContext, *, has_tls: bool) -> list[ListeningPort]:
    """Return the ports that the settings have; those with TLS only where there is a certificate."""
    return [
        ListeningPort(context, key)
        for key in PORTS
        if getattr(context.settings, key) is not None and (has_tls or key not in _ENCRYPTED)
    ]
