"""What the parts of an open store share: hub time, labels, offsets, dead letters, events.

Made of what recovery has found. Invariant: there is one of each, and every commit writes their
changes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from edgehub.clock import Pause

if TYPE_CHECKING:
    from edgehub.clock import Clock, HubTime
    from edgehub.store.boots import Boot
    from edgehub.store.commit_delay import CommitDelay
    from edgehub.store.database import Database
    from edgehub.store.dead_letters import DeadLetters
    from edgehub.store.event_log import EventLog
    from edgehub.store.labels import Labels
    from edgehub.store.offsets import Offsets


class Cache(Struct):
    """The memory for rows read ahead of the pump, over all queues."""

    bytes_max: int
    bytes: int = 0


class Staleness:
    """Whether rows have recency, and whether a reader has skipped stale rows."""

    def __init__(self) -> None:
        self.pause = Pause()
        self.is_met = False
        self.shortest_s = math.inf
        """Shortest freshness seen, infinite = no row has recency."""

    def met(self) -> None:
        """Record that a reader has skipped stale rows."""
        if not self.is_met:
            self.is_met = True
            self.pause.cut()

    def seen(self, seconds: float) -> None:
        """Record a freshness shorter than all before; the period follows it at once."""
        self.shortest_s = seconds
        self.pause.cut()


class SharedState(Struct, frozen=True, kw_only=True):
    """State that the parts of one open store share.

    Attributes:
        store_id: Names the database file, and begins the ids of its messages.
        events: Records events for the journal, None = there is no journal.
    """

    database: Database
    clock: Clock
    store_id: str
    boot: Boot
    hub_time: HubTime
    labels: Labels
    offsets: Offsets
    commit_delay: CommitDelay
    dead_letters: DeadLetters
    cache: Cache
    staleness: Staleness
    events: EventLog | None
