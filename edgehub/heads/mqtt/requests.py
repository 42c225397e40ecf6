"""Requests of clients: what they publish that is neither telemetry nor a local topic.

Owns which part of the hub handles which topics, as for twins and methods. Invariant: a client's
PUBACK follows the `settle` of its handler.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from edgehub.heads.mqtt.sign_in import SignedInClient
    from edgehub.message import Refusal

    RequestSettle = Callable[[int, "Refusal | RequestRefusal | None"], None]


class RequestRefusal(StrEnum):
    """Why a request is refused for good, beyond what the store refuses."""

    NOT_AUTHORIZED = "not_authorized"  # the client may not send it
    QUEUE_DEPTH = "queue_depth"  # as many messages wait for their receiver as may


_DEVICE_BOUND: Final = b"/devicebound/"


class ClientRequest(NamedTuple):
    """A request of a client.

    Attributes:
        client: Who sent it.
        topic: The topic.
        body: The payload.
        expiry_ms: Message expiry interval of MQTT 5, None = none.
        handler: Handles it.
    """

    client: SignedInClient
    topic: str
    body: bytes
    expiry_ms: int | None
    handler: RequestHandler


class RequestHandler(Protocol):
    """A part of the hub that handles requests of clients."""

    def __call__(self, request: ClientRequest, settle: RequestSettle, token: int) -> None:
        """Handle a request without waiting.

        `settle(token, None)` is called once all that it changes is durable, `settle(token,
        refusal)` when it is not taken; on the loop's thread, possibly before this call returns.
        """


class ClientRequests:
    """The handlers of one listener."""

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        self._handlers: list[tuple[re.Pattern[bytes], RequestHandler]] = []

    def add(self, pattern: re.Pattern[bytes], handler: RequestHandler) -> None:
        """Hand all requests whose topic matches a pattern, from its beginning, to a handler.

        Topics of requests begin with `$`, or are those of messages to devices.
        """
        self._handlers.append((pattern, handler))

    def find(self, topic: bytes) -> RequestHandler | None:
        """Return the handler of a topic, None = it is no request."""
        # Telemetry passes here too, and must not pay for the patterns.
        if not topic.startswith(b"$") and _DEVICE_BOUND not in topic:
            return None
        for pattern, handler in self._handlers:
            if pattern.match(topic):
                return handler
        return None
