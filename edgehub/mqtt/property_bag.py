"""The property bag of the IoT Hub dialect: properties as the last level of an MQTT topic.

Owns the wire names of system properties and the encoding; pure functions, no state. Invariant: what
`build_bag` writes, `parse_bag` reads back, except that empty values come back as None, since the
dialect has no empty text.
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
"""Wire name to the name that conditions use."""

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
"""What hubs write about a message; from a client it counts only if it may be a hub."""

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
"""Where hubs write who sent a message, and when; never read, the topic says who sends."""

_CONTROL_NAMES: Final = frozenset(
    {*_SENDER_NAMES, PATH_PROPERTY, *(name for name in SYSTEM_NAMES if name.startswith("$."))}
)
"""Names that a peer reads as more than an application property."""

_RESERVED_NAMES: Final = _CONTROL_NAMES | _HUB_MARKS

_ENCODED_NAMES: Final = {
    name: quote(name, safe="") for name in (*SYSTEM_NAMES, SENDER_DEVICE, SENDER_MODULE)
}
_NEEDS_NO_ENCODING: Final = re.compile("[A-Za-z0-9_.~-]*").fullmatch


class BagError(EdgeHubError):
    """A property bag that breaks the format; the text says where."""


def parse_bag(text: str) -> tuple[Properties, Properties]:
    """Read a bag, for example `kind=alarm&%24.ct=application%2Fjson`.

    A leading `?` is allowed. An item without `=` or without a value gives None. Of doubled keys the
    last one holds. The sender's names are left out: the topic says who sends.

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
    """Return whether an application property may not have this name: hubs write it."""
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
    """Return whether `without_marks` would leave something out."""
    return without_marks(properties) is not properties


def is_batch(system: Properties) -> bool:
    """Return whether a message with these system properties holds others."""
    return system.get("contentType") == BATCH_TYPE


def outgoing(message: Message) -> Message:
    """Return a message as it may leave this hub: itself where all of it may.

    The store may hold what heads refuse today. Whatever it holds, no receiver can take a row for a
    batch of other messages, or a property of the sender's for the name of the sender.
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
    """Write the bag of a message on its way out: its properties, then who sent it.

    A message without an id of the sender's carries the hub's, so that receivers can tell copies.

    Args:
        message: The message, as `outgoing` returns it.
        sender: Write who sent it; a message to a device is not the device's own.
    """
    properties, system = message.properties, message.system
    items = [_pair(name, value) for name, value in properties.items() if name]
    items += [
        _pair(WIRE_NAMES[name], value) for name, value in system.items() if name in WIRE_NAMES
    ]
    if not system.get("messageId") and message.message_id:
        items.append(_pair("$.mid", message.message_id))
    if sender:
        items += _sender(message.device_id, message.module_id)
    return "&".join(items)


def build_batch_bag(device_id: str, module_id: str | None, *, encoding: str | None) -> str:
    """Write the bag of a batch that a hub sends as itself.

    Args:
        device_id: As whom the hub signs in.
        module_id: As which module, None = as a device.
        encoding: Content encoding, None = none.
    """
    items = [_pair("$.ct", BATCH_TYPE)]
    if encoding is not None:
        items.append(_pair("$.ce", encoding))
    return "&".join(items + _sender(device_id, module_id))


def bytes_of(properties: Properties) -> int:
    """Return what properties count against the message limit."""
    return sum(len(name) + len(value or "") for name, value in properties.items())


def _sender(device_id: str, module_id: str | None) -> list[str]:
    items = [_pair(SENDER_DEVICE, device_id)]
    if module_id is not None:
        items.append(_pair(SENDER_MODULE, module_id))
    return items


def _item(item: str) -> tuple[str, str | None]:
    key, equals, value = item.partition("=")
    if not key:
        msg = f"empty key in {_shown(item)}" if item else "empty item, or a trailing &"
        raise BagError(msg)
    if "=" in value:
        msg = f"second = in {_shown(item)}; write %3D inside a value"
        raise BagError(msg)
    return _decoded(key), (_decoded(value) if equals and value else None)


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        msg = f"not UTF-8 after decoding: {_shown(text)}"
        raise BagError(msg) from None


def _pair(name: str, value: str | None) -> str:
    written = _ENCODED_NAMES.get(name) or _encoded(name)
    return written if value is None else f"{written}={_encoded(value)}"


def _encoded(text: str) -> str:
    # Nearly all names and values need no encoding, and that is found out faster than by `quote`.
    return text if _NEEDS_NO_ENCODING(text) else quote(text, safe="")


def _shown(text: str) -> str:
    # Peer text in an error stays short and printable.
    return ascii(text[:40])
