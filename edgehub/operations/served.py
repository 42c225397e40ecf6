"""The endpoints of a hub as operations see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.message import EndpointId
    from edgehub.pump.pump import Pump


class ServedEndpoints(Protocol):
    """Every endpoint that rows may wait for, and its pump."""

    def ensure(self) -> None:
        """Start what settings, routes and stored queues ask for and is not there yet."""

    def served(self) -> set[EndpointId]:
        """Return the endpoints that rows may wait for: those with a pump, and $upstream."""

    def orphans(self) -> set[EndpointId]:
        """Return the endpoints of stored rows that have no pump."""

    def pump(self, endpoint_id: EndpointId) -> Pump | None:
        """Return the pump of an endpoint, None = nothing serves it."""

    def next_window_s(self, endpoint_id: EndpointId) -> float | None:
        """Return the time to the next connection window of a closed endpoint; None = not closed."""

    def waiting_bytes(self) -> dict[EndpointId, int]:
        """Return the bytes that wait for each endpoint whose link is up."""

    def endpoint_documents(self, drain_s: Mapping[EndpointId, float]) -> list[dict[str, Any]]:
        """Describe all endpoints; `drain_s`: seconds until nothing waits, where known."""
