"""Device-bound messages: relayed from the peer to devices that are connected here, never stored.

Owns which devices are subscribed at the peer and the few messages that a device could not take yet;
calls the connection and the listener's delivery it was given. Invariant: a message is acknowledged
to the peer after the device's PUBACK, or when it can never be delivered, and once only.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.message import FailureKind, Message
from edgehub.mqtt.property_bag import BagError, parse_bag

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.subscription_guard import SubscriptionGuard
    from edgehub.message import SendResult
    from edgehub.mqtt.client import Client
    from edgehub.mqtt.client_decoder import IncomingPublish

    Deliver = Callable[[str, Message, Callable[[SendResult], None]], None]

UNDELIVERED_MAX: Final = 16
"""Messages kept without PUBACK for devices that disconnected. Brokers stop sending at a number of
unacknowledged messages (Mosquitto at 20), so an absent device must not use them all up."""

SOURCE: Final = "/devicebound/"

_TOPIC: Final = re.compile(r"devices/([^/]+)/messages/devicebound/([^/]*)/?")

log = structlog.get_logger(__name__)


class DeviceBoundRelay:
    """The relay of one MQTT endpoint.

    Args:
        endpoint_id: For log lines.
        deliver: Hands a message to a connected device; settles once.
    """

    def __init__(self, endpoint_id: str, deliver: Deliver) -> None:
        self._endpoint_id = endpoint_id
        self._deliver = deliver
        self._wanted: set[str] = set()
        self._subscribed: set[str] = set()
        self._changed = asyncio.Event()
        self._connection: Client | None = None
        self._undelivered: list[tuple[str, Message, IncomingPublish]] = []
        self.dropped_total = 0

    def subscribe(self, device_id: str) -> None:
        """Relay messages to a device that is connected and subscribed here."""
        self._wanted.add(device_id)
        self._changed.set()
        again = [item for item in self._undelivered if item[0] == device_id]
        self._undelivered = [item for item in self._undelivered if item[0] != device_id]
        for _, message, incoming in again:
            self._offer(device_id, message, incoming)

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
            self._undelivered.clear()

    def take(self, incoming: IncomingPublish) -> None:
        """Relay a message of the peer."""
        match = None if incoming.topic is None else _TOPIC.fullmatch(incoming.topic)
        if match is None:
            self._drop(incoming, "not a device-bound topic")
            return
        if incoming.body is None:
            self._drop(incoming, f"its packet of {incoming.size} bytes is too large or malformed")
            return
        device_id, bag = match.groups()
        try:
            properties, system = parse_bag(bag)
        except BagError as error:
            self._drop(incoming, str(error))
            return
        message = Message(device_id, None, SOURCE, properties, system, incoming.body)
        self._offer(device_id, message, incoming)

    def _offer(self, device_id: str, message: Message, incoming: IncomingPublish) -> None:
        connection = self._connection

        def settle(result: SendResult) -> None:
            if connection is None or connection is not self._connection:
                return
            match result.kind:
                case None:
                    connection.acknowledge(incoming)
                case FailureKind.REJECTED | FailureKind.TOO_LARGE:
                    self._drop(incoming, result.reason or result.kind.value)
                case _:
                    self._keep(device_id, message, incoming)

        self._deliver(device_id, message, settle)

    def _keep(self, device_id: str, message: Message, incoming: IncomingPublish) -> None:
        if len(self._undelivered) >= UNDELIVERED_MAX:
            _, _, oldest = self._undelivered.pop(0)
            self._drop(oldest, "the device did not reconnect")
        self._undelivered.append((device_id, message, incoming))

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
            await connection.unsubscribe(_filter(device_id) for device_id in removed)
            self._subscribed -= removed
        if guard.suspects_any:
            guard.keep_only({_filter(device_id) for device_id in self._wanted})
        if new:
            by_filter = {_filter(device_id): device_id for device_id in new}
            answered, refused = await guard.subscribe(connection, by_filter.keys())
            self._subscribed |= {by_filter[each] for each in answered}
            if refused:
                log.warning(
                    "device_bound.subscription_refused",
                    endpoint_id=self._endpoint_id,
                    filters=len(refused),
                    first=refused[0],
                )


def _filter(device_id: str) -> str:
    return f"devices/{device_id}/messages/devicebound/#"
