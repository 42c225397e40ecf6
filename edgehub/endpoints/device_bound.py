"""Device-bound messages: taken over from the peer for devices that are connected here.

Owns which devices are subscribed at the peer; hands their messages on to be stored. Invariant: a
message is acknowledged to the peer once it is stored, or when it can never be delivered, and once
only.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from edgehub.errors import ProtocolError
from edgehub.mqtt.message_properties import read_message_properties
from edgehub.mqtt.property_bag import BagError, parse_bag

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.subscription_guard import SubscriptionGuard
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish
    from edgehub.mqtt.property_bag import Properties

DEVICE_TOPIC: Final = re.compile(r"devices/([^/]+)/messages/devicebound/([^/]*)/?")

log = structlog.get_logger(__name__)


class Accept(Protocol):
    """What stores messages to devices."""

    def __call__(
        self,
        target: str,
        body: bytes,
        properties: Properties,
        system: Properties,
        *,
        expiry_ms: int | None,
        dup: bool,
        done: Callable[[], None],
    ) -> None:
        """Store a message without waiting.

        Args:
            target: The device.
            body: Payload.
            properties: Application properties.
            system: System properties.
            expiry_ms: Message expiry interval of MQTT 5, None = none.
            dup: The peer may have sent it before.
            done: Called once it is stored, or dropped because there is no room: the peer need not
                send it again.
        """


def accept_publish(
    accept: Accept, device_id: str, bag: str, incoming: IncomingPublish, done: Callable[[], None]
) -> str:
    """Store a message of a peer; returns why it cannot be stored, empty = nothing is wrong.

    Args:
        accept: Stores it.
        device_id: The device that its topic names.
        bag: The property bag of its topic.
        incoming: The message.
        done: Called once the peer need not send it again.
    """
    if incoming.body is None:
        return f"its packet of {incoming.size} bytes is too large or malformed"
    try:
        properties, system = parse_bag(bag)
        given = read_message_properties(incoming.properties)
    except (BagError, ProtocolError) as error:
        return str(error)
    # The property bag takes precedence, as at the listener.
    accept(
        device_id,
        incoming.body,
        {**given.properties, **properties},
        {**given.system, **system},
        expiry_ms=given.expiry_ms,
        dup=incoming.dup,
        done=done,
    )
    return ""


class DeviceBoundRelay:
    """The relay of one MQTT endpoint.

    Args:
        endpoint_id: For log lines.
        accept: Stores a message.
        only: The one device whose messages the peer allows, None = those of all.
    """

    def __init__(self, endpoint_id: str, accept: Accept, *, only: str | None = None) -> None:
        self._endpoint_id = endpoint_id
        self._accept = accept
        self._only = only
        self._wanted: set[str] = set()
        self._subscribed: set[str] = set()
        self._changed = asyncio.Event()
        self._connection: Client | None = None
        self.dropped_total = 0

    def subscribe(self, device_id: str) -> None:
        """Relay messages to a device that is connected and subscribed here."""
        if self._only not in {None, device_id}:
            return
        self._wanted.add(device_id)
        self._changed.set()

    def unsubscribe(self, device_id: str) -> None:
        """Stop relaying messages to a device; the peer keeps them."""
        self._wanted.discard(device_id)
        self._changed.set()

    async def run(self, connection: Client, guard: SubscriptionGuard) -> None:
        """Keep the peer's subscriptions as wanted while the connection lasts."""
        self._connection = connection
        self._subscribed.clear()
        connection.begin()
        try:
            while True:
                self._changed.clear()
                await self._reconcile(connection, guard)
                await guard.wait(self._changed)
        finally:
            # The peer sends unacknowledged messages again on the next connection.
            self._connection = None

    def take(self, incoming: IncomingPublish) -> None:
        """Relay a message of the peer."""
        match = None if incoming.topic is None else DEVICE_TOPIC.fullmatch(incoming.topic)
        if match is None:
            self._drop(incoming, "not a device-bound topic")
            return
        connection = self._connection

        def done() -> None:
            if connection is not None and connection is self._connection:
                connection.acknowledge(incoming)

        device_id, bag = match.groups()
        if fault := accept_publish(self._accept, device_id, bag, incoming, done):
            self._drop(incoming, fault)

    def _drop(self, incoming: IncomingPublish, reason: str) -> None:
        self.dropped_total += 1
        log.warning(
            "device_bound.message_dropped",
            endpoint_id=self._endpoint_id,
            reason=reason,
            dropped_total=self.dropped_total,
        )
        if self._connection is not None:
            self._connection.acknowledge(incoming)

    async def _reconcile(self, connection: Client, guard: SubscriptionGuard) -> None:
        removed = self._subscribed - self._wanted
        new = self._wanted - self._subscribed
        if removed:
            await connection.unsubscribe(device_filter(device_id) for device_id in removed)
            self._subscribed -= removed
        if guard.suspects_any:
            guard.keep_only({device_filter(device_id) for device_id in self._wanted})
        if new:
            by_filter = {device_filter(device_id): device_id for device_id in new}
            answered, refused = await guard.subscribe(connection, by_filter.keys())
            self._subscribed |= {by_filter[each] for each in answered}
            if refused:
                log.warning(
                    "device_bound.subscription_refused",
                    endpoint_id=self._endpoint_id,
                    filters=len(refused),
                    first=refused[0],
                )


def device_filter(device_id: str) -> str:
    """Return the filter of what the peer sends to a device."""
    return f"devices/{device_id}/messages/devicebound/#"
