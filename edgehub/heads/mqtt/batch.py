"""Batches of child hubs: many messages in one PUBLISH.

Builds the messages and settles them as one. Invariants: a batch is settled once, after all its
messages; each record is checked as a PUBLISH of its own would be; no message is built before all
records are read, and none is submitted before all are built; other clients have turns in between.

Source: docs/reference/batch-format.md.
"""

from __future__ import annotations

import base64
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from edgehub.devices.ids import is_device_id
from edgehub.heads.mqtt.backlog import MESSAGE_OVERHEAD_BYTES
from edgehub.message import PROPERTIES_MAX, Message, Refusal, message_source
from edgehub.mqtt.batch import UNPACKED_BYTES_MAX, read_batch
from edgehub.mqtt.property_bag import WIRE_NAMES, add_item, bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.devices.bounds import Usage
    from edgehub.heads.head import Settle, Submit
    from edgehub.mqtt.packets import Publish
    from edgehub.mqtt.property_bag import Properties

_RECORD_PER_MESSAGE: Final = 6
SUBMITTED_AT_ONCE: Final = 128
"""Messages of a batch that are submitted at once."""

_SETTLED_LAST: Final = (
    Refusal.CLOSED,
    Refusal.LIMIT,
    Refusal.UNAVAILABLE,
    Refusal.INVALID,
    Refusal.RESERVED,
)


UNPACKED_AT_ONCE_S: Final = 0.002
"""Longest time for which a batch is read, or its messages are built, at once."""


class RecordError(ValueError):
    """A record is not a message; the text is the reason."""


class Unpacking:
    """A batch of which not all messages are built yet.

    Args:
        packet: The PUBLISH.
        payload: Its body.
        message_bytes_max: Largest message.
        usage: Counts its bytes until it is a batch.

    Attributes:
        packet: See above.
        records: Read records without a message yet.
        messages: Built messages.
    """

    __slots__ = ("_reader", "_size", "_usage", "messages", "packet", "records")

    def __init__(
        self, packet: Publish, payload: bytes, message_bytes_max: int, usage: Usage
    ) -> None:
        self.packet = packet
        self.records: deque[dict[str, Any]] = deque()
        self.messages: list[Message] = []
        # JSON escapes, and base64 takes a third more.
        bytes_max = max(UNPACKED_BYTES_MAX, _RECORD_PER_MESSAGE * message_bytes_max)
        self._reader = read_batch(payload, bytes_max=bytes_max)
        self._usage = usage
        self._size = len(payload)
        usage.used += self._size

    def read(self, is_long: Callable[[], bool]) -> bool:
        """Read records until `is_long`; return whether all are read.

        Raises:
            BatchError: If it is not a batch.
            BatchLibraryError: If it is compressed, and cannot be unpacked here.
        """
        for record in self._reader:
            self.records.append(record)
            if is_long():
                return False
        return True

    def abandon(self) -> None:
        """Stop counting its bytes."""
        self._usage.used -= self._size
        self._size = 0


class Batch:
    """The messages of one PUBLISH.

    Args:
        messages: At least one.

    Attributes:
        size: Bytes that they count against the backlog.
        refusals: Of refused messages; complete once the batch is settled.
    """

    __slots__ = ("_left", "_messages", "_next", "_settle", "_submit", "_token", "refusals", "size")

    def __init__(self, messages: Sequence[Message]) -> None:
        assert messages
        self._messages = messages
        self._left = len(messages)
        self._next = 0
        self._token = 0
        self._submit: Submit | None = None
        self._settle: Settle | None = None
        self.size = sum([len(message.body) + MESSAGE_OVERHEAD_BYTES for message in messages])
        self.refusals: list[Refusal] = []

    def submit(self, submit: Submit, settle: Settle, token: int) -> None:
        """Submit the first messages; `settle` is called once for the whole batch."""
        self._token = token
        self._submit, self._settle = submit, settle
        self.go_on()

    @property
    def is_submitted(self) -> bool:
        """Whether all messages are submitted."""
        return self._next == len(self._messages)

    def go_on(self) -> None:
        """Submit the next messages in order; other clients have turns in between."""
        assert self._submit is not None
        begin = self._next
        self._next = min(begin + SUBMITTED_AT_ONCE, len(self._messages))
        for place in range(begin, self._next):
            self._submit(self._messages[place], self._one, place)

    def abandon(self) -> None:
        """Submit no more messages: the connection is closed, and the batch is not acknowledged."""
        rest = len(self._messages) - self._next
        self._next = len(self._messages)
        self._count(rest, Refusal.CLOSED)

    def _one(self, token: int, refusal: Refusal | None) -> None:
        del token
        self._count(1, refusal)

    def _count(self, settled: int, refusal: Refusal | None) -> None:
        self._left -= settled
        if refusal is not None:
            self.refusals.append(refusal)
        if not self._left:
            assert self._settle is not None
            # A refusal after which the batch is sent again counts before one that is final.
            worst = next((each for each in _SETTLED_LAST if each in self.refusals), None)
            self._settle(self._token, worst)


def message_of(record: dict[str, Any], *, message_bytes_max: int) -> tuple[Message, bool]:
    """Build the message of a record; returns it and whether it is within the size limit.

    Raises:
        RecordError: If it is not a message.
    """
    device, module = record.get("device"), record.get("module")
    if not isinstance(device, str) or not is_device_id(device):
        raise RecordError("device is not an id")
    if module is not None and not (isinstance(module, str) and is_device_id(module)):
        raise RecordError("module is not an id")
    properties: Properties = {}
    system: Properties = {}
    for key, value in _properties(record, "properties").items():
        add_item(key, value, properties, system)
    system |= {
        name: value for name, value in _properties(record, "system").items() if name in WIRE_NAMES
    }
    name = record.get("id")
    if isinstance(name, str) and name:
        system.setdefault("messageId", name)
    body = _body(record)
    message = Message(
        device, module, message_source(module, system.get("outputName")), properties, system, body
    )
    size = len(body) + bytes_of(properties) + bytes_of(system)
    return message, size <= message_bytes_max


def record_bytes(record: dict[str, Any]) -> int:
    """Return the bytes of a record's body, for the journal; 0 = it has none."""
    body = record.get("body", record.get("body_base64"))
    return len(body.encode()) if isinstance(body, str) else 0


def _properties(record: dict[str, Any], key: str) -> Properties:
    found = record.get(key, {})
    if not isinstance(found, dict) or not all(
        value is None or isinstance(value, str) for value in found.values()
    ):
        raise RecordError(f"{key} is not an object of texts")
    if len(found) > PROPERTIES_MAX:
        raise RecordError(f"{key}: more than {PROPERTIES_MAX}")
    return found


def _body(record: dict[str, Any]) -> bytes:
    body = record.get("body")
    if isinstance(body, str):
        return body.encode()
    packed = record.get("body_base64")
    if not isinstance(packed, str):
        raise RecordError("neither body nor body_base64 is a text")
    try:
        return base64.b64decode(packed, validate=True)
    except ValueError as error:
        raise RecordError(f"body_base64: {error}") from None
