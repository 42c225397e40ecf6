"""MQTT over WebSocket: which requests are accepted.

Owns the rules of the request. Invariant: where clients need no password, pages of other sites do
not get in; a browser lets every page open a WebSocket to this machine.

Source: MQTT 3.1.1 and 5.0, section 6.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.typing import Subprotocol

from edgehub.devices.local_origin import Foreign, foreign
from edgehub.heads.mqtt.connection import MqttConnection
from edgehub.heads.mqtt.limits import publish_length_max
from edgehub.heads.websocket import WebSocketConnection, WebSocketOptions
from edgehub.mqtt.server_decoder import CONTROL_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.http11 import Request

    from edgehub.heads.mqtt.context import ListenerContext

PATHS: Final = ("/mqtt", "/$iothub/websocket")
"""The usual path, and that of Azure IoT Hub."""

_FRAME_OVERHEAD: Final = 5
"""The fixed header of a packet."""


def mqtt_over_websocket(context: ListenerContext) -> Callable[[], WebSocketConnection]:
    """Return what makes the protocol of each connection."""

    def connection() -> WebSocketConnection:
        message_bytes_max = context.settings.message_bytes_max
        options = WebSocketOptions(
            check=partial(_check, context),
            refused=partial(_refused, context),
            message_bytes_max=_FRAME_OVERHEAD + publish_length_max(message_bytes_max),
            first_bytes_max=_FRAME_OVERHEAD + CONTROL_BYTES_MAX,
            subprotocols=(Subprotocol("mqtt"),),
        )
        return WebSocketConnection(MqttConnection(context), options, context.clock)

    return connection


def _check(context: ListenerContext, request: Request) -> tuple[HTTPStatus, str] | None:
    if request.path.partition("?")[0] not in PATHS:
        return HTTPStatus.NOT_FOUND, f"MQTT over WebSocket is at {' and '.join(PATHS)}"
    if not context.anonymous:
        return None
    hosts, origins, sites = (
        request.headers.get_all(name) for name in ("Host", "Origin", "Sec-Fetch-Site")
    )
    why = foreign(",".join(hosts), ",".join(origins) if origins else None, ",".join(sites))
    if why is None:
        return None
    status = HTTPStatus.MISDIRECTED_REQUEST if why is Foreign.HOST else HTTPStatus.FORBIDDEN
    return status, f"{why}; with mqtt.anonymous = false every client needs credentials"


def _refused(context: ListenerContext, address: str, reason: str) -> None:
    context.log.warning("mqtt.websocket_refused", address=address, reason=reason)
