"""The property bag of the IoT Hub dialect: properties as the last level of an MQTT topic.

Owns the wire names of system properties and the encoding; pure functions, no state. Invariant: what
`build_bag` writes, `parse_bag` reads back, except that empty values come back as None, since the
dialect has no empty text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from edgehub.errors import EdgeHubError

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


class BagError(EdgeHubError):
    """A property bag that breaks the format; the text says where."""


def parse_bag(text: str) -> tuple[Properties, Properties]:
    """Read a bag, for example `kind=alarm&%24.ct=application%2Fjson`.

    A leading `?` is allowed. An item without `=` or without a value gives None. Of doubled keys the
    last one holds. The sender's names are left out: the topic says who sends.

    Returns:
        Application properties, and system properties by the names that conditions use.

    Raises:
        BagError: On an empty item or key, a second `=`, or bytes that are not UTF-8.
    """
    app: Properties = {}
    system: Properties = {}
    text = text.removeprefix("?")
    if not text:
        return app, system
    for item in text.split("&"):
        key, value = _item(item)
        add_item(key, value, app, system)
    return app, system


def add_item(key: str, value: str | None, app: Properties, system: Properties) -> None:
    """Put one item where its wire name belongs; see `parse_bag`."""
    if key in SYSTEM_NAMES:
        system[SYSTEM_NAMES[key]] = value
    elif key not in (SENDER_DEVICE, SENDER_MODULE):
        app[key] = value


def build_bag(message: Message) -> str:
    """Write the bag of a message on its way out: its properties, then who sent it.

    A message without an id of the sender's carries the hub's, so that receivers can tell copies.
    """
    items = [_pair(name, value) for name, value in message.properties.items() if name]
    system = message.system
    items += [
        _pair(WIRE_NAMES[name], value) for name, value in system.items() if name in WIRE_NAMES
    ]
    if not system.get("messageId") and message.message_id:
        items.append(_pair("$.mid", message.message_id))
    items.append(_pair(SENDER_DEVICE, message.device_id))
    if message.module_id is not None:
        items.append(_pair(SENDER_MODULE, message.module_id))
    return "&".join(items)


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
    written = quote(name, safe="")
    return written if value is None else f"{written}={quote(value, safe='')}"


def _shown(text: str) -> str:
    # Peer text in an error stays short and printable.
    return ascii(text[:40])
