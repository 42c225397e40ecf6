"""Rows that a person removes from a queue, or moves to another one, zone by zone between groups.

Owns the steps, each at most 50 ms or 10 000 rows; who asks goes on from where a call has stopped.
Invariants: rows in flight, and rows whose result waits for its commit, stay where they are; what
the reader holds of the others is forgotten before they go, so none of them is sent any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.journal.row_events import EventColumns, RowEvent, moved_to
from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.maintenance.demotion import Target
from edgehub.store.row_records import read_records
from edgehub.store.transaction import register_queue, write_checkpoint, write_zones
from edgehub.store.zones import ZONE_OFFSETS, ZoneValues

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from edgehub.store.event_log import EventBatch
    from edgehub.store.queue import Queue
    from edgehub.store.reader import ReadSource
    from edgehub.store.writer import Job, Writer

STEP_ROWS_MAX: Final = 10_000
STEP_S_MAX: Final = 0.05
SLICE_BYTES_MAX: Final = 4 * 2**20
"""Between two looks at the clock: a zone of the largest messages holds 250 MB."""
CALL_S_MAX: Final = 0.5
REASON: Final = "command"

_COLUMNS: Final = (
    "offset, enqueued_ms, expires_ms, size, predecessor, creation, routes, message_id, body_id"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What one call has done.

    Attributes:
        rows: Rows that have gone.
        bytes: Sum of their sizes.
        in_flight: Rows that were passed by, because they are on their way.
        next_offset: Where to go on, None = all of the queue has been looked at.
    """

    rows: int
    bytes: int
    in_flight: int
    next_offset: int | None


@dataclass(slots=True)
class _Result:
    zones: list[ZoneValues] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    passed: int = 0
    next_offset: int | None = None
    lowest: tuple[int, int] | None = None
    creations: list[tuple[int, int]] = field(default_factory=list)


class _Step:
    """One step on some zones of one queue; runs as a transaction of its own."""

    def __init__(
        self,
        queue: Queue,
        zones: list[ZoneValues],
        target: Target | None,
        *,
        span: tuple[int, int],
        now_ms: int,
        empty_checkpoint: int,
        source: ReadSource,
        events: EventBatch | None,
    ) -> None:
        self._key = (queue.endpoint_id, queue.priority)
        self._number = queue.number
        self._zones = zones
        self._target = target
        self._first, self._last = span
        self._now_ms = now_ms
        self._busy = queue.checkpointer.busy(attempted=True)
        self._empty_checkpoint = empty_checkpoint
        self._monotonic = source.clock.monotonic
        self._labels = source.labels
        self._events = events
        self._told = EventColumns(None if target is None else target.queue.endpoint_id)
        self._same_endpoint = target is not None and target.queue.endpoint_id == queue.endpoint_id

    def run(self, connection: sqlite3.Connection) -> _Result:
        """Take rows out, zone by zone, until the step is long enough."""
        until_s = self._monotonic() + STEP_S_MAX
        result = _Result()
        for values in self._zones:
            if not self._take(connection, values, result, until_s):
                break
        write_zones(connection, self._number, result.zones)
        result.lowest = write_checkpoint(connection, self._number, self._empty_checkpoint)
        target = self._target
        if target is not None and target.rows:
            write_zones(connection, target.number, list(target.zones.values()))
            target.sums = write_checkpoint(connection, target.number, self._empty_checkpoint)
        if self._events is not None:
            self._events.queues.append((*self._key, self._told))
            self._events.write(connection)
        return result

    def _take(
        self, connection: sqlite3.Connection, values: ZoneValues, result: _Result, until_s: float
    ) -> bool:
        """Take rows of a zone out, slice by slice; returns False when the step is long enough."""
        zone, *_, rows, size, _ = values
        low = max(zone * ZONE_OFFSETS, self._first)
        last = min((zone + 1) * ZONE_OFFSETS - 1, self._last)
        slice_offsets = max(1, SLICE_BYTES_MAX * rows // size)
        goes_on = True
        while goes_on and low <= last:
            high = min(low + slice_offsets - 1, last)
            gone_rows, gone_bytes = self._take_slice(connection, zone, (low, high), result)
            rows -= gone_rows
            size -= gone_bytes
            result.rows += gone_rows
            result.bytes += gone_bytes
            result.next_offset = low = high + 1
            goes_on = result.rows < STEP_ROWS_MAX and self._monotonic() < until_s
        result.zones.append((*values[:4], rows, size, values[6]))
        return goes_on

    def _take_slice(
        self, connection: sqlite3.Connection, zone: int, span: tuple[int, int], result: _Result
    ) -> tuple[int, int]:
        busy = [offset for offset in self._busy if span[0] <= offset <= span[1]]
        result.passed += len(busy)
        where = (
            "q.offset BETWEEN ? AND ? AND q.offset NOT IN (SELECT value FROM json_each(?))"
            " ORDER BY q.offset"
        )
        chosen = (*span, orjson.dumps(busy).decode())
        figures = connection.execute(
            "SELECT count(*), coalesce(sum(size), 0), min(offset), max(offset),"  # noqa: S608 - our numbers
            f" min(coalesce(expires_ms, {NEVER_MS})), max(coalesce(expires_ms, {NEVER_MS}))"
            f" FROM q_{self._number} q WHERE {where}",
            chosen,
        ).fetchone()
        rows, size = figures[:2]
        if rows:
            self._record(connection, where, chosen, figures)
            result.creations += connection.execute(
                f"SELECT offset, size FROM q_{self._number} q"  # noqa: S608 - likewise
                f" WHERE q.creation IS NOT NULL AND {where}",
                chosen,
            ).fetchall()
            if self._target is not None:
                self._copy(connection, self._target, where, chosen)
                self._target.join(zone, figures)
            where = where.removesuffix(" ORDER BY q.offset")
            deleted = connection.execute(
                f"DELETE FROM q_{self._number} AS q WHERE {where}",  # noqa: S608 - our number and words
                chosen,
            ).rowcount
            assert deleted == rows, (deleted, rows)
        return rows, size

    def _copy(
        self, connection: sqlite3.Connection, target: Target, where: str, chosen: tuple[Any, ...]
    ) -> None:
        if target.registration is not None and not target.rows:
            register_queue(connection, target.registration)
        # What the deletion gives back of shared bodies is taken before. Two rows of a queue may
        # share one: copies for two endpoints that were moved to the same queue.
        bodies = connection.execute(
            f"SELECT q.body_id FROM q_{self._number} q WHERE q.body_id IS NOT NULL AND {where}",  # noqa: S608 - likewise
            chosen,
        ).fetchall()
        connection.executemany("UPDATE body SET refs = refs + 1 WHERE id = ?", bodies)
        # Another endpoint has not refused them yet; recency ends, for this is where they are to be.
        attempts = "attempts" if self._same_endpoint else "0"
        connection.execute(
            f"INSERT INTO q_{target.number} ({_COLUMNS}, attempts, header, body)"  # noqa: S608 - likewise
            f" SELECT {_COLUMNS}, {attempts}, header, body FROM q_{self._number} q WHERE {where}",
            chosen,
        )

    def _record(
        self,
        connection: sqlite3.Connection,
        where: str,
        chosen: tuple[Any, ...],
        figures: tuple[int, ...],
    ) -> None:
        if self._events is None:
            return
        target = self._target
        event = RowEvent.PURGED if target is None else moved_to(target.queue.priority)
        if self._events.summed:
            self._told.count(event, *figures[:2])
            return
        records = read_records(connection, self._number, where, chosen, self._labels)
        self._told.add_records(event, records, self._now_ms)


class Purger:
    """Purges and moves queues, one call at a time."""

    __slots__ = ("_clock", "_events", "_source", "_writer")

    def __init__(self, source: ReadSource, writer: Writer) -> None:
        self._source = source
        self._writer = writer
        self._clock = source.clock
        self._events = writer.events

    async def take_out(
        self, queue: Queue, target: Queue | None, *, from_offset: int, through: int
    ) -> Removal:
        """Remove rows of a queue, or move them, for about half a second.

        Args:
            queue: Where they are.
            target: Where they go to; None = they are purged.
            from_offset: Where to begin, 0 or what a call before gave.
            through: Highest offset of rows that are meant.

        Raises:
            StoreBusyError: The disk or a lock stands in the way; what was done stays done.
        """
        assert queue is not target
        if self._writer.failure is None:
            # Refused sends and confirmations that wait for their commit keep their rows here.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CALL_S_MAX):
                    await self._writer.flush()
        until_s = self._clock.monotonic() + CALL_S_MAX
        next_offset: int | None = from_offset
        rows = size = passed = 0
        while next_offset is not None and self._clock.monotonic() < until_s:
            done = _Result()
            span = (next_offset, through)
            await self._between(lambda: self._prepare(queue, target, span, done))  # noqa: B023 - awaited in this very turn
            rows += done.rows
            size += done.bytes
            passed += done.passed
            next_offset = done.next_offset
        return Removal(rows=rows, bytes=size, in_flight=passed, next_offset=next_offset)

    async def _between(self, prepare: Callable[[], tuple[Job, EventBatch | None] | None]) -> None:
        batch: EventBatch | None = None

        def begin() -> Job | None:
            nonlocal batch
            prepared = prepare()
            if prepared is None:
                return None
            job, batch = prepared
            return job

        try:
            await self._writer.between(begin)
        except StoreBusyError:
            if self._events is not None and batch is not None:
                self._events.failed(batch)
            raise

    def _prepare(
        self, queue: Queue, target: Queue | None, span: tuple[int, int], done: _Result
    ) -> tuple[Job, EventBatch | None] | None:
        zones: list[ZoneValues] = []
        rows = 0
        values = queue.zones.first_from(span[0] // ZONE_OFFSETS)
        while values is not None and values[0] * ZONE_OFFSETS <= span[1] and rows < STEP_ROWS_MAX:
            zones.append(values)
            rows += values[4]
            values = queue.zones.first_from(values[0] + 1)
        if not zones:
            return None
        queue.reader.go_back(zones[0][0] * ZONE_OFFSETS)
        batch = None if self._events is None else self._events.begin()
        to = None if target is None else Target(target, zones)
        step = _Step(
            queue,
            zones,
            to,
            span=span,
            now_ms=self._source.hub_time.now_ms(),
            empty_checkpoint=self._source.offsets.committed,
            source=self._source,
            events=batch,
        )

        def apply(result: _Result) -> None:
            if self._events is not None and batch is not None:
                self._events.committed(batch)
            committed = self._source.offsets.committed
            queue.zones.replace(result.zones)
            queue.lowest_committed(result.lowest, committed)
            queue.creations.left([offset for offset, _ in result.creations])
            if to is None:
                queue.rows_purged(result.rows)
            else:
                queue.rows_moved_out(result.rows)
                to.creations = result.creations
                to.apply(committed)
                self._writer.limits.recount()
            self._writer.wal.written(2 * result.bytes)
            done.rows, done.bytes, done.passed = result.rows, result.bytes, result.passed
            done.next_offset = result.next_offset
            queue.wake()

        return (step.run, apply), batch
