"""Twins and methods of clients at the peer upstream: requests up, changes and calls down.

Owns which connection carries them: the hub's session, or one that a device has of its own.
Invariants: nothing is sent before the peer has granted the subscription to answers; what a peer
sends about a client for which the session does not speak there is dropped.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

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
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from edgehub.endpoints.device_bound import DeviceBoundRelay
    from edgehub.endpoints.subscription_guard import SubscriptionGuard
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.client_topics import ClientPath

    Take = Callable[[str, ClientPath, bytes], None]

log = structlog.get_logger(__name__)


class ClientSessions(Protocol):
    """The sessions upstream that devices have of their own."""

    def carries(self, device_id: str) -> bool:
        """Return whether the session of a device is open, or may be opened now."""

    def use(self, device_id: str) -> AbstractAsyncContextManager[None]:
        """Keep the session of a device open for the length of the block.

        Raises:
            EdgeHubError: It cannot be opened now, or refuses a subscription.
        """

    def publish(self, device_id: str, topic: str, body: bytes) -> None:
        """Publish over the session of a device with QoS 0; nothing while it is closed."""

    def set_attached(self, device_id: str, attached: bool) -> None:
        """Keep the session of a device open from now on, or as long as rows need it."""


class ClientUplink:
    """What sessions upstream carry of twins and methods, whatever their endpoint is.

    Args:
        hub_id: The hub's own client id here; at the peer it may have another one.

    Attributes:
        changed: Called when the sessions may have been opened or have ended, with `is_up`.
        session_changed: Called when the session of a device was opened or has ended.
    """

    def __init__(self, hub_id: str) -> None:
        self._hub_id = hub_id
        self._takers: dict[str, Take] = {}
        self._link: tuple[Client, str, bool] | None = None
        self._sessions: ClientSessions | None = None
        # By device, the families that it listens to here.
        self._listening: dict[str, set[str]] = {}
        self.changed: list[Callable[[bool], None]] = []
        self.session_changed: list[Callable[[str, bool], None]] = []

    @property
    def is_up(self) -> bool:
        """Return whether requests may be sent."""
        return self._link is not None

    def speaks_for(self, client_id: str) -> bool:
        """Return whether the peer takes requests about a client at present."""
        has_session = self._link is not None and self._sessions is not None
        return self._by_hub(client_id) or (has_session and "/" not in client_id)

    def carries(self, client_id: str) -> bool:
        """Return whether a request about a client can be sent now."""
        if self._by_hub(client_id):
            return True
        sessions = self._sessions
        return self.speaks_for(client_id) and sessions is not None and sessions.carries(client_id)

    def is_shared(self, client_id: str) -> bool:
        """Return whether other hubs may speak for a client at the peer too."""
        return self._link is not None and self._link[2] and client_id != self._hub_id

    @asynccontextmanager
    async def reach(self, client_id: str) -> AsyncIterator[None]:
        """Keep the session open that carries what is about a client.

        Raises:
            EdgeHubError: It cannot be opened now.
        """
        if self._sessions is None or self._by_hub(client_id):
            yield
            return
        async with self._sessions.use(client_id):
            yield

    def set_listening(self, client_id: str, family: str, listens: bool) -> None:
        """Record that a client begins or ceases to listen here to what the peer sends."""
        if "/" in client_id or client_id == self._hub_id:
            return
        families = self._listening.setdefault(client_id, set())
        if listens:
            families.add(family)
        else:
            families.discard(family)
        if not families:
            del self._listening[client_id]
        if self._sessions is not None:
            self._sessions.set_attached(client_id, bool(families))

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
        version: str | None = None,
        at_ms: int | None = None,
        failed: bool = False,
    ) -> None:
        """Send a request or an answer about a client for which the hub speaks at the peer."""
        if self._link is None:
            return
        connection, own_id, for_all = self._link
        if for_all:
            client = own_id if client_id == self._hub_id else client_id
            start = f"{OF_CLIENTS}{client}/"
        else:
            # What hubs say to each other beyond the dialect breaks the topic for others.
            start, version, at_ms, failed = OWN, None, None, False
        levels = client_levels(path, name, rid=rid, version=version, at_ms=at_ms, failed=failed)
        topic = start + levels
        if self._by_hub(client_id):
            properties = NO_PROPERTIES if connection.level >= LEVEL_5 else b""
            connection.write(publish(topic.encode(), body, 0, qos=0, properties=properties))
        elif self._sessions is not None:
            self._sessions.publish(client_id, topic, body)

    def begin(self, connection: Client, own_id: str, *, for_all: bool) -> None:
        """Use a connection; `own_id` is the hub's client id there."""
        self._link = connection, own_id, for_all
        self._notify(True)

    def end(self) -> None:
        """Use no connection any more."""
        if self._link is not None:
            self._link = None
            self._notify(False)

    def attach(self, sessions: ClientSessions) -> None:
        """Use the sessions of devices, which are up."""
        self._sessions = sessions
        for device_id in self._listening:
            sessions.set_attached(device_id, True)
        if self._link is not None:
            self._notify(True)

    def detach(self, sessions: ClientSessions) -> None:
        """Use these sessions of devices no more."""
        if self._sessions is sessions:
            self._sessions = None

    def is_attached(self, device_id: str) -> bool:
        """Return whether a device that listens here has a session of its own for it."""
        return self._sessions is not None and device_id in self._listening

    def session_is(self, device_id: str, is_open: bool) -> None:
        """Record that the session of a device was opened, or has ended."""
        for call in self.session_changed:
            call(device_id, is_open)

    def take(self, topic: str, body: bytes) -> None:
        """Handle what the peer has sent over the hub's session."""
        parsed = parse_client_topic(topic)
        if parsed is None or self._link is None:
            return
        client_id = parsed.client
        if not client_id or client_id == self._link[1]:
            client_id = self._hub_id
        if self._by_hub(client_id):
            self._hand_on(client_id, parsed, body)

    def take_from(self, device_id: str, topic: str, body: bytes) -> None:
        """Handle what the peer has sent over the session of a device."""
        parsed = parse_client_topic(topic)
        if parsed is not None and not parsed.client:
            self._hand_on(device_id, parsed, body)

    def _by_hub(self, client_id: str) -> bool:
        """Return whether the hub's session speaks for a client, while it is there."""
        return self._link is not None and (self._link[2] or client_id == self._hub_id)

    def _hand_on(self, client_id: str, path: ClientPath, body: bytes) -> None:
        take = self._takers.get(path.path.partition("/")[0])
        if take is not None:
            take(client_id, path, body)

    def _notify(self, is_up: bool) -> None:
        for call in self.changed:
            call(is_up)


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
