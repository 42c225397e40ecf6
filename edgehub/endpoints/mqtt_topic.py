"""Topics that rows are published on: the IoT Hub dialect, or a template for any broker.

Pure, apart from bounded memos. Invariant: a topic that comes out of here is one that a
broker accepts in a PUBLISH; a row for which there is none raises `TopicError`, because a broker's
only answer to a bad topic is to close the connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from edgehub.errors import ConfigError, EdgeHubError
from edgehub.mqtt.property_bag import bag_around_id, build_bag, outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import EndpointId, Message, Row

TOPIC_BYTES_MAX: Final = 65_535

ABSENT: Final = "-"
"""Stands for a value that a row does not have, so that topics keep their number of levels."""

_PREFIXES_MAX: Final = 10_000
_AROUND_MAX: Final = 4096
_HEADER_BYTES_MAX: Final = 512
"""Of a message whose topic is kept."""

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_VALUES: Final[dict[str, Callable[[Row], str | None]]] = {
    "device": lambda row: row.message.device_id,
    "module": lambda row: row.message.module_id,
    "output": lambda row: row.message.output,
}
# These would change the meaning of a topic; anything else may stand in a level as it is.
_UNSAFE: Final = re.compile(r"[+#/%\x00-\x1f\x7f]")


class TopicError(EdgeHubError):
    """A row cannot be published; the text says why."""


class Topics(Protocol):
    """A way to name the topic of a row."""

    def topic(self, row: Row) -> bytes:
        """Return the topic in UTF-8; raises `TopicError`."""


class IotHubTopics:
    """`devices/<d>[/modules/<m>]/messages/events/<property bag>`.

    Args:
        leaving: Returns a message as it may leave for the peer.
        only: The one sender that the peer takes over this session, None = it takes others too.
        modules: Whether the peer takes messages of modules over sessions of their devices.
    """

    __slots__ = ("_around", "_leaving", "_modules", "_only", "_prefixes")

    def __init__(
        self,
        leaving: Callable[[Message], Message] = outgoing,
        *,
        only: str | None = None,
        modules: bool = True,
    ) -> None:
        self._leaving = leaving
        self._only = only
        self._modules = modules
        self._prefixes: dict[tuple[str, str | None], str] = {}
        self._around: dict[bytes, tuple[str, str]] = {}
        """Topics without the hub's id of the message, by the header of the message."""

    def topic(self, row: Row) -> bytes:
        """Return the topic in UTF-8; raises `TopicError`."""
        message = row.message
        around = self._around.get(message.header)
        if around is None:
            return self._written(message).encode()
        # An id of a hub is of letters, digits and a hyphen.
        return f"{around[0]}{message.message_id}{around[1]}".encode()

    def _written(self, message: Message) -> str:
        """Return the topic, and keep what other messages can share of it."""
        prefix = self._prefixes.get((message.device_id, message.module_id))
        if prefix is None:
            prefix = self._prefix(message.device_id, message.module_id)
        leaving = self._leaving(message)
        # One with an id of its sender has a topic of its own.
        if 0 < len(message.header) <= _HEADER_BYTES_MAX and not message.system.get("messageId"):
            if len(self._around) >= _AROUND_MAX:
                # Cheaper than an order of use: steady ones are back after one message each.
                self._around.clear()
            before, after = bag_around_id(leaving)
            before = prefix + before
            self._around[message.header] = before, after
            return f"{before}{message.message_id}{after}"
        return prefix + build_bag(leaving)

    def _prefix(self, device_id: str, module_id: str | None) -> str:
        for kind, name in (("device", device_id), ("module", module_id)):
            if name is not None and (not name or _UNSAFE.search(name.replace("%", ""))):
                raise TopicError(f"{kind} id {name!a} cannot stand in a topic")
        sender = device_id if module_id is None else f"{device_id}/{module_id}"
        if self._only not in {None, sender}:
            raise TopicError(
                f"the peer takes messages of {self._only} alone over this session, and this is one"
                f" of {sender}; identity = device gives each device its own"
            )
        if module_id is not None and not self._modules:
            raise TopicError(
                f"the peer takes no messages of modules over sessions of devices, as of {sender}"
            )
        module = "" if module_id is None else f"/modules/{module_id}"
        prefix = f"devices/{device_id}{module}/messages/events/"
        if len(self._prefixes) >= _PREFIXES_MAX:
            self._prefixes.clear()
        self._prefixes[device_id, module_id] = prefix
        return prefix


class TopicTemplate:
    """A topic with placeholders, for example `site/{device}/{property:kind}`.

    Args:
        text: The template. Placeholders: `{device}`, `{module}`, `{output}`, `{endpoint}`,
            `{property:NAME}`. Characters of a value that mean something in topics are written
            as `%XX`; an absent value is written as `-`.
        endpoint_id: Value of `{endpoint}`.
        key: Setting that holds the template, for errors.

    Raises:
        ConfigError: If the template is not one.
    """

    __slots__ = ("_parts",)

    def __init__(self, text: str, *, endpoint_id: EndpointId, key: str) -> None:
        self._parts: list[str | Callable[[Row], str | None]] = []
        position = 0
        for match in _PLACEHOLDER.finditer(text):
            self._add_literal(text[position : match.start()], key)
            self._parts.append(_value(match[1], endpoint_id, key))
            position = match.end()
        self._add_literal(text[position:], key)
        if not self._parts:
            raise ConfigError(key, "empty topic", "for example site/{device}")

    def topic(self, row: Row) -> bytes:
        """Return the topic in UTF-8; raises `TopicError`."""
        levels = [part if isinstance(part, str) else _written(part(row)) for part in self._parts]
        return "".join(levels).encode()

    def _add_literal(self, text: str, key: str) -> None:
        for character in "{}":
            if character in text:
                raise ConfigError(
                    key,
                    f"a single {character} in the topic",
                    "a placeholder looks like {device} or {property:NAME}",
                )
        for character in "+#\0":
            if character in text:
                raise ConfigError(
                    key,
                    f"{character!r} in the topic: a message is published on one topic",
                    "write it as a placeholder or leave it out",
                )
        if text:
            self._parts.append(text)


def published_filters(template: str | None) -> tuple[str, ...]:
    """Return topic filters that take every topic of a template, None = the IoT Hub dialect."""
    if template is None:
        return "devices/+/messages/events/#", "devices/+/modules/+/messages/events/#"
    # A value never holds a slash, the name of a property may.
    levels = _PLACEHOLDER.sub("{}", template).split("/")
    return ("/".join("+" if "{}" in level else level for level in levels),)


def _value(name: str, endpoint_id: EndpointId, key: str) -> Callable[[Row], str | None]:
    if name.startswith("property:") and len(name) > len("property:"):
        wanted = name.removeprefix("property:")
        return lambda row: row.message.properties.get(wanted)
    if name in _VALUES:
        return _VALUES[name]
    if name == "endpoint":
        return lambda _row: endpoint_id
    known = ", ".join(f"{{{word}}}" for word in sorted((*_VALUES, "endpoint")))
    raise ConfigError(key, f"unknown placeholder {{{name}}}", f"{known} or {{property:NAME}}")


def _written(value: str | None) -> str:
    if not value:
        return ABSENT
    if _UNSAFE.search(value):
        return _UNSAFE.sub(lambda match: quote(match[0], safe=""), value)
    return value
