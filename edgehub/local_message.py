"""A message of the local topic space.

Owns no state. Invariant: it is not changed once it was published; subscribers, queues and the table
of retained messages share one object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from edgehub.mqtt.topic_filter import bytes_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Refusal

    Settle = Callable[[int, Refusal | None], None]

ALWAYS_LOCAL: Final = ("te/#", "c8y/#")
"""Topics of the space in addition to those of the settings."""

HUB_TOPICS: Final = "$edge/"
"""Topics of the hub itself, which clients only subscribe to."""


class LocalMessage(Struct, eq=False, gc=False):
    """One message on one topic.

    Attributes:
        topic: Topic name.
        body: Payload bytes; empty and retained clears the topic.
        qos: 0 to 2, as published.
        retain: Whether it is kept as the last message of its topic.
        publisher: Client id of the publisher, the hub's id for the hub itself.
        properties: Property block of MQTT 5 as it is passed on, without its length, topic alias
            and message expiry interval; empty = none.
        expiry_ms: Message expiry interval from its publish on, None = never.
        expires_ms: The same as hub time; set when it is published.
        id: Number under which it is stored, 0 = it is not.
        came_by: Client id of the session that it came by and is not sent back to, empty = none; set
            by the broker head.
    """

    topic: str
    body: bytes
    publisher: str
    qos: int = 1
    retain: bool = False
    properties: bytes = b""
    expiry_ms: int | None = None
    expires_ms: int | None = None
    id: int = 0
    came_by: str = ""

    def copy(self) -> LocalMessage:
        """Return a copy that is stored separately."""
        return replace(self, id=0)

    @property
    def size(self) -> int:
        """Bytes that it counts against limits, without a fixed addition."""
        return bytes_in(self.topic) + len(self.body) + len(self.properties)


class Deliver(Protocol):
    """A subscriber that is a part of the hub."""

    def __call__(self, message: LocalMessage, settle: Settle, token: int) -> None:
        """Handle a message without waiting.

        `settle(token, None)` is called once all changes of the message are durable, at once without
        any; `settle(token, refusal)` when it is refused. The publisher's PUBACK waits for it.
        """


def ignore_result(_token: int, _refusal: Refusal | None) -> None:
    """Ignore the outcome of a message; a `settle` where nothing waits for it."""
