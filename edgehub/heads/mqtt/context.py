"""What all connections of one listener share: its parts, the topic cache and the bursts of writes.

Owns the caches of what was parsed before and the list of connections that have something to write.
Invariant: what many settles in one turn of the loop cause is written once per connection.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.heads.mqtt.backlog import Backlog
from edgehub.heads.mqtt.statistics import Counters, DropReason
from edgehub.heads.mqtt.topics import EventsTopic, parse_events_topic
from edgehub.heads.mqtt.will import sender_of, will_bytes
from edgehub.local_message import LocalMessage
from edgehub.mqtt.packets import topic_name
from edgehub.telemetry.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock
    from edgehub.devices.bounds import KnownIds, Usage
    from edgehub.heads.head import Refused, Submit
    from edgehub.heads.mqtt.local.space import LocalSpace
    from edgehub.heads.mqtt.options import ListenerOptions
    from edgehub.message import Message, Refusal
    from edgehub.mqtt.hub_path import HubPath
    from edgehub.mqtt.message_properties import MessageProperties

_TOPICS_MAX: Final = 4096
_TOPIC_BYTES_MAX: Final = 1024
_LIMIT_CLOSES_MAX: Final = 10_000


class Writer(Protocol):
    """A connection that can be asked to write what it has collected."""

    def flush(self) -> None:
        """Write it."""


class ListenerContext:
    """Shared by the connections of one listener."""

    __slots__ = (
        "_dirty",
        "_limit_closes",
        "backlog",
        "blocks",
        "clock",
        "counters",
        "draining",
        "hub_path",
        "link_up",
        "log",
        "options",
        "refused",
        "space",
        "submit",
        "topics",
    )

    def __init__(
        self,
        options: ListenerOptions,
        clock: Clock,
        submit: Submit,
        link_up: Callable[[], bool],
        space: LocalSpace,
        refused: Refused,
        known: KnownIds,
        hub_path: HubPath,
    ) -> None:
        self.options = options
        self.clock = clock
        self.submit = submit
        self.refused = refused
        self.space = space
        self.hub_path = hub_path
        self.link_up = link_up
        self.counters = Counters()
        self.log = LogLimit(clock)
        self.backlog = Backlog(
            bytes_max=options.unacknowledged_bytes_max,
            connection_bytes_max=options.connection_bytes_max,
            known=known,
        )
        self.topics: dict[bytes, EventsTopic] = {}
        # Property blocks of MQTT 5, filled and bounded by the decoders.
        self.blocks: dict[bytes, MessageProperties] = {}
        self.draining = False
        self._dirty: list[Writer] = []
        self._limit_closes: OrderedDict[str, float] = OrderedDict()

    def request_flush(self, connection: Writer) -> None:
        """Have `connection.flush` called at the end of this turn of the loop."""
        if not self._dirty:
            asyncio.get_running_loop().call_soon(self._flush)
        self._dirty.append(connection)

    def events_topic(self, topic: bytes) -> EventsTopic | None:
        """Parse a topic that is not in the cache; None = not a telemetry topic.

        Raises:
            ProtocolError: If it is not a topic name at all.
            BagError: If its property bag is malformed.
        """
        parsed = parse_events_topic(topic_name(topic))
        if parsed is None or not parsed.is_plain:
            # It is never taken as it stands.
            return parsed
        if len(topic) <= _TOPIC_BYTES_MAX:
            if len(self.topics) >= _TOPICS_MAX:
                # Cheaper than an order of use: steady topics are back after one message each.
                self.topics.clear()
            self.topics[topic] = parsed
        return parsed

    def limit_wait_s(self, client_id: str) -> float:
        """Return how long a client must wait before it is closed because of a limit again."""
        last_s = self._limit_closes.get(client_id)
        if last_s is None:
            return 0.0
        return last_s + self.options.limit_pause_s - self.clock.monotonic()

    def note_limit_close(self, client_id: str) -> None:
        """Remember that a client was closed because of a limit."""
        self._limit_closes.pop(client_id, None)
        self._limit_closes[client_id] = self.clock.monotonic()
        if len(self._limit_closes) > _LIMIT_CLOSES_MAX:
            self._limit_closes.popitem(last=False)

    def takes_qos0(self) -> bool:
        """Return whether messages of QoS 0 are stored at present."""
        return self.options.store_qos0 or self.link_up()

    def submit_will(self, message: Message | LocalMessage) -> None:
        """Submit a will: nobody waits for its acknowledgement."""
        if self.draining:
            self.counters.dropped[DropReason.CLOSING] += 1
            return
        self.counters.wills_total += 1
        size = will_bytes(message)
        held = self.backlog.of(sender_of(message))
        held.used += size
        settle = partial(self._will_settled, held)
        if isinstance(message, LocalMessage):
            self.space.publish(message, settle, size)
        else:
            self.submit(message, settle, size)

    def count_refused(self, refusal: Refusal) -> DropReason:
        """Count a message that was refused and will not come again."""
        reason = DROPPED_AS[refusal.value]
        self.counters.dropped[reason] += 1
        return reason

    def _will_settled(self, held: Usage, size: int, refusal: Refusal | None) -> None:
        held.used -= size
        self.backlog.check()
        if refusal is not None:
            self.count_refused(refusal)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
        self.backlog.check()


DROPPED_AS: Final = {
    "invalid": DropReason.INVALID,
    "reserved": DropReason.RESERVED,
    "limit": DropReason.LIMIT,
    "unavailable": DropReason.UNAVAILABLE,
    "closed": DropReason.CLOSING,
}
