"""Message sources: the senders whose messages a route takes.

Owns the two forms, a path prefix (`/messages/modules/cam/*`) and an MQTT topic filter
(`/mqtt/plant/+/tele/#`), and how each is matched. Pure functions and immutable values.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from edgehub.mqtt.topic_filter import filter_fault as topic_filter_fault
from edgehub.mqtt.topic_filter import matches
from edgehub.routes.query.text import upper

MQTT_PREFIX: Final = "/mqtt/"

TWIN_CHANGES: Final = "/twinChangeNotifications/"
"""Source of the notification that a client has reported properties."""

_TWINS: Final = TWIN_CHANGES.strip("/").lower()
_TELEMETRY: Final = ("messages", "modules", "*", "outputs", "*")


class PathSource(Struct, frozen=True, kw_only=True):
    """All messages whose source begins with a path, ignoring case.

    Attributes:
        prefix: Normalised path with one closing slash.
    """

    prefix: str

    def __str__(self) -> str:
        return self.prefix

    @property
    def key(self) -> str:
        """Return the prefix in the form in which sources are compared."""
        return upper(self.prefix)


class MqttSource(Struct, frozen=True, kw_only=True):
    """All messages of a broker whose topic a filter matches, in its exact case.

    Attributes:
        filter: MQTT topic filter.
    """

    filter: str

    def __str__(self) -> str:
        return MQTT_PREFIX + self.filter.replace(" ", "%20")

    def matches(self, topic: str) -> bool:
        """Apply the rules of MQTT 3.1.1 section 4.7; `#` includes the parent level.

        Source: MQTT 3.1.1, 4.7.1.2 and 4.7.2.
        """
        return matches(self.filter, topic)


Source = PathSource | MqttSource


def path_source(text: str) -> PathSource:
    """Normalise a path: remove stars, then slashes at its end, and append one slash."""
    return PathSource(prefix=text.rstrip("*").rstrip("/") + "/")


def path_warning(text: str) -> str:
    """Return a warning for a path that takes nothing, or less than it seems; empty = none."""
    names = text.strip("/").split("/")
    star = next((name for name in names if name.endswith("*") and name.rstrip("*")), None)
    if star is not None:
        return f"`{star}` is not a pattern of names: only a whole level can be `*`, at the end"
    while names and not names[-1].rstrip("*"):
        names.pop()
    if "*" in names:
        return "`*` stands for a level only at the end of a path; this source takes no message"
    return "" if _can_match(names) else "no message has this source, so the route takes none"


def _can_match(names: list[str]) -> bool:
    wanted = [name.lower() for name in names]
    if wanted[:1] in ([], [MQTT_PREFIX.strip("/")], [_TWINS]):
        return len(wanted) <= 1
    if len(wanted) > len(_TELEMETRY):
        return False
    return all(known in ("*", name) for known, name in zip(_TELEMETRY, wanted, strict=False))


def filter_fault(topic_filter: str) -> str:
    """Return what is wrong with an MQTT topic filter; empty = nothing."""
    if not topic_filter:
        return "the topic filter is empty; `/mqtt/#` takes every topic"
    fault = topic_filter_fault(topic_filter)
    if fault:
        return fault
    if topic_filter.rsplit("/", 1)[-1] == "*":
        return "`*` is no wildcard in a topic filter; use `#` for all below, `+` for one level"
    return ""
