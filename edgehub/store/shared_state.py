"""What the parts of an open store share: hub time, labels, offsets, dead letters, events.

Made of what recovery has found; owns nothing beyond that. Invariant: there is one of each, and
every commit writes what they say of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store.boots import Boot
from edgehub.store.commit import CommitContext
from edgehub.store.dead_letters import DeadLetters
from edgehub.store.event_log import EventLog
from edgehub.store.labels import Labels
from edgehub.store.offsets import Offsets
from edgehub.store.reader import Cache, ReadSource

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.store.database import Database
    from edgehub.store.maintenance.demotion import Staleness
    from edgehub.store.options import StoreOptions
    from edgehub.store.recovery import Recovered


class SharedState:
    """See the module.

    Args:
        recovered: What the file holds.
        clock: All times.
        options: Of the store.
    """

    __slots__ = ("boot", "cache", "clock", "dead_letters", "events", "labels", "offsets")

    def __init__(self, recovered: Recovered, clock: Clock, options: StoreOptions) -> None:
        self.clock = clock
        self.boot = boot = Boot(
            clock,
            recovered.boots,
            high_water=recovered.high_water,
            trust=options.clock_trust,
            while_off=options.ttl_while_off,
        )
        self.labels = Labels(recovered.labels)
        high_water = max(recovered.high_water, boot.first_offset - 1)
        self.offsets = Offsets(high_water, ahead=options.commit_delay_ms > 0)
        self.dead_letters = DeadLetters(
            self.labels,
            options,
            stored=recovered.dead_letters,
        )
        self.cache = Cache(options.cache_bytes_max)
        self.events: EventLog | None = None
        if options.journal:
            self.events = EventLog(
                recovered.events,
                hub_time=boot.hub_time,
                utc_ms=boot.utc_ms,
                is_trusted=lambda: boot.trusted,
                bytes_max=options.journal_bytes_max,
            )

    def commit_context(self) -> CommitContext:
        """Return what every commit writes beside rows and results."""
        return CommitContext(self.boot, self.labels, self.dead_letters, self.offsets, self.events)

    def read_source(self, database: Database, staleness: Staleness, store_id: str) -> ReadSource:
        """Return how rows are read."""
        return ReadSource(
            database=database,
            clock=self.clock,
            hub_time=self.boot.hub_time,
            labels=self.labels,
            store_id=store_id,
            cache=self.cache,
            offsets=self.offsets,
            stale_met=staleness.met,
        )
