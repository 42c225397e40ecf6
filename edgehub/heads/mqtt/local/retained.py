"""Retained messages: the last one of each topic.

Owns the messages in memory; the table on disk follows. Invariant: count and bytes of messages of
clients stay within their bounds; messages of the hub itself are bounded by its parts and count
separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer
from edgehub.devices.bounds import Bound
from edgehub.heads.mqtt.local.options import MESSAGE_BYTES
from edgehub.message import NEVER_MS
from edgehub.mqtt.topic_filter import WILDCARDS, takes_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.devices.bounds import KnownIds, Usage
    from edgehub.local_message import LocalMessage
    from edgehub.settings import MqttSettings

SEARCH_STEPS: Final = 300
"""Retained topics that are searched at once."""

SEARCH_PAUSE_S: Final = 0.004
"""Time for other clients between two searches."""


class RetainedMessages:
    """Retained messages by topic.

    Args:
        options: Their bounds.
        known: The identities in force.
        hub_id: Publishes the hub's own messages.

    Attributes:
        count: Bound of their number, those of the hub itself left out.
        bytes: Bound of their bytes.
    """

    def __init__(self, settings: MqttSettings, known: KnownIds, *, hub_id: str) -> None:
        self._by_topic: dict[str, LocalMessage] = {}
        # Topics of the messages that count as those of anonymous clients.
        self._anonymous: set[str] = set()
        self._own: dict[str, LocalMessage] = {}
        self._expiring = 0
        # No message expires before; checked for each message without room.
        self._earliest_ms = 0
        self.count = Bound(
            "retained messages",
            settings.local_retained_max,
            known,
            setting="mqtt.local_retained_max",
            own=hub_id,
        )
        self.bytes = Bound(
            "bytes of retained messages",
            settings.local_retained_bytes_max,
            known,
            setting="mqtt.local_retained_bytes_max",
            own=hub_id,
        )

    def __len__(self) -> int:
        return len(self._by_topic)

    def get(self, topic: str) -> LocalMessage | None:
        """Return the last message of a topic, expired or not."""
        return self._by_topic.get(topic) or self._own.get(topic)

    def has_room(self, message: LocalMessage) -> bool:
        """Return whether a message may take its place."""
        if not message.body:
            return True
        before = self._by_topic.get(message.topic)
        if before is not None:
            self._add(before, -1)
        count, size = self._usages(anonymous=self._is_anonymous(message))
        has_room = count.has_room() and size.has_room(_size(message))
        if before is not None:
            self._add(before, 1)
        return has_room

    def put(self, message: LocalMessage) -> bool:
        """Keep a message in place of the one before; an empty one clears the topic.

        Returns:
            Whether anything changed: a clear of an empty topic does not.
        """
        before = self._by_topic.pop(message.topic, None)
        if before is not None:
            self._add(before, -1)
            self._anonymous.discard(message.topic)
            self._expiring -= before.expires_ms is not None
        if not message.body:
            return before is not None
        self._by_topic[message.topic] = message
        if self._is_anonymous(message):
            self._anonymous.add(message.topic)
        self._add(message, 1)
        if message.expires_ms is not None:
            self._expiring += 1
            self._earliest_ms = min(self._earliest_ms, message.expires_ms)
        return True

    def put_own(self, message: LocalMessage) -> None:
        """Keep a message of the hub itself."""
        self._own[message.topic] = message

    def forget_own(self, topic: str) -> None:
        """Remove a message of the hub itself."""
        self._own.pop(topic, None)

    def recount(self) -> None:
        """Count the messages by kind of client, after identities have changed."""
        for message in self._by_topic.values():
            self._add(message, -1)
            if self._is_anonymous(message):
                self._anonymous.add(message.topic)
            else:
                self._anonymous.discard(message.topic)
            self._add(message, 1)

    def topics(self) -> list[str]:
        """List the topics of this moment."""
        return [*self._by_topic, *self._own]

    def expired(self, now_ms: int) -> list[str]:
        """List the topics whose message has expired."""
        if not self._expiring or now_ms < self._earliest_ms:
            return []
        expiries = {
            topic: message.expires_ms
            for topic, message in self._by_topic.items()
            if message.expires_ms is not None
        }
        self._earliest_ms = min([ms for ms in expiries.values() if ms > now_ms], default=NEVER_MS)
        return [topic for topic, ms in expiries.items() if ms <= now_ms]

    def _is_anonymous(self, message: LocalMessage) -> bool:
        return self.count.is_anonymous(message.publisher)

    def _usages(self, *, anonymous: bool) -> tuple[Usage, Usage]:
        return self.count.of_kind(anonymous=anonymous), self.bytes.of_kind(anonymous=anonymous)

    def _add(self, message: LocalMessage, sign: int) -> None:
        count, size = self._usages(anonymous=message.topic in self._anonymous)
        count.used += sign
        size.used += sign * _size(message)


class RetainedSearch:
    """A search for the topics that match one filter, some steps at a time.

    Args:
        topic_filter: The filter.
        retained: The retained messages; later ones are delivered by the subscription.
    """

    __slots__ = ("_at", "_levels", "_literal", "_topics")

    def __init__(self, topic_filter: str, retained: RetainedMessages) -> None:
        self._levels = topic_filter.split("/")
        self._at = 0
        wild = next((n for n, level in enumerate(self._levels) if level in WILDCARDS), None)
        # Most topics differ before the first wildcard, which is cheap to compare.
        self._literal = "/".join(self._levels[:wild])
        self._topics = [topic_filter] if wild is None else retained.topics()

    @property
    def is_done(self) -> bool:
        """Whether all topics were searched."""
        return self._at >= len(self._topics)

    def next(self, steps: int) -> tuple[str | None, int]:
        """Search up to `steps` topics; returns the first match, and how many were searched."""
        literal, levels = self._literal, self._levels
        begin = self._at
        for at in range(begin, min(begin + steps, len(self._topics))):
            topic = self._topics[at]
            if topic.startswith(literal) and takes_levels(levels, topic.split("/")):
                self._at = at + 1
                return topic, self._at - begin
        self._at = min(begin + steps, len(self._topics))
        return None, self._at - begin


class RetainedReplay:
    """The retained messages that one client has yet to be sent, filter by filter.

    Args:
        retained: All retained messages.
        clock: For the pauses.
        resume: Called at the end of a pause.
    """

    __slots__ = ("_filters", "_is_running", "_retained", "_search", "_timer")

    def __init__(
        self, retained: RetainedMessages, clock: Clock, resume: Callable[[], None]
    ) -> None:
        self._retained = retained
        # Options by topic filter; the first one is being searched for.
        self._filters: dict[str, int] = {}
        self._search: RetainedSearch | None = None
        self._timer = Timer(clock, resume)
        self._is_running = False

    @property
    def is_due(self) -> bool:
        """Whether `topics` is to be called."""
        return bool(self._filters) and not self._timer.is_running and not self._is_running

    def add(self, topic_filter: str, options: int) -> None:
        """Begin the search for a filter, or begin it again."""
        self.remove(topic_filter)
        self._filters[topic_filter] = options

    def remove(self, topic_filter: str) -> None:
        """End the search for a filter."""
        if next(iter(self._filters), None) == topic_filter:
            self._search = None
        self._filters.pop(topic_filter, None)

    def stop(self) -> None:
        """End a pause without calling `resume`."""
        self._timer.cancel()

    def topics(self, has_room: Callable[[], bool]) -> Iterator[tuple[str, int]]:
        """Yield topics with the options of their filter; end early to pause, or without room."""
        self._is_running = True
        try:
            budget = SEARCH_STEPS
            while self._filters:
                topic_filter, options = next(iter(self._filters.items()))
                if self._search is None:
                    self._search = RetainedSearch(topic_filter, self._retained)
                while not self._search.is_done:
                    if not has_room():
                        return
                    if budget <= 0:
                        self._timer.start(SEARCH_PAUSE_S)
                        return
                    topic, steps = self._search.next(budget)
                    budget -= steps
                    if topic is not None:
                        yield topic, options
                self.remove(topic_filter)
        finally:
            self._is_running = False


def _size(message: LocalMessage) -> int:
    return message.size + MESSAGE_BYTES
