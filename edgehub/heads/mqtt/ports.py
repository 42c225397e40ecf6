"""The ports of the MQTT listener: plain, over TLS, and each of these over WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.heads.binding import ListeningPort
from edgehub.heads.mqtt.connection import MqttConnection
from edgehub.heads.mqtt.limits import BACKLOG

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from edgehub.devices.handshakes import ServerContext
    from edgehub.heads.mqtt.context import ListenerContext

PORTS: Final = ("port", "tls_port", "ws_port", "wss_port")
"""Settings with the numbers of ports."""
_ENCRYPTED: Final = ("tls_port", "wss_port")


class MqttPort(ListeningPort):
    """One port of the listener.

    Args:
        context: Shared by its connections.
        key: Setting with its number.

    Attributes:
        is_encrypted: Whether it speaks TLS.
    """

    def __init__(self, context: ListenerContext, key: str) -> None:
        super().__init__("mqtt", "MQTT", backlog=BACKLOG, key=key)
        self._context = context
        self.is_encrypted = key in _ENCRYPTED
        self._protocol: Callable[[], asyncio.Protocol] = lambda: MqttConnection(context)
        if key.startswith("ws"):
            # Loaded by listeners with such a port only.
            from edgehub.heads.mqtt.websocket import mqtt_over_websocket  # noqa: PLC0415

            self._protocol = mqtt_over_websocket(context)

    async def serve(self, tls: ServerContext | None) -> None:
        """Accept connections, with this certificate from now on where the port is encrypted."""
        await self.accept(
            self._protocol,
            tls if self.is_encrypted else None,
            handshake_timeout_s=self._context.settings.connect_timeout_s,
        )


def ports_of(context: ListenerContext, *, has_tls: bool) -> list[MqttPort]:
    """Return the ports that the settings have; those with TLS only where there is a certificate."""
    return [
        MqttPort(context, key)
        for key in PORTS
        if getattr(context.settings, key) is not None and (has_tls or key not in _ENCRYPTED)
    ]
