"""Local topics: `<root>/<four segments>[/<channel>]`, and topic ids of entities.

Owns the grammar of topics and the default scheme. Invariant: a topic id holds exactly three
slashes. Rules: docs/reference/entities.md.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from msgspec import Struct

from edgehub.entities.faults import MappingError

SEGMENTS: Final = 4
TOPIC_ID_CHARACTERS_MAX: Final = 1024
ALARM_JOURNAL: Final = "c8y-internal/alarms/"
"""Where the mapper keeps a retained copy of each live alarm."""

PARSED_MAX: Final = 4096
"""Topics whose parse is kept; when there are more, all are forgotten."""


class Channel(Enum):
    """What a topic is for."""

    REGISTRATION = auto()
    TWIN = auto()
    CONFIG = auto()
    MEASUREMENT = auto()
    MEASUREMENT_META = auto()
    EVENT = auto()
    EVENT_META = auto()
    ALARM = auto()
    ALARM_META = auto()
    CAPABILITY = auto()
    COMMAND = auto()
    HEALTH = auto()
    STATUS = auto()
    SIGNAL = auto()


TELEMETRY: Final = frozenset({Channel.MEASUREMENT, Channel.EVENT, Channel.ALARM})
"""Every message counts."""

STATE: Final = frozenset(
    {
        Channel.TWIN,
        Channel.MEASUREMENT_META,
        Channel.EVENT_META,
        Channel.ALARM_META,
        Channel.CAPABILITY,
        Channel.COMMAND,
        Channel.HEALTH,
    }
)
"""The newest message of a topic stands for all before it."""

AUTO_REGISTERING: Final = frozenset(Channel) - {
    Channel.REGISTRATION,
    Channel.COMMAND,
    Channel.SIGNAL,
}

_BY_WORD: Final = {
    "twin": Channel.TWIN,
    "m": Channel.MEASUREMENT,
    "e": Channel.EVENT,
    "a": Channel.ALARM,
    "cmd": Channel.CAPABILITY,
    "status": Channel.STATUS,
    "signal": Channel.SIGNAL,
}
_META: Final = {
    "m": Channel.MEASUREMENT_META,
    "e": Channel.EVENT_META,
    "a": Channel.ALARM_META,
}


class EntityTopic(Struct, frozen=True):
    """A topic of the scheme.

    Attributes:
        text: The whole topic.
        topic_id: Entity it belongs to.
        channel: What it is for.
        name: Type, key, operation, component or signal; empty where there is none.
        command_id: Id of a command instance, empty for all else.
    """

    text: str
    topic_id: str
    channel: Channel
    name: str = ""
    command_id: str = ""


class TopicScheme:
    """Reads and writes the topics below one root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._prefix = f"{root}/"
        self._parsed: dict[str, EntityTopic | None] = {}

    def parse(self, topic: str) -> EntityTopic | None:
        """Read a topic, None = not one of the scheme."""
        try:
            return self._parsed[topic]
        except KeyError:
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.clear()
            parsed = self._parsed[topic] = self._parse(topic)
            return parsed

    def topic(self, topic_id: str, *channel: str) -> str:
        """Write a topic of an entity; without a channel, that of its registration."""
        return "/".join((self.root, topic_id, *channel))

    def entity_below(self, topic: str) -> str:
        """Return the topic id below which a topic is, whatever it is for; empty = below none."""
        segments = topic.removeprefix(self._prefix).split("/")
        return "/".join(segments[:SEGMENTS]) if len(segments) > SEGMENTS else ""

    def _parse(self, topic: str) -> EntityTopic | None:
        if not topic.startswith(self._prefix):
            return None
        segments = topic[len(self._prefix) :].split("/")
        if len(segments) < SEGMENTS:
            return None
        channel = _read_channel(segments[SEGMENTS:])
        if channel is None:
            return None
        return EntityTopic(topic, "/".join(segments[:SEGMENTS]), *channel)


def _read_channel(segments: list[str]) -> tuple[Channel, str, str] | None:
    match segments:
        case []:
            channel = Channel.REGISTRATION, "", ""
        case ["config"]:
            channel = Channel.CONFIG, "", ""
        case ["status", "health"]:
            channel = Channel.HEALTH, "health", ""
        case [("m" | "e" | "a") as word, name, "meta"]:
            channel = _META[word], name, ""
        case ["cmd", name, command_id]:
            channel = Channel.COMMAND, name, command_id
        case [word, name] if word in _BY_WORD:
            channel = _BY_WORD[word], name, ""
        case _:
            return None
    return channel


def read_topic_id(text: str) -> str:
    """Complete a topic id as a registration may write it, with fewer than three slashes.

    Raises:
        MappingError: More than four segments, a wildcard, or more characters than are kept.
    """
    if len(text) > TOPIC_ID_CHARACTERS_MAX:
        raise MappingError(f"a topic id has at most {TOPIC_ID_CHARACTERS_MAX} characters")
    if "+" in text or "#" in text:
        raise MappingError(f"`{text}` is no topic id: it holds a wildcard")
    slashes = text.count("/")
    if slashes >= SEGMENTS:
        raise MappingError(f"`{text}` is no topic id: it has more than four segments")
    return text + "/" * (SEGMENTS - 1 - slashes)


class DefaultName(Struct, frozen=True):
    """An entity of the default scheme, `device/<device>//` or `device/<device>/service/<service>`.

    Attributes:
        device: Name of the device.
        service: Name of the service, empty = it is the device itself.
    """

    device: str
    service: str = ""

    @property
    def device_topic_id(self) -> str:
        """Return the topic id of the device."""
        return f"device/{self.device}//"


def default_name(topic_id: str) -> DefaultName | None:
    """Read a topic id of the default scheme, None = a custom one."""
    match topic_id.split("/"):
        case ["device", device, "", ""] if device:
            return DefaultName(device)
        case ["device", device, "service", service] if device and service:
            return DefaultName(device, service)
        case _:
            return None
