"""What peers can never take: known before a message is stored, so that its sender hears of it.

Owns the endpoints whose largest packet is known. Invariant: what is refused here would be refused
at the endpoint, too; the few bytes of a message's id, which comes with its row, are judged there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.message import NEVER_MS, Row

if TYPE_CHECKING:
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.message import EndpointId, Message

UNSTORED: Final = -1
"""Stands for the offset of a row that is only measured."""


class PacketLimits:
    """Measures whole packets: topic, properties and body."""

    __slots__ = ("_endpoints",)

    def __init__(self) -> None:
        self._endpoints: dict[EndpointId, Endpoint] = {}

    def __bool__(self) -> bool:
        return bool(self._endpoints)

    def watch(self, endpoint: Endpoint) -> None:
        """Measure what goes to an endpoint from now on, if its peer has a limit."""
        if endpoint.row_bytes_max is not None:
            self._endpoints[endpoint.id] = endpoint

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """End it."""
        self._endpoints.pop(endpoint_id, None)

    def fault(self, message: Message, endpoint_id: EndpointId) -> str | None:
        """Return why the peer of an endpoint could never take a message, None = it may."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None or endpoint.row_bytes_max is None:
            return None
        row = Row(UNSTORED, message, 0, NEVER_MS, (), len(message.body))
        limit = endpoint.row_bytes_max
        try:
            size = endpoint.wire_bytes(row)
        except UnicodeError:
            return None  # the store refuses it
        if size <= limit:
            return None
        return f"too_large: packet of {size} bytes, {endpoint_id} takes {limit}"
