"""Messages to devices and modules, as operations return them."""

from __future__ import annotations

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


class SentMessage(TypedDict):
    """A message that is stored for a device or module.

    Attributes:
        expires: When it expires, UTC.
        waiting: Messages that wait here for this client now.
        owner: Hub that speaks for the device, and gets the message next; null = this hub, or none
            is known now.
    """

    message_id: str
    expires: str
    waiting: int
    owner: str | None


class DeviceMessageDocument(TypedDict):
    """A message to a device or module.

    Attributes:
        priority: null = after all others.
        origin: `api`, `client` or `upstream`.
        deliveries: How often it was written to its client.
        in_flight: Its client has it and has not acknowledged it.
        dead: Why it is not sent any more, null = it waits.
        size: Bytes that it counts against bounds.
    """

    message_id: str
    priority: int | None
    origin: str
    enqueued: str
    expires: str
    deliveries: int
    in_flight: bool
    dead: str | None
    size: int


class DeviceMessagesDocument(TypedDict):
    """The messages to one device or module.

    Attributes:
        waiting: The next one first.
        dead_letters: The oldest first.
        owner: Hub that speaks for the device and has others of its messages; null = this hub, or
            none is known now.
    """

    device_id: str
    module_id: str | None
    waiting: list[DeviceMessageDocument]
    dead_letters: list[DeviceMessageDocument]
    owner: str | None


class PurgedMessages(TypedDict):
    """How many messages were removed."""

    purged: int
