"""Messages that a peer can never take, refused before they are stored so that the sender knows.

Owns the endpoints whose largest packet is known. Invariant: what is refused here would be refused
by the endpoint too. The few bytes of a message's id, which comes with its row, count only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.message import NEVER_MS, Row

if TYPE_CHECKING:
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.message import EndpointId, Message

UNSTORED: Final = -1
"""Offset of a row that is measured and not stored."""


class PacketLimits:
    """The largest packet of each endpoint: topic, properties and body together.

    Attributes:
        endpoints: Those whose peers have a limit.
    """

    __slots__ = ("endpoints",)

    def __init__(self) -> None:
        self.endpoints: dict[EndpointId, Endpoint] = {}

    def watch(self, endpoint: Endpoint) -> None:
        """Measure what goes to an endpoint from now on, if its peer has a limit."""
        if endpoint.row_bytes_max is not None:
            self.endpoints[endpoint.id] = endpoint

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Stop measuring for an endpoint."""
        self.endpoints.pop(endpoint_id, None)

    def fault(self, message: Message, endpoint_id: EndpointId) -> str | None:
        """Return why the peer of an endpoint could never take a message, None = it may."""
        endpoint = self.endpoints.get(endpoint_id)
        if endpoint is None or endpoint.row_bytes_max is None:
            return None
        row = Row(UNSTORED, message, 0, NEVER_MS, (), len(message.body))
        limit = endpoint.row_bytes_max
        try:
            (size,) = endpoint.wire_bytes((row,))
        except UnicodeError:
            return None  # the store refuses it
        if size <= limit:
            return None
        return f"too_large: packet of {size} bytes, {endpoint_id} takes {limit}"
