"""Clean-up: rows whose time to live has ended leave the file in the background.

Owns the rhythm and the choice of zones. A round works in steps between groups, each at most 50 ms
or 10 000 rows, so that nobody's commit waits longer. Invariant: rows in flight, and rows whose
result waits for its commit, are never touched; every row deleted here is counted as expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
import structlog

from edgehub.journal.row_events import EventColumns, RowEvent
from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.pause import Pause
from edgehub.store.row_records import read_records
from edgehub.store.transaction import write_checkpoint, write_zones
from edgehub.store.zones import ZONE_OFFSETS, ZoneValues

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock, HubTime
    from edgehub.store.dead_letters import DeadLetters
    from edgehub.store.event_log import Depth, EventBatch
    from edgehub.store.labels import Labels
    from edgehub.store.offsets import Offsets
    from edgehub.store.queue import Queue
    from edgehub.store.registry import Registry
    from edgehub.store.writer import Job, Writer

    RunJob = Callable[[Callable[[], Job | None]], Awaitable[object]]

log = structlog.get_logger(__name__)

PERIOD_S_MIN: Final = 5.0
PERIOD_S_MAX: Final = 3600.0
SOON_S: Final = 1.0
TTL_SHARE: Final = 0.1
STEP_ROWS_MAX: Final = 10_000
STEP_S_MAX: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What one step did.

    Attributes:
        zones: Entries as they are now.
        lowest: Offset and enqueue time of the lowest row left, None = empty.
        at_live_row: The step met a row that stays and only the head is cleaned.
        events: What it has told the journal, None = there is no journal.
    """

    zones: list[ZoneValues]
    rows: int
    bytes: int
    lowest: tuple[int, int] | None
    at_live_row: bool
    events: EventBatch | None


class CleanStep:
    """One step on some zones of one queue; runs as a transaction of its own."""

    def __init__(
        self,
        queue: Queue,
        zones: list[ZoneValues],
        *,
        now_ms: int,
        empty_checkpoint: int,
        head_only: bool,
        monotonic: Callable[[], float],
        labels: Labels,
        events: EventBatch | None,
    ) -> None:
        self._number = queue.number
        self._key = (queue.endpoint_id, queue.priority)
        self._zones = zones
        self._now_ms = now_ms
        self._busy = queue.checkpointer.busy()
        self._labels = labels
        self._events = events
        self._expired = EventColumns()
        self._empty_checkpoint = empty_checkpoint
        self._head_only = head_only
        self._monotonic = monotonic

    def run(self, connection: sqlite3.Connection) -> Cleaned:
        """Delete expired rows, zone by zone, until the step is long enough."""
        until_s = self._monotonic() + STEP_S_MAX
        done: list[ZoneValues] = []
        rows = size = 0
        at_live_row = False
        for values in self._zones:
            after, at_live_row = self._clean(connection, values)
            done.append(after)
            rows += values[4] - after[4]
            size += values[5] - after[5]
            if at_live_row or rows >= STEP_ROWS_MAX or self._monotonic() >= until_s:
                break
        write_zones(connection, self._number, done)
        lowest = write_checkpoint(connection, self._number, self._empty_checkpoint)
        if self._events is not None:
            self._events.queues.append((*self._key, self._expired))
            self._events.write(connection)
        return Cleaned(
            zones=done,
            rows=rows,
            bytes=size,
            lowest=lowest,
            at_live_row=at_live_row,
            events=self._events,
        )

    def _clean(self, connection: sqlite3.Connection, values: ZoneValues) -> tuple[ZoneValues, bool]:
        zone, _, max_expires_ms, fresh_until_ms, rows, size, stale_from_ms = values
        low, high = zone * ZONE_OFFSETS, (zone + 1) * ZONE_OFFSETS - 1
        busy = orjson.dumps([offset for offset in self._busy if low <= offset <= high]).decode()
        at_live_row = False
        if self._head_only:
            live = connection.execute(
                f"SELECT offset FROM q_{self._number} WHERE offset BETWEEN ? AND ?"  # noqa: S608 - our number
                " AND (expires_ms IS NULL OR expires_ms > ?)"
                " AND offset NOT IN (SELECT value FROM json_each(?)) ORDER BY offset LIMIT 1",
                (low, high, self._now_ms, busy),
            ).fetchone()
            if live is not None:
                at_live_row = True
                high = live[0] - 1
        where = (
            f"FROM q_{self._number} WHERE offset BETWEEN ? AND ?"  # noqa: S608 - our number
            " AND expires_ms <= ? AND offset NOT IN (SELECT value FROM json_each(?))"
        )
        chosen = (low, high, self._now_ms, busy)
        gone_rows, gone_bytes = connection.execute(
            f"SELECT count(*), coalesce(sum(size), 0) {where}",
            chosen,
        ).fetchone()
        if gone_rows:
            self._record(connection, chosen, gone_rows, gone_bytes)
            deleted = connection.execute(f"DELETE {where}", chosen).rowcount
            assert deleted == gone_rows, (deleted, gone_rows)
        # The whole zone has been read, so what it says of its rows may be exact again; otherwise
        # each round would read a zone that a few live rows keep.
        (min_expires_ms,) = connection.execute(
            f"SELECT min(coalesce(expires_ms, {NEVER_MS})) FROM q_{self._number}"  # noqa: S608 - our numbers
            " WHERE offset BETWEEN ? AND ?",
            (low, low + ZONE_OFFSETS - 1),
        ).fetchone()
        after = (
            zone,
            NEVER_MS if min_expires_ms is None else min_expires_ms,
            max_expires_ms,
            fresh_until_ms,
            rows - gone_rows,
            size - gone_bytes,
            stale_from_ms,
        )
        return after, at_live_row

    def _record(
        self, connection: sqlite3.Connection, chosen: tuple[Any, ...], rows: int, size: int
    ) -> None:
        """Read what the journal is to know of rows that are about to go."""
        if self._events is None:
            return
        if self._events.summed:
            self._expired.count(RowEvent.EXPIRED, rows, size)
            return
        where = (
            "q.offset BETWEEN ? AND ? AND q.expires_ms <= ?"
            " AND q.offset NOT IN (SELECT value FROM json_each(?)) ORDER BY q.offset"
        )
        records = read_records(connection, self._number, where, chosen, self._labels)
        self._expired.add_records(RowEvent.EXPIRED, records, self._now_ms)


class Retention:
    """The clean-up task."""

    def __init__(
        self,
        registry: Registry,
        writer: Writer,
        dead_letters: DeadLetters,
        offsets: Offsets,
        *,
        clock: Clock,
        hub_time: HubTime,
        head_only: bool,
        labels: Labels,
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._dead_letters = dead_letters
        self._offsets = offsets
        self._clock = clock
        self._hub_time = hub_time
        self._labels = labels
        self._events = writer.events
        self._batch: EventBatch | None = None
        self.head_only = head_only
        """Stop at the first live row of a queue; may change between rounds."""
        self._is_due_soon = False
        self._cleaned_ms = 0
        """Clean-up has been everywhere since this hub time."""
        self._idle = Pause()
        self.shortest_ttl_ms = self._shortest_stored()
        """Shortest time to live seen; of rows stored before, what was left of it at start."""

    async def run(self) -> None:
        """Clean up again and again until cancelled."""
        while True:
            await self._pause()
            await self.clean()

    async def clean(self) -> None:
        """Do one round over all queues."""
        began_ms = self._hub_time.now_ms()
        for queue in self._registry.queues():
            if not await self._clean_queue(queue):
                return
        self._cleaned_ms = began_ms
        if self._dead_letters.rows:
            await self._between(self._prepare_dead_letters)

    @property
    def lag_ms(self) -> int:
        """Longest time for which something that has expired may wait for clean-up, 0 = none does.

        Rows in flight do not expire, and head-only clean-up leaves rows by intent: neither makes it
        longer than the time between two rounds.
        """
        now_ms = self._hub_time.now_ms()
        queues = self._registry.queues()
        since_ms = min([q.zones.expired_from_ms(now_ms) for q in queues], default=NEVER_MS)
        return max(0, now_ms - max(since_ms, self._cleaned_ms))

    def ttl_seen(self, ttl_ms: int) -> None:
        """Record a time to live shorter than all before; the period follows it at once."""
        self.shortest_ttl_ms = ttl_ms
        self._idle.cut()

    @property
    def period_s(self) -> float:
        """Time between two rounds."""
        share_s = self.shortest_ttl_ms / 1000 * TTL_SHARE
        return min(max(share_s, PERIOD_S_MIN), PERIOD_S_MAX)

    def run_soon(self) -> None:
        """Do the next round within a second: what has expired takes room that is wanted."""
        self._is_due_soon = True
        self._idle.cut()

    async def make_way(self, run_job: RunJob, enough: Callable[[], bool]) -> None:
        """Clear away what has expired until it is enough, the worst priorities first.

        Args:
            run_job: Runs a transaction.
            enough: Asked before each of them.
        """
        for queue in sorted(self._registry.queues(), key=lambda queue: -queue.priority):
            if enough() or not await self._clean_queue(queue, run_job, enough):
                return

    async def _pause(self) -> None:
        begin_s = self._clock.monotonic()
        while True:
            period_s = min(self.period_s, SOON_S) if self._is_due_soon else self.period_s
            left_s = begin_s + period_s - self._clock.monotonic()
            if left_s <= 0:
                self._is_due_soon = False
                return
            await self._idle.wait(self._clock, left_s)

    def _shortest_stored(self) -> int:
        expiries = [queue.zones.min_expires_ms for queue in self._registry.queues()]
        return max(0, min(expiries, default=NEVER_MS) - self._hub_time.now_ms())

    async def _clean_queue(
        self,
        queue: Queue,
        run_job: RunJob | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> bool:
        now_ms = self._hub_time.now_ms()
        todo = queue.zones.expired(now_ms, head_only=self.head_only)
        while todo and not (enough is not None and enough()):
            if not await self._between(lambda: self._prepare(queue, todo, now_ms), run_job):
                return False
        return True

    async def _between(
        self,
        prepare: Callable[[], Job | None],
        run_job: RunJob | None = None,
    ) -> bool:
        try:
            await (run_job or self._writer.between)(prepare)
        except StoreBusyError as exc:
            log.warning("store.clean_up_failed", error=str(exc))
            if self._events is not None and self._batch is not None:
                self._events.failed(self._batch)
            return False
        return True

    def _begin(self) -> EventBatch | None:
        self._batch = None if self._events is None else self._events.begin()
        return self._batch

    def _told(self, batch: EventBatch | None) -> None:
        if self._events is not None and batch is not None:
            self._events.committed(batch)

    def _prepare(self, queue: Queue, todo: list[int], now_ms: int) -> Job | None:
        zones: list[ZoneValues] = []
        rows = 0
        for zone in todo:
            values = queue.zones.get(zone)
            if values is not None:
                zones.append(values)
                rows += values[4]
            if rows >= STEP_ROWS_MAX:
                break
        if not zones:
            todo.clear()
            return None
        step = CleanStep(
            queue,
            zones,
            now_ms=now_ms,
            empty_checkpoint=self._offsets.committed,
            head_only=self.head_only,
            monotonic=self._clock.monotonic,
            labels=self._labels,
            events=self._begin(),
        )
        return step.run, lambda cleaned: self._apply(queue, todo, cleaned)

    def _apply(self, queue: Queue, todo: list[int], cleaned: Cleaned) -> None:
        queue.zones.replace(cleaned.zones)
        queue.rows_expired(cleaned.rows)
        queue.lowest_committed(cleaned.lowest, self._offsets.committed)
        self._told(cleaned.events)
        self._writer.wal.written(cleaned.bytes)
        if cleaned.at_live_row:
            todo.clear()
        else:
            last = cleaned.zones[-1][0]
            todo[:] = [zone for zone in todo if zone > last]

    def _prepare_dead_letters(self) -> Job | None:
        now_ms = self._hub_time.now_ms()
        batch = self._begin()

        def evict(connection: sqlite3.Connection) -> list[Depth]:
            evicted = self._dead_letters.evict_older(connection, now_ms)
            if batch is not None:
                batch.dead_letters_left(evicted, "bounds")
                batch.write(connection)
            return evicted

        def apply(evicted: list[Depth]) -> None:
            self._dead_letters.committed([], evicted)
            self._told(batch)

        return evict, apply
