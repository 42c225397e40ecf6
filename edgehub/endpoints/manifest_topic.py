"""A manifest on a topic of the peer upstream: the subscription, and the report of its outcome.

Owns which connection carries them, and the outcome that was reported last. Invariant: the outcome
is sent, retained, whenever it changes and on each connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from edgehub.endpoints.mqtt_payload import NO_PROPERTIES
from edgehub.mqtt.packets import LEVEL_5, publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.device_bound import DeviceBoundRelay
    from edgehub.endpoints.subscription_guard import SubscriptionGuard
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish

log = structlog.get_logger(__name__)


class ManifestUplink:
    """The way to the topic, whatever the endpoint is.

    Attributes:
        taken: Called with each payload; None = its packet was malformed.
    """

    def __init__(self) -> None:
        self._link: tuple[Client, str] | None = None
        self._outcome: bytes | None = None
        self.taken: Callable[[bytes | None], None] = lambda _body: None

    def report(self, outcome: bytes) -> None:
        """Publish what became of the manifest, now or with the next connection."""
        self._outcome = outcome
        self._send()

    def begin(self, connection: Client, topic: str) -> None:
        """Use a connection."""
        self._link = connection, topic
        self._send()

    def end(self) -> None:
        """Use no connection any more."""
        self._link = None

    def _send(self) -> None:
        if self._link is None or self._outcome is None:
            return
        connection, topic = self._link
        properties = NO_PROPERTIES if connection.level >= LEVEL_5 else b""
        connection.write(
            publish(
                f"{topic}/reported".encode(),
                self._outcome,
                0,
                qos=0,
                retain=True,
                properties=properties,
            )
        )


class ManifestDownlink:
    """Subscribes at one endpoint to the topic; implements `Downlink`.

    Args:
        endpoint_id: For log lines.
        uplink: Takes what comes.
        topic: The topic.
        relay: Handles all other messages, None = there are none.
    """

    def __init__(
        self,
        endpoint_id: str,
        uplink: ManifestUplink,
        *,
        topic: str,
        relay: DeviceBoundRelay | None,
    ) -> None:
        self._endpoint_id = endpoint_id
        self._uplink = uplink
        self._topic = topic
        self._relay = relay
        self._connection: Client | None = None

    async def run(self, connection: Client, guard: SubscriptionGuard) -> None:
        """Keep the subscription while the connection lasts."""
        self._connection = connection
        self._uplink.begin(connection, self._topic)
        try:
            _, refused = await guard.subscribe(connection, (self._topic,))
            if refused:
                log.warning(
                    "endpoint.manifest_topic_refused",
                    endpoint_id=self._endpoint_id,
                    topic=self._topic,
                )
            if self._relay is not None:
                await self._relay.run(connection, guard)
            connection.begin()
            await guard.wait(asyncio.Event())
        finally:
            self._connection = None
            self._uplink.end()

    def take(self, incoming: IncomingPublish) -> None:
        """Handle a message of the peer."""
        if incoming.topic == self._topic:
            self._uplink.taken(incoming.body)
        elif self._relay is not None:
            self._relay.take(incoming)
            return
        if self._connection is not None:
            self._connection.acknowledge(incoming)
