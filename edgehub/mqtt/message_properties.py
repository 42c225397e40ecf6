"""Mapping between the properties of a PUBLISH of MQTT 5 and those of a message.

Pure. A user property is an item of the property bag in another place, so the same names mean the
same. Invariant: a `MessageProperties` is shared by the messages that carry the same block, so
neither it nor its dictionaries are ever changed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from edgehub.mqtt.fields import is_plain, variable
from edgehub.mqtt.properties import (
    IN_PUBLISH,
    Property,
    parse_properties,
    write_block,
)
from edgehub.mqtt.property_bag import ORIGIN_PROPERTY, add_item, bytes_of
from edgehub.mqtt.topic_filter import is_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edgehub.message import Message
    from edgehub.mqtt.property_bag import Properties

_MS_PER_S: Final = 1000

# As numbers: members of an enumeration cost more than the rest of the work.
_PAYLOAD_FORMAT_INDICATOR: Final = int(Property.PAYLOAD_FORMAT_INDICATOR)
_MESSAGE_EXPIRY_INTERVAL: Final = int(Property.MESSAGE_EXPIRY_INTERVAL)
_CONTENT_TYPE: Final = int(Property.CONTENT_TYPE)
_RESPONSE_TOPIC: Final = int(Property.RESPONSE_TOPIC)
_CORRELATION_DATA: Final = int(Property.CORRELATION_DATA)
_TOPIC_ALIAS: Final = int(Property.TOPIC_ALIAS)
_USER_PROPERTY: Final = int(Property.USER_PROPERTY)

_PASSED_ON: Final = (
    Property.PAYLOAD_FORMAT_INDICATOR,
    Property.CONTENT_TYPE,
    Property.RESPONSE_TOPIC,
    Property.CORRELATION_DATA,
)


class MessageProperties:
    """The parsed properties of a PUBLISH.

    Attributes:
        properties: Application properties.
        system: System properties by the names that conditions use.
        properties_bytes: Bytes that they count against the message limit.
        expiry_ms: Message expiry interval, None = none.
        is_text: Whether the payload format indicator declares the body as UTF-8.
        topic_alias: Alias of the topic, None = none.
    """

    __slots__ = (
        "_is_passable",
        "_passed_on",
        "_values",
        "expiry_ms",
        "is_text",
        "properties",
        "properties_bytes",
        "system",
        "topic_alias",
    )

    def __init__(self, values: Mapping[int, Any]) -> None:
        properties: Properties = {}
        system: Properties = {}
        for name, value in values.get(_USER_PROPERTY, ()):
            # The dialect has no empty text, and no property without a name.
            if name:
                add_item(name, value or None, properties, system)
        content_type = values.get(_CONTENT_TYPE)
        if content_type:
            system["contentType"] = content_type
        correlation_data = values.get(_CORRELATION_DATA)
        if correlation_data:
            system["cid"] = _as_text(correlation_data)
        expiry_s = values.get(_MESSAGE_EXPIRY_INTERVAL)
        self.properties = properties
        self.system = system
        self.properties_bytes = bytes_of(properties) + bytes_of(system)
        self.expiry_ms = None if expiry_s is None else expiry_s * _MS_PER_S
        self.is_text = values.get(_PAYLOAD_FORMAT_INDICATOR) == 1
        self.topic_alias: int | None = values.get(_TOPIC_ALIAS)
        self._values = values
        self._passed_on: bytes | None = None
        self._is_passable: bool | None = None

    @property
    def is_passable(self) -> bool:
        """Whether no receiver treats them as malformed, so that they may be passed on."""
        if self._is_passable is None:
            self._is_passable = _is_passable(self._values)
        return self._is_passable

    @property
    def passed_on(self) -> bytes:
        """Properties that are passed on unchanged, as a property block without its length."""
        if self._passed_on is None:
            self._passed_on = write_block(_passed_on(self._values))
        return self._passed_on


def read_message_properties(block: bytes) -> MessageProperties:
    """Parse the property block of a PUBLISH, without its length.

    Raises:
        ProtocolError: If it is malformed.
    """
    return MessageProperties(parse_properties(block, IN_PUBLISH))


def write_message_properties(
    message: Message,
    expires_in_ms: int | None,
    identifiers: bytes = b"",
    *,
    origin: str | None = None,
) -> bytes:
    """Write the property block of a message to a client, its length in front.

    Args:
        message: As `outgoing` returns it. Its application properties become user properties, and
            system properties those of MQTT 5 where there is one. All of them are in the property
            bag of the topic too.
        expires_in_ms: Rest of its time to live, None = not known or endless.
        identifiers: Subscription identifiers as they are written.
        origin: Hub that publishes it, None = left out.
    """
    properties, system = message.properties, message.system
    values: list[tuple[Property, Any]] = []
    if expires_in_ms is not None:
        values.append((Property.MESSAGE_EXPIRY_INTERVAL, expiry_s(expires_in_ms)))
    content_type = system.get("contentType")
    if content_type and is_plain(content_type):
        values.append((Property.CONTENT_TYPE, content_type))
    correlation_id = system.get("cid")
    if correlation_id:
        values.append((Property.CORRELATION_DATA, correlation_id.encode()))
    if origin is not None:
        values.append((Property.USER_PROPERTY, (ORIGIN_PROPERTY, origin)))
    # They are in the topic's property bag too, so each fits into a string, and those over which a
    # receiver might close are left out here.
    values += [
        (Property.USER_PROPERTY, (name, value or ""))
        for name, value in properties.items()
        if name and is_plain(name) and is_plain(value or "")
    ]
    block = identifiers + write_block(values)
    return variable(len(block)) + block


def expiry_s(left_ms: int) -> int:
    """Return a message expiry interval; rounded up, since 0 means expired."""
    return min(max(1, -(-left_ms // _MS_PER_S)), 2**32 - 1)


def _passed_on(values: Mapping[int, Any]) -> Iterator[tuple[Property, Any]]:
    for name in _PASSED_ON:
        if name in values:
            yield name, values[name]
    for pair in values.get(_USER_PROPERTY, ()):
        yield Property.USER_PROPERTY, pair


def _is_passable(values: Mapping[int, Any]) -> bool:
    response_topic = values.get(_RESPONSE_TOPIC)
    if response_topic is not None and not (is_topic(response_topic) and is_plain(response_topic)):
        return False
    pairs = values.get(_USER_PROPERTY, ())
    return is_plain(values.get(_CONTENT_TYPE, "")) and all(
        is_plain(name) and is_plain(value) for name, value in pairs
    )


def _as_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii")
