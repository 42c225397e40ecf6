"""Endpoints that relay messages to devices, the subscribed devices, and the state of the uplink.

Owns both lists; heads record subscribed devices, and endpoints are added when they open. Invariant:
an endpoint that relays knows every subscribed device, whichever was first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from edgehub.message import UPSTREAM

if TYPE_CHECKING:
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.message import EndpointId


class Relay(Protocol):
    """An endpoint that relays messages to devices."""

    def subscribe_device(self, device_id: str) -> None:
        """Start to relay messages to a device."""

    def unsubscribe_device(self, device_id: str) -> None:
        """Stop relaying them."""


class Relays:
    """The relaying endpoints and the subscribed devices."""

    def __init__(self) -> None:
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._relays: dict[EndpointId, Relay] = {}
        self._listening: set[str] = set()

    def add(self, endpoint: Endpoint, relay: Relay | None) -> None:
        """Record an endpoint that is served from now on, and the part of it that relays."""
        self._endpoints[endpoint.id] = endpoint
        if relay is not None:
            self._relays[endpoint.id] = relay
            for device_id in self._listening:
                relay.subscribe_device(device_id)

    def remove(self, endpoint_id: EndpointId) -> None:
        """Forget an endpoint."""
        del self._endpoints[endpoint_id]
        self._relays.pop(endpoint_id, None)

    def set_interest(self, device_id: str, wanted: bool) -> None:
        """Start or stop relaying messages to a device; peers have none for modules."""
        if "/" in device_id:
            return
        if wanted:
            self._listening.add(device_id)
        else:
            self._listening.discard(device_id)
        for relay in self._relays.values():
            if wanted:
                relay.subscribe_device(device_id)
            else:
                relay.unsubscribe_device(device_id)

    def upstream_is_up(self) -> bool:
        """Return whether rows for $upstream can be sent now."""
        upstream = self._endpoints.get(UPSTREAM)
        return upstream is not None and upstream.state == "up"
