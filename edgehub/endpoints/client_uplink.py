"""Twins and methods of clients at the peer upstream: requests up, changes and calls down.

Owns which connection carries them. Invariants: nothing is sent before the peer has granted the
subscription to answers; what a peer sends about a client for which the hub does not speak there is
dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from edgehub.endpoints.mqtt_payload import NO_PROPERTIES
from edgehub.mqtt.client_topics import (
    CLIENTS_FILTER,
    OF_CLIENTS,
    OWN,
    OWN_FILTERS,
    client_levels,
    parse_client_topic,
)
from edgehub.mqtt.packets import LEVEL_5, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.endpoints.device_bound import DeviceBoundRelay
    from edgehub.endpoints.subscription_guard import SubscriptionGuard
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_topics import ClientPath

    Take = Callable[[str, ClientPath, bytes], None]

log = structlog.get_logger(__name__)


class ClientUplink:
    """What the hub's session upstream carries of twins and methods, whatever its endpoint is.

    Args:
        hub_id: The hub's own client id here; at the peer it may have another one.

    Attributes:
        changed: Called when `is_up` changes.
    """

    def __init__(self, hub_id: str) -> None:
        self._hub_id = hub_id
        self._takers: dict[str, Take] = {}
        self._link: tuple[Client, str, bool] | None = None
        self.changed: list[Callable[[bool], None]] = []

    @property
    def is_up(self) -> bool:
        """Return whether requests may be sent."""
        return self._link is not None

    def speaks_for(self, client_id: str) -> bool:
        """Return whether the peer takes requests about a client at present."""
        return self._link is not None and (self._link[2] or client_id == self._hub_id)

    def serve(self, family: str, take: Take) -> None:
        """Hand what the peer sends of a family to `take(client_id, path, body)`."""
        self._takers[family] = take

    def send(
        self,
        client_id: str,
        path: str,
        name: str = "",
        body: bytes = b"",
        *,
        rid: str | None = None,
        version: int | None = None,
    ) -> None:
        """Send a request or an answer about a client for which the hub speaks at the peer."""
        if self._link is None:
            return
        connection, own_id, for_all = self._link
        client = own_id if client_id == self._hub_id else client_id
        start = f"{OF_CLIENTS}{client}/" if for_all else OWN
        topic = start + client_levels(path, name, rid=rid, version=version)
        properties = NO_PROPERTIES if connection.level >= LEVEL_5 else b""
        connection.write(publish(topic.encode(), body, 0, qos=0, properties=properties))

    def begin(self, connection: Client, own_id: str, *, for_all: bool) -> None:
        """Use a connection; `own_id` is the hub's client id there."""
        self._link = connection, own_id, for_all
        for call in self.changed:
            call(True)

    def end(self) -> None:
        """Use no connection any more."""
        if self._link is not None:
            self._link = None
            for call in self.changed:
                call(False)

    def take(self, topic: str, body: bytes) -> None:
        """Handle what the peer has sent."""
        parsed = parse_client_topic(topic)
        if parsed is None or self._link is None:
            return
        client_id = parsed.client
        if not client_id or client_id == self._link[1]:
            client_id = self._hub_id
        take = self._takers.get(parsed.path.partition("/")[0])
        if take is not None and self.speaks_for(client_id):
            take(client_id, parsed, body)


class ClientDownlink:
    """Subscribes at one endpoint to what concerns twins and methods; implements `Downlink`.

    Args:
        endpoint_id: For log lines.
        uplink: Takes it.
        own_id: Client id with which the endpoint signs in.
        for_all: Whether the peer is a hub, which has the topics of others too.
        relay: Handles all other messages, None = there are none.
    """

    def __init__(
        self,
        endpoint_id: str,
        uplink: ClientUplink,
        *,
        own_id: str,
        for_all: bool,
        relay: DeviceBoundRelay | None,
    ) -> None:
        self._endpoint_id = endpoint_id
        self._uplink = uplink
        self._own_id = own_id
        self._for_all = for_all
        self._relay = relay
        self._connection: Client | None = None

    async def run(self, connection: Client, guard: SubscriptionGuard) -> None:
        """Keep the subscriptions while the connection lasts."""
        self._connection = connection
        try:
            answered, refused = await guard.subscribe(connection, self._filters)
            if refused:
                log.warning(
                    "client_uplink.subscription_refused",
                    endpoint_id=self._endpoint_id,
                    filters=refused,
                )
            elif answered.issuperset(self._filters):
                self._uplink.begin(connection, self._own_id, for_all=self._for_all)
            if self._relay is not None:
                await self._relay.run(connection, guard)
            connection.begin()
            await guard.wait(asyncio.Event())
        finally:
            self._connection = None
            self._uplink.end()

    def take(self, incoming: IncomingPublish) -> None:
        """Handle a message of the peer."""
        topic = incoming.topic or ""
        if topic.startswith((OWN, OF_CLIENTS)):
            if self._connection is not None:
                self._connection.acknowledge(incoming)
            if incoming.body is not None:
                self._uplink.take(topic, incoming.body)
        elif self._relay is not None:
            self._relay.take(incoming)
        elif self._connection is not None:
            self._connection.acknowledge(incoming)

    @property
    def _filters(self) -> Sequence[str]:
        return (CLIENTS_FILTER,) if self._for_all else OWN_FILTERS
