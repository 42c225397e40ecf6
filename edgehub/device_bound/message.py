"""One message to a device or module, and what becomes of it.

Owns no state. Invariant: a message that exists has a valid target, an id and a time to live.

Source: Azure IoT Hub, "Understand cloud-to-device messaging from an IoT hub" (states, delivery
count, time to live, feedback).
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.clock import utc_text
from edgehub.errors import EdgeHubError
from edgehub.message import DEFAULT_PRIORITY, Message, Priority
from edgehub.mqtt.property_bag import build_bag, outgoing

if TYPE_CHECKING:
    from edgehub.mqtt.property_bag import Properties

TTL_S_MAX: Final = 48 * 3600
"""Longest time to live, as at Azure IoT Hub."""

ACK_PROPERTY: Final = "iothub-ack"
PRIORITY_PROPERTY: Final = "edgehub-priority"
"""Property with the priority of a message that has one, from hub to hub and to the device."""

FEEDBACK_TYPE: Final = "application/vnd.microsoft.iothub.feedback.json"
OVERHEAD_BYTES: Final = 200
"""What a message takes in memory in addition to its texts and body."""


class QueueDepthExceededError(EdgeHubError):
    """As many messages wait for the client, or for all, as may."""


class Origin(StrEnum):
    """Who sent a message."""

    API = "api"  # the HTTP API or the command line
    CLIENT = "client"  # a client of this hub with the right
    UPSTREAM = "upstream"  # the parent hub or the cloud


class EndReason(StrEnum):
    """Why a message has left this hub; but for `MOVED` the words of Azure IoT Hub's feedback."""

    SUCCESS = "Success"
    EXPIRED = "Expired"
    DELIVERY_COUNT_EXCEEDED = "DeliveryCountExceeded"
    REJECTED = "Rejected"
    PURGED = "Purged"
    QUEUE_DEPTH_EXCEEDED = "QueueDepthExceeded"
    MOVED = "Moved"  # to the hub that owns the device, which informs the sender


DEAD: Final = frozenset({EndReason.DELIVERY_COUNT_EXCEEDED, EndReason.REJECTED})
"""Reasons for which a message is kept as a dead letter."""

_WANTED: Final = {
    "positive": frozenset({EndReason.SUCCESS}),
    "negative": frozenset(EndReason) - {EndReason.SUCCESS, EndReason.MOVED},
    "full": frozenset(EndReason) - {EndReason.MOVED},
}
ACKS: Final = ("none", *_WANTED)


class DeviceMessage(Struct, kw_only=True, eq=False):
    """A message to a device or module.

    Attributes:
        target: `<device>` or `<device>/<module>`.
        message_id: Given by the sender, or made by the hub.
        properties: Application properties.
        system: System properties by the names that conditions use.
        body: Payload; empty once it is a dead letter, whose payload is on disk only.
        priority: 0 to 9, or the default one behind them.
        origin: Who sent it.
        enqueued_ms: Hub time at which it was stored.
        expires_ms: Hub time at which it expires.
        number: Order of arrival; 0 = it is not stored yet.
        deliveries: How often it was written to its client.
        dead: Why it will not be sent any more, None = it waits.
        size: Bytes that it counts against bounds.
    """

    target: str
    message_id: str
    properties: Properties
    system: Properties
    body: bytes
    priority: Priority
    origin: Origin
    enqueued_ms: int
    expires_ms: int
    number: int = 0
    deliveries: int = 0
    dead: str | None = None
    size: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Return what messages of one client are sorted by."""
        return self.priority, self.number

    @property
    def device_id(self) -> str:
        """Return the device that it is for, or whose module it is for."""
        return self.target.partition("/")[0]

    def wants(self, reason: EndReason) -> bool:
        """Return whether its sender wants to be informed of what became of it."""
        ack = self.properties.get(ACK_PROPERTY) or self.system.get("ack") or ""
        return reason in _WANTED.get(ack, ())

    def header(self) -> bytes:
        """Return id and properties as they are stored.

        Raises:
            orjson.JSONEncodeError: A text cannot be written as UTF-8.
        """
        return orjson.dumps((self.message_id, self.properties, self.system))

    def outgoing(self, now_ms: int, expires_utc_ms: int | None) -> tuple[str, Message]:
        """Return property bag and message as its client gets them.

        Args:
            now_ms: Hub time.
            expires_utc_ms: UTC at which it expires, None = it is not known.
        """
        system = {
            **self.system,
            "messageId": self.message_id,
            "to": address_of(self.target),
        }
        system.pop("absolute-expiry-time", None)
        if expires_utc_ms is not None:
            system["absolute-expiry-time"] = utc_text(expires_utc_ms)
        properties = self.properties
        if self.priority != DEFAULT_PRIORITY:
            properties = {**properties, PRIORITY_PROPERTY: str(self.priority)}
        left_ms = max(0, self.expires_ms - now_ms)
        message = outgoing(Message("", None, "", properties, system, self.body, expiry_ms=left_ms))
        return build_bag(message, sender=False), message


def address_of(target: str) -> str:
    """Return the address of a client as `$.to` has it."""
    device_id, _, module_id = target.partition("/")
    module = f"/modules/{module_id}" if module_id else ""
    return f"/devices/{device_id}{module}/messages/devicebound"


def size_of(properties: Properties, system: Properties, body: bytes) -> int:
    """Return the bytes that a message counts against bounds."""
    texts = sum(len(name) + len(value or "") for name, value in (properties | system).items())
    return len(body) + texts + OVERHEAD_BYTES


def split_priority(properties: Properties) -> tuple[Priority, Properties]:
    """Return the priority that properties name, the default one without, and all others."""
    value = properties.get(PRIORITY_PROPERTY)
    if value is None:
        return DEFAULT_PRIORITY, properties
    others = {name: text for name, text in properties.items() if name != PRIORITY_PROPERTY}
    is_one = len(value) == 1 and value in "0123456789"
    return (Priority(int(value)) if is_one else DEFAULT_PRIORITY), others


def milliseconds_left(system: Properties, utc_ms: int) -> int | None:
    """Return what is left until the expiry that a sender gave, None = it gave none."""
    given = system.get("absolute-expiry-time")
    if not given:
        return None
    try:
        expiry = datetime.fromisoformat(given)
    except ValueError:
        return None
    if expiry.tzinfo is None:
        expiry = expiry.replace(tzinfo=UTC)
    return max(0, int(expiry.timestamp() * 1000) - utc_ms)


def feedback_record(
    message: DeviceMessage, reason: EndReason, detail: str, utc_ms: int
) -> dict[str, Any]:
    """Return what a sender is informed of, in the form of Azure IoT Hub's feedback."""
    device_id, _, module_id = message.target.partition("/")
    record = {
        "originalMessageId": message.message_id,
        "statusCode": reason.value,
        "description": detail or reason.value,
        "enqueuedTimeUtc": utc_text(utc_ms),
        "deviceId": device_id,
    }
    return {**record, "moduleId": module_id} if module_id else record
