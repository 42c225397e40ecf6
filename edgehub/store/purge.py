"""Rows that an operator removes from a queue, or moves to another one, zone by zone between groups.

The caller goes on where a call has stopped. Invariants: rows in flight, and rows whose result waits
for its commit, stay where they are; the reader forgets the others before they are removed, so none
of them is sent any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from typing_extensions import override

from edgehub.journal.row_events import RowEvent, moved_to
from edgehub.message import NEVER_MS
from edgehub.store.transaction import json_list
from edgehub.store.zone_step import STEP_ROWS_MAX, StepResult, Target, ZoneStep
from edgehub.store.zones import ZONE_OFFSETS, ZoneValues

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.event_log import EventBatch
    from edgehub.store.queue import Queue
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Job, Writer

SLICE_BYTES_MAX: Final = 4 * 2**20
"""Between two checks of the time: a zone of the largest messages holds 250 MB."""
CALL_S_MAX: Final = 0.5


class Removal(Struct, frozen=True, kw_only=True):
    """The result of one call.

    Attributes:
        rows: Rows that were removed.
        bytes: Sum of their sizes.
        in_flight: Rows that were skipped because they are in flight.
        next_offset: Where to go on, None = the whole queue is done.
    """

    rows: int
    bytes: int
    in_flight: int
    next_offset: int | None


class _Step(ZoneStep):
    """Removes rows, or moves them.

    Attributes:
        span: First and last offset of the rows.
        event: Of each row.
        keeps_attempts: They keep the count of refused sends.
    """

    span: tuple[int, int]
    event: int = RowEvent.PURGED
    keeps_attempts = False

    @override
    def take(self, connection: sqlite3.Connection, values: ZoneValues, result: StepResult) -> bool:
        zone, *_, rows, size, _ = values
        low = max(zone * ZONE_OFFSETS, self.span[0])
        last = min((zone + 1) * ZONE_OFFSETS - 1, self.span[1])
        slice_offsets = max(1, SLICE_BYTES_MAX * rows // size)
        goes_on = True
        while goes_on and low <= last:
            high = min(low + slice_offsets - 1, last)
            taken_rows, taken_bytes = self._take_slice(connection, zone, (low, high), result)
            rows -= taken_rows
            size -= taken_bytes
            result.rows += taken_rows
            result.bytes += taken_bytes
            result.next_offset = low = high + 1
            goes_on = not self.is_long(result.rows)
        result.zones.append((*values[:4], rows, size, values[6]))
        return goes_on

    def _take_slice(
        self, connection: sqlite3.Connection, zone: int, span: tuple[int, int], result: StepResult
    ) -> tuple[int, int]:
        table = f"q_{self.number}"
        busy = self.busy_between(*span)
        result.skipped += len(busy)
        where = "q.offset BETWEEN ? AND ? AND q.offset NOT IN (SELECT value FROM json_each(?))"
        chosen = (*span, json_list(busy))
        figures = connection.execute(
            "SELECT count(*), coalesce(sum(size), 0), min(offset), max(offset),"  # noqa: S608 - our numbers
            f" min(coalesce(expires_ms, {NEVER_MS})), max(coalesce(expires_ms, {NEVER_MS}))"
            f" FROM {table} q WHERE {where}",
            chosen,
        ).fetchone()
        rows, size = figures[:2]
        if rows:
            self.record(connection, self.event, where, chosen, figures)
            result.creations += connection.execute(
                f"SELECT offset, size FROM {table} q WHERE q.creation IS NOT NULL AND {where}",  # noqa: S608 - likewise
                chosen,
            ).fetchall()
            for target in self.targets:
                self.move(connection, target, where, chosen, attempts=self.keeps_attempts)
                target.join(zone, figures)
            deleted = connection.execute(
                f"DELETE FROM {table} AS q WHERE {where}",  # noqa: S608 - likewise
                chosen,
            ).rowcount
            assert deleted == rows, (deleted, rows)
        return rows, size


class Purger:
    """Purges and moves queues, one call at a time."""

    def __init__(self, shared: SharedState, writer: Writer) -> None:
        self._shared = shared
        self._writer = writer
        self._clock = shared.clock

    async def take_out(
        self, queue: Queue, target: Queue | None, *, from_offset: int, through: int
    ) -> Removal:
        """Remove rows of a queue, or move them, for about half a second.

        Args:
            queue: Where they are.
            target: Where they are moved to; None = they are purged.
            from_offset: Where to begin: 0, or the `next_offset` of the last call.
            through: Highest offset of the rows.

        Raises:
            StoreBusyError: The disk or a lock prevents it; what was done stays done.
        """
        assert queue is not target
        # Refused sends and confirmations that wait for their commit keep their rows here.
        await self._writer.flush_within(CALL_S_MAX)
        until_s = self._clock.monotonic() + CALL_S_MAX
        next_offset: int | None = from_offset
        rows = size = skipped = 0
        while next_offset is not None and self._clock.monotonic() < until_s:
            results: list[StepResult] = []
            prepare = partial(self._prepare, queue, target, (next_offset, through), results)
            await self._writer.between(prepare)
            next_offset = None
            for result in results:
                rows += result.rows
                size += result.bytes
                skipped += result.skipped
                next_offset = result.next_offset
        return Removal(rows=rows, bytes=size, in_flight=skipped, next_offset=next_offset)

    def _prepare(
        self,
        queue: Queue,
        target: Queue | None,
        span: tuple[int, int],
        done: list[StepResult],
        batch: EventBatch | None,
    ) -> Job | None:
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
        to = None if target is None else Target(target, [values[0] for values in zones])
        step = _Step(
            queue,
            zones,
            self._shared,
            batch,
            now_ms=self._shared.hub_time.now_ms(),
            busy=queue.checkpointer.busy(attempted=True),
            to_endpoint=None if target is None else target.endpoint_id,
        )

        step.span = span
        if to is not None:
            step.targets = (to,)
            step.event = moved_to(to.queue.priority)
            # Another endpoint has not refused them yet.
            step.keeps_attempts = to.queue.endpoint_id == queue.endpoint_id

        def apply(result: StepResult) -> int:
            committed = self._shared.offsets.committed
            queue.zones.replace(result.zones)
            queue.lowest_committed(result.lowest, committed)
            queue.creations.discard([offset for offset, _ in result.creations])
            if to is None:
                queue.totals.purged_total += result.rows
            else:
                queue.rows_moved_out(result.rows)
                to.creations = result.creations
                to.apply(committed)
            done.append(result)
            queue.wake()
            return 2 * result.bytes

        return step.run, apply
