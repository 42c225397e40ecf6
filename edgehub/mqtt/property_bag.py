"""The property bag of the IoT Hub dialect: properties as the last level of an MQTT topic.

Owns the wire names of system properties and the encoding; pure functions, no state. Invariant:
`parse_bag` reads what `build_bag` writes, but empty values become None, since the dialect has no
empty text.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from edgehub.errors import EdgeHubError
from edgehub.message import PROPERTIES_MAX
from edgehub.mqtt.batch import BATCH_TYPE

if TYPE_CHECKING:
    from edgehub.message import Message

    Properties = dict[str, str | None]

SYSTEM_NAMES: Final = {
    "$.mid": "messageId",
    "$.cid": "cid",
    "$.to": "to",
    "$.uid": "userId",
    "ack": "ack",
    "$.on": "outputName",
    "$.ct": "contentType",
    "$.ce": "contentEncoding",
    "$.schema": "messageSchema",
    "$.ctime": "creationTime",
    "$.exp": "absolute-expiry-time",
    "iothub-operation": "operation",
    "$.ifid": "iothub-interface-id",
    "$.sub": "dt-subject",
}
"""Name in the bag to the name in conditions."""

WIRE_NAMES: Final = {name: wire for wire, name in SYSTEM_NAMES.items()}

SENDER_DEVICE: Final = "$.cdid"
SENDER_MODULE: Final = "$.cmid"

RETAIN_PROPERTY: Final = "mqtt-retain"
WILL_PROPERTY: Final = ("iothub-MessageType", "Will")
DUPLICATE_PROPERTY: Final = "edgehub-duplicate"
"""Property of a message that another hub has sent before, with deduplication `mark`."""

ORIGIN_PROPERTY: Final = "edgehub-origin"
"""User property of what a hub publishes at a broker that it subscribes to: the hub's id."""

PATH_PROPERTY: Final = "edgehub-path"
"""Property of a message that has passed hubs: their ids; see `edgehub.mqtt.hub_path`."""

_HUB_MARKS: Final = frozenset(
    {RETAIN_PROPERTY, WILL_PROPERTY[0].lower(), DUPLICATE_PROPERTY, PATH_PROPERTY}
)
"""Properties that hubs write; ignored from clients that may not be a hub."""

_SENDER_NAMES: Final = frozenset(
    {
        SENDER_DEVICE,
        SENDER_MODULE,
        "iothub-connection-device-id",
        "iothub-connection-module-id",
        "iothub-connection-auth-method",
        "iothub-connection-auth-generation-id",
        "iothub-message-source",
        "iothub-enqueuedtime",
    }
)
"""Names in which hubs write sender and time; never read, since the topic has the sender."""

_CONTROL_NAMES: Final = frozenset(
    {*_SENDER_NAMES, PATH_PROPERTY, *(name for name in SYSTEM_NAMES if name.startswith("$."))}
)
"""Names that a peer does not treat as an application property."""

_RESERVED_NAMES: Final = _CONTROL_NAMES | _HUB_MARKS

_ENCODED_NAMES: Final = {
    name: quote(name, safe="") for name in (*SYSTEM_NAMES, SENDER_DEVICE, SENDER_MODULE)
}
_ID: Final = _ENCODED_NAMES["$.mid"]
_NEEDS_NO_ENCODING: Final = re.compile("[A-Za-z0-9_.~-]*").fullmatch


class BagError(EdgeHubError):
    """A property bag is malformed; the text has the place."""


def parse_bag(text: str) -> tuple[Properties, Properties]:
    """Parse a bag, for example `kind=alarm&%24.ct=application%2Fjson`.

    A leading `?` is allowed. An item without `=` or without a value becomes None. The last one of
    several equal keys counts. Names of the sender are left out, since the topic has the sender.

    Returns:
        Application properties, and system properties by the names that conditions use.

    Raises:
        BagError: On an empty item or key, a second `=`, bytes that are not UTF-8, or more than
            `PROPERTIES_MAX` items.
    """
    app: Properties = {}
    system: Properties = {}
    text = text.removeprefix("?")
    if not text:
        return app, system
    if text.count("&") >= PROPERTIES_MAX:
        raise BagError(f"more than {PROPERTIES_MAX} items")
    for item in text.split("&"):
        key, value = _item(item)
        add_item(key, value, app, system)
    return app, system


def add_item(key: str, value: str | None, app: Properties, system: Properties) -> None:
    """Add one item to the properties it belongs to; see `parse_bag`."""
    if key in SYSTEM_NAMES:
        system[SYSTEM_NAMES[key]] = value
    elif key.lower() not in _SENDER_NAMES:
        app[key] = value


def is_reserved(name: str) -> bool:
    """Return whether only hubs may write an application property of this name."""
    return name.lower() in _RESERVED_NAMES


def without_marks(properties: Properties) -> Properties:
    """Return application properties without those that hubs write; they may be shared."""
    for name in properties:
        if name.lower() in _HUB_MARKS:
            return {
                name: value for name, value in properties.items() if name.lower() not in _HUB_MARKS
            }
    return properties


def has_marks(properties: Properties) -> bool:
    """Return whether some properties are written by hubs only."""
    return without_marks(properties) is not properties


def is_batch(system: Properties) -> bool:
    """Return whether a message with these system properties is a batch."""
    return system.get("contentType") == BATCH_TYPE


def outgoing(message: Message) -> Message:
    """Return a message as it may leave this hub, itself if nothing has to be left out.

    The store may have rows that heads refuse today. In any case, no receiver may mistake a row for
    a batch, or a property of the sender for the name of the sender.
    """
    is_plain = _CONTROL_NAMES.isdisjoint(map(str.lower, message.properties))
    if is_plain and not is_batch(message.system):
        return message
    leaving = copy(message)
    leaving.properties = {
        name: value
        for name, value in message.properties.items()
        if name.lower() not in _CONTROL_NAMES
    }
    if is_batch(message.system):
        leaving.system = {
            name: value for name, value in message.system.items() if name != "contentType"
        }
    return leaving


def build_bag(message: Message, *, sender: bool = True) -> str:
    """Write the bag of a message: its properties, then its sender.

    A message without an id of its sender gets that of the hub, so that receivers detect copies.

    Args:
        message: The message, as `outgoing` returns it.
        sender: Whether to write the sender; False for messages to a device.
    """
    before, after = _around_id(message, sender=sender)
    items = [before] if before else []
    if not message.system.get("messageId") and message.message_id:
        items.append(_pair("$.mid", message.message_id))
    if after:
        items.append(after)
    return "&".join(items)


def bag_around_id(message: Message) -> tuple[str, str]:
    """Return what `build_bag` writes before and after the id that the hub gives a message.

    Args:
        message: The message, as `outgoing` returns it, without an id of its sender.
    """
    before, after = _around_id(message, sender=True)
    return f"{before}&{_ID}=" if before else f"{_ID}=", f"&{after}"


def _around_id(message: Message, *, sender: bool) -> tuple[str, str]:
    items = [_pair(name, value) for name, value in message.properties.items() if name]
    items += [
        _pair(WIRE_NAMES[name], value)
        for name, value in message.system.items()
        if name in WIRE_NAMES
    ]
    own = _sender(message.device_id, message.module_id) if sender else []
    return "&".join(items), "&".join(own)


def build_batch_bag(device_id: str, module_id: str | None, *, encoding: str | None) -> str:
    """Write the bag of a batch that the hub sends.

    Args:
        device_id: Device id with which the hub signs in.
        module_id: Module id with which it signs in, None = as a device.
        encoding: Content encoding, None = none.
    """
    items = [_pair("$.ct", BATCH_TYPE)]
    if encoding is not None:
        items.append(_pair("$.ce", encoding))
    return "&".join(items + _sender(device_id, module_id))


def bytes_of(properties: Properties) -> int:
    """Return the bytes that properties count against the message limit."""
    return sum(len(name) + len(value or "") for name, value in properties.items())


def _sender(device_id: str, module_id: str | None) -> list[str]:
    items = [_pair(SENDER_DEVICE, device_id)]
    if module_id is not None:
        items.append(_pair(SENDER_MODULE, module_id))
    return items


def _item(item: str) -> tuple[str, str | None]:
    key, equals, value = item.partition("=")
    if not key:
        raise BagError(f"empty key in {_shown(item)}" if item else "empty item, or a trailing &")
    if "=" in value:
        raise BagError(f"second = in {_shown(item)}; write %3D inside a value")
    return _decoded(key), (_decoded(value) if equals and value else None)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise BagError(f"not UTF-8 after decoding: {_shown(text)}") from None


def _pair(name: str, value: str | None) -> str:
    written = _ENCODED_NAMES.get(name) or _encoded(name)
    return written if value is None else f"{written}={_encoded(value)}"


def _encoded(text: str) -> str:
    # Most names and values need no encoding; this check is faster than `quote`.
    return text if _NEEDS_NO_ENCODING(text) else quote(text, safe="")


def _shown(text: str) -> str:
    # Peer text in an error stays short and printable.
    return ascii(text[:40])
