"""Recency: rows whose freshness has ended go to their fallback priority, keeping their offsets.

Owns the rhythm and the choice of zones. Works in steps between groups as clean-up does. A reader
that meets a stale row passes it by and says so, and the next step follows at once; so a row is
never sent from the queue that it is too old for. Invariants: a move is one transaction, with the
checkpoints of both queues; rows in flight, and rows whose result waits for its commit, stay where
they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from edgehub.journal.row_events import EventColumns, moved_to
from edgehub.message import NEVER_MS, Priority
from edgehub.store.database import StoreBusyError
from edgehub.store.pause import Pause
from edgehub.store.row_records import read_records
from edgehub.store.transaction import register_queue, write_checkpoint, write_zones
from edgehub.store.zones import ZONE_OFFSETS, ZoneValues

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock, HubTime
    from edgehub.store.encoding import Params
    from edgehub.store.event_log import EventBatch
    from edgehub.store.labels import Labels
    from edgehub.store.offsets import Offsets
    from edgehub.store.queue import Queue
    from edgehub.store.registry import Registry
    from edgehub.store.writer import Job, Writer

log = structlog.get_logger(__name__)

PERIOD_S_MIN: Final = 5.0
PERIOD_S_MAX: Final = 3600.0
SECONDS_SHARE: Final = 0.1
GAP_S: Final = 0.1
"""Between two rounds that readers ask for: rows become stale one by one."""
STEP_ROWS_MAX: Final = 10_000
STEP_S_MAX: Final = 0.05

_COLUMNS: Final = (
    "offset, enqueued_ms, expires_ms, size, attempts, predecessor, routes, message_id, body_id,"
    " header, body"
)


class Staleness:
    """What others know of recency: that there is some, and that stale rows stand in the way."""

    __slots__ = ("is_met", "pause", "shortest_s")

    def __init__(self) -> None:
        self.pause = Pause()
        self.is_met = False
        self.shortest_s = math.inf
        """Shortest freshness seen, infinite = no row has recency."""

    def met(self) -> None:
        """Record that a reader has passed stale rows by."""
        if not self.is_met:
            self.is_met = True
            self.pause.cut()

    def seen(self, seconds: float) -> None:
        """Record a freshness shorter than all before; the rhythm follows it at once."""
        self.shortest_s = seconds
        self.pause.cut()


class Target:
    """Where rows of one step may go, as it was before the step."""

    __slots__ = (
        "creations",
        "highest",
        "lowest",
        "number",
        "queue",
        "registration",
        "rows",
        "sums",
        "zones",
    )

    def __init__(self, queue: Queue, zones: list[ZoneValues]) -> None:
        self.queue = queue
        self.number = queue.number
        self.registration: Params | None = None
        if not queue.registered:
            self.registration = (queue.number, queue.id, queue.endpoint_id, queue.priority, 0)
        before = [queue.zones.get(values[0]) for values in zones]
        self.zones = {values[0]: values for values in before if values is not None}
        self.rows = 0
        self.lowest: int = NEVER_MS
        self.highest = 0
        self.sums: tuple[int, int] | None = None
        """Offset and enqueue time of its lowest row afterwards."""
        self.creations: list[tuple[int, int]] = []
        """Offset and size of those of the rows that create entities."""

    def join(self, zone: int, figures: Sequence[int]) -> None:
        """Count rows that have come to a zone; there they have no recency any more.

        Args:
            zone: The zone.
            figures: Rows, bytes, lowest and highest offset, earliest and latest expiry.
        """
        rows, size, lowest, highest, min_expires_ms, max_expires_ms = figures
        before = self.zones.get(zone, (zone, NEVER_MS, 0, 0, 0, 0, NEVER_MS))
        self.zones[zone] = (
            zone,
            min(before[1], min_expires_ms),
            max(before[2], max_expires_ms),
            NEVER_MS,
            before[4] + rows,
            before[5] + size,
            before[6],
        )
        self.rows += rows
        self.lowest = min(self.lowest, lowest)
        self.highest = max(self.highest, highest)

    def apply(self, committed: int) -> None:
        """Tell its queue what has come, once that is in the file."""
        if not self.rows:
            return
        self.queue.registered = True
        self.queue.zones.replace(self.zones.values())
        for offset, size in self.creations:
            self.queue.creations.came(offset, size)
        self.queue.lowest_committed(self.sums, committed)
        self.queue.rows_moved_in(self.lowest, self.highest)


@dataclass(slots=True, kw_only=True)
class Demoted:
    """What one step did.

    Attributes:
        zones: Entries of the source as they are now.
        unknown: Fallback priorities that were met and that the step had no target for.
        lowest: Offset and enqueue time of the lowest row left, None = empty.
    """

    zones: list[ZoneValues] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    unknown: set[int] = field(default_factory=set)
    lowest: tuple[int, int] | None = None


class DemotionStep:
    """One step on some zones of one queue; runs as a transaction of its own."""

    def __init__(
        self,
        queue: Queue,
        zones: list[ZoneValues],
        targets: dict[int, Target],
        *,
        now_ms: int,
        empty_checkpoint: int,
        monotonic: Callable[[], float],
        labels: Labels,
        events: EventBatch | None,
    ) -> None:
        self._queue = queue
        self._number = queue.number
        self._zones = zones
        self._targets = targets
        self._now_ms = now_ms
        self._busy = queue.checkpointer.busy(attempted=True)
        self._empty_checkpoint = empty_checkpoint
        self._monotonic = monotonic
        self._labels = labels
        self._events = events
        self._moved = EventColumns()

    def run(self, connection: sqlite3.Connection) -> Demoted:
        """Move stale rows, zone by zone, until the step is long enough."""
        until_s = self._monotonic() + STEP_S_MAX
        result = Demoted()
        for values in self._zones:
            self._demote(connection, values, result)
            if result.unknown or result.rows >= STEP_ROWS_MAX or self._monotonic() >= until_s:
                break
        write_zones(connection, self._number, result.zones)
        result.lowest = write_checkpoint(connection, self._number, self._empty_checkpoint)
        for target in self._targets.values():
            if target.rows:
                write_zones(connection, target.number, list(target.zones.values()))
                target.sums = write_checkpoint(connection, target.number, self._empty_checkpoint)
        if self._events is not None:
            key = (self._queue.endpoint_id, self._queue.priority)
            self._events.queues.append((*key, self._moved))
            self._events.write(connection)
        return result

    def _demote(self, connection: sqlite3.Connection, values: ZoneValues, result: Demoted) -> None:
        zone, *_, rows, size, _ = values
        low, high = zone * ZONE_OFFSETS, (zone + 1) * ZONE_OFFSETS - 1
        busy = orjson.dumps([offset for offset in self._busy if low <= offset <= high]).decode()
        stale = (
            "q.offset BETWEEN ? AND ? AND q.fresh_until_ms <= ?"
            " AND q.offset NOT IN (SELECT value FROM json_each(?))"
        )
        chosen = (low, high, self._now_ms, busy)
        sums = connection.execute(
            "SELECT fallback, count(*), sum(size), min(offset), max(offset),"  # noqa: S608 - our numbers
            f" min(coalesce(expires_ms, {NEVER_MS})), max(coalesce(expires_ms, {NEVER_MS}))"
            f" FROM q_{self._number} q WHERE {stale} GROUP BY fallback",
            chosen,
        ).fetchall()
        for fallback, *figures in sums:
            target = self._targets.get(fallback)
            if target is None:
                result.unknown.add(fallback)
                continue
            self._move(connection, target, f"{stale} AND q.fallback = ?", (*chosen, fallback))
            target.join(zone, figures)
            rows -= figures[0]
            size -= figures[1]
            result.rows += figures[0]
            result.bytes += figures[1]
        # The whole zone has been read, so that it need not be read again before its time.
        (stale_from_ms,) = connection.execute(
            f"SELECT min(coalesce(fresh_until_ms, {NEVER_MS})) FROM q_{self._number}"  # noqa: S608 - our numbers
            " WHERE offset BETWEEN ? AND ?",
            (low, high),
        ).fetchone()
        stale_from_ms = NEVER_MS if stale_from_ms is None else stale_from_ms
        result.zones.append((*values[:4], rows, size, stale_from_ms))

    def _move(
        self, connection: sqlite3.Connection, target: Target, where: str, chosen: tuple[Any, ...]
    ) -> None:
        if target.registration is not None and not target.rows:
            register_queue(connection, target.registration)
        self._record(connection, target, where, chosen)
        # What the deletion gives back of shared bodies is taken before.
        connection.execute(
            "UPDATE body SET refs = refs + 1 WHERE id IN"  # noqa: S608 - our numbers and words
            f" (SELECT q.body_id FROM q_{self._number} q WHERE {where} AND q.body_id IS NOT NULL)",
            chosen,
        )
        connection.execute(
            f"INSERT INTO q_{target.number} ({_COLUMNS})"  # noqa: S608 - our numbers and words
            f" SELECT {_COLUMNS} FROM q_{self._number} q WHERE {where}",
            chosen,
        )
        connection.execute(f"DELETE FROM q_{self._number} AS q WHERE {where}", chosen)  # noqa: S608 - likewise

    def _record(
        self, connection: sqlite3.Connection, target: Target, where: str, chosen: tuple[Any, ...]
    ) -> None:
        if self._events is None:
            return
        event = moved_to(target.queue.priority)
        if self._events.summed:
            rows, size = connection.execute(
                f"SELECT count(*), coalesce(sum(size), 0) FROM q_{self._number} q WHERE {where}",  # noqa: S608 - likewise
                chosen,
            ).fetchone()
            self._moved.count(event, rows, size)
            return
        order = f"{where} ORDER BY q.offset"
        records = read_records(connection, self._number, order, chosen, self._labels)
        self._moved.add_records(event, records, self._now_ms)


class Demotion:
    """The task."""

    def __init__(
        self,
        registry: Registry,
        writer: Writer,
        offsets: Offsets,
        staleness: Staleness,
        *,
        clock: Clock,
        hub_time: HubTime,
        labels: Labels,
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._offsets = offsets
        self._staleness = staleness
        self._clock = clock
        self._hub_time = hub_time
        self._labels = labels
        self._events = writer.events
        self._batch: EventBatch | None = None
        self._fallbacks: dict[int, set[int]] = {}
        """Fallback priorities met so far, by number of the queue."""
        if any(queue.zones.stale_from_ms < NEVER_MS for queue in registry.queues()):
            staleness.shortest_s = 0.0

    async def run(self) -> None:
        """Move stale rows again and again until cancelled."""
        while True:
            await self._pause()
            await self.demote()

    async def demote(self) -> None:
        """Do one round over all queues."""
        self._staleness.is_met = False
        for queue in self._registry.queues():
            if not await self._demote(queue):
                return

    async def _demote(self, queue: Queue) -> bool:
        now_ms = self._hub_time.now_ms()
        todo = queue.zones.stale(now_ms)
        while todo:
            try:
                await self._writer.between(lambda: self._prepare(queue, todo, now_ms))
            except StoreBusyError as exc:
                log.warning("store.demotion_failed", error=str(exc))
                if self._events is not None and self._batch is not None:
                    self._events.failed(self._batch)
                return False
        return True

    async def _pause(self) -> None:
        begin_s = self._clock.monotonic()
        while True:
            until_s = begin_s + (GAP_S if self._staleness.is_met else self._period_s)
            left_s = until_s - self._clock.monotonic()
            if left_s <= 0:
                return
            await self._staleness.pause.wait(self._clock, left_s if left_s < math.inf else None)

    @property
    def _period_s(self) -> float:
        shortest_s = self._staleness.shortest_s
        if shortest_s == math.inf:
            return math.inf
        return min(max(shortest_s * SECONDS_SHARE, PERIOD_S_MIN), PERIOD_S_MAX)

    def _prepare(self, queue: Queue, todo: list[int], now_ms: int) -> Job | None:
        zones: list[ZoneValues] = []
        rows = 0
        while todo and rows < STEP_ROWS_MAX:
            values = queue.zones.get(todo.pop(0))
            # What is wholly expired is left to clean-up.
            if values is not None and values[2] > now_ms:
                zones.append(values)
                rows += values[4]
        if not zones:
            return None
        targets = {
            fallback: Target(self._registry.queue(queue.endpoint_id, Priority(fallback)), zones)
            for fallback in self._fallbacks.get(queue.number, ())
        }
        self._batch = None if self._events is None else self._events.begin()
        batch = self._batch
        step = DemotionStep(
            queue,
            zones,
            targets,
            now_ms=now_ms,
            empty_checkpoint=self._offsets.committed,
            monotonic=self._clock.monotonic,
            labels=self._labels,
            events=batch,
        )

        def apply(result: Demoted) -> None:
            if self._events is not None and batch is not None:
                self._events.committed(batch)
            # Zones that this step did not come to, and the one whose target it did not know.
            done = result.zones[:-1] if result.unknown else result.zones
            todo[:0] = [values[0] for values in zones[len(done) :]]
            self._apply(queue, targets, result)

        return step.run, apply

    def _apply(self, queue: Queue, targets: dict[int, Target], result: Demoted) -> None:
        if result.unknown:
            self._fallbacks.setdefault(queue.number, set()).update(result.unknown)
        committed = self._offsets.committed
        queue.zones.replace(result.zones)
        queue.lowest_committed(result.lowest, committed)
        queue.rows_moved_out(result.rows)
        for target in targets.values():
            target.apply(committed)
        self._writer.wal.written(2 * result.bytes)
