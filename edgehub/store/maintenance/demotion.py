"""Recency: rows whose freshness has ended are moved to their fallback priority, by offset.

Owns the period and the choice of zones. Works in steps between groups as clean-up does. A reader
that meets a stale row skips it and reports that, and the next step follows at once; so a row is
never sent from a queue that it is too old for. Invariants: a move is one transaction, with the
checkpoints of both queues; rows in flight, and rows whose result waits for its commit, stay where
they are.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson
import structlog
from typing_extensions import override

from edgehub.journal.row_events import moved_to
from edgehub.message import NEVER_MS, Priority
from edgehub.store.database import StoreBusyError
from edgehub.store.zone_step import STEP_ROWS_MAX, StepResult, Target, ZoneStep
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.event_log import EventBatch
    from edgehub.store.queue import Queue
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Job, Writer
    from edgehub.store.zones import ZoneValues

log = structlog.get_logger(__name__)

PERIOD_S_MIN: Final = 5.0
PERIOD_S_MAX: Final = 3600.0
SECONDS_SHARE: Final = 0.1
GAP_S: Final = 0.1
"""Between two rounds that readers have asked for: rows become stale one by one."""


class DemotionStep(ZoneStep):
    """Moves stale rows.

    Attributes:
        fallbacks: Where to, by fallback priority.
    """

    fallbacks: dict[int, Target]

    @override
    def take(self, connection: sqlite3.Connection, values: ZoneValues, result: StepResult) -> bool:
        table = f"q_{self.number}"
        zone, *_, rows, size, _ = values
        low, high = zone * ZONE_OFFSETS, (zone + 1) * ZONE_OFFSETS - 1
        stale = (
            "q.offset BETWEEN ? AND ? AND q.fresh_until_ms <= ?"
            " AND q.offset NOT IN (SELECT value FROM json_each(?))"
        )
        busy = orjson.dumps(self.busy_between(low, high)).decode()
        chosen = (low, high, self.now_ms, busy)
        sums = connection.execute(
            "SELECT fallback, count(*), sum(size), min(offset), max(offset),"  # noqa: S608 - our numbers
            f" min(coalesce(expires_ms, {NEVER_MS})), max(coalesce(expires_ms, {NEVER_MS}))"
            f" FROM {table} q WHERE {stale} GROUP BY fallback",
            chosen,
        ).fetchall()
        for fallback, *figures in sums:
            target = self.fallbacks.get(fallback)
            if target is None:
                result.unknown.add(fallback)
                continue
            where, rows_chosen = f"{stale} AND q.fallback = ?", (*chosen, fallback)
            event = moved_to(target.queue.priority)
            self.record(connection, event, where, rows_chosen, figures)
            self.move(connection, target, where, rows_chosen, attempts=True)
            connection.execute(f"DELETE FROM {table} AS q WHERE {where}", rows_chosen)  # noqa: S608 - likewise
            target.join(zone, figures)
            rows -= figures[0]
            size -= figures[1]
            result.rows += figures[0]
            result.bytes += figures[1]
        # The whole zone has been read, so that it need not be read again before its time.
        (stale_from_ms,) = connection.execute(
            f"SELECT coalesce(min(fresh_until_ms), {NEVER_MS}) FROM {table}"  # noqa: S608 - our numbers
            " WHERE offset BETWEEN ? AND ?",
            (low, high),
        ).fetchone()
        result.zones.append((*values[:4], rows, size, stale_from_ms))
        return not result.unknown


class Demotion:
    """The background task."""

    def __init__(self, shared: SharedState, queues: Queues, writer: Writer) -> None:
        self._shared = shared
        self._queues = queues
        self._writer = writer
        self._clock = shared.clock
        self._staleness = shared.staleness
        self._fallbacks: dict[int, set[int]] = {}
        """Fallback priorities met so far, by number of the queue."""
        if any(queue.zones.stale_from_ms < NEVER_MS for queue in queues.all()):
            self._staleness.shortest_s = 0.0

    async def run(self) -> None:
        """Move stale rows periodically until cancelled."""
        while True:
            await self._staleness.pause.wait_period(self._clock, self._period_s)
            await self.demote()

    async def demote(self) -> None:
        """Do one round over all queues."""
        self._staleness.is_met = False
        for queue in self._queues.all():
            now_ms = self._shared.hub_time.now_ms()
            todo = queue.zones.stale(now_ms)
            while todo:
                try:
                    await self._writer.between(partial(self._prepare, queue, todo, now_ms))
                except StoreBusyError as exc:
                    log.warning("store.demotion_failed", error=str(exc))
                    return

    def _period_s(self) -> float:
        shortest_s = self._staleness.shortest_s
        if self._staleness.is_met:
            return GAP_S
        if shortest_s == math.inf:
            return math.inf
        return min(max(shortest_s * SECONDS_SHARE, PERIOD_S_MIN), PERIOD_S_MAX)

    def _prepare(
        self, queue: Queue, todo: list[int], now_ms: int, batch: EventBatch | None
    ) -> Job | None:
        zones: list[ZoneValues] = []
        rows = 0
        while todo and rows < STEP_ROWS_MAX:
            values = queue.zones.get(todo.pop(0))
            # Zones that are wholly expired are left to clean-up.
            if values is not None and values[2] > now_ms:
                zones.append(values)
                rows += values[4]
        if not zones:
            return None
        numbers = [values[0] for values in zones]
        targets = {
            fallback: Target(self._queues.get(queue.endpoint_id, Priority(fallback)), numbers)
            for fallback in self._fallbacks.get(queue.number, ())
        }
        busy = queue.checkpointer.busy(attempted=True)
        step = DemotionStep(queue, zones, self._shared, batch, now_ms=now_ms, busy=busy)
        step.fallbacks, step.targets = targets, targets.values()

        def apply(result: StepResult) -> int:
            # Zones that this step did not come to, and the one whose target it did not know.
            done = result.zones[:-1] if result.unknown else result.zones
            todo[:0] = numbers[len(done) :]
            if result.unknown:
                self._fallbacks.setdefault(queue.number, set()).update(result.unknown)
            committed = self._shared.offsets.committed
            queue.zones.replace(result.zones)
            queue.lowest_committed(result.lowest, committed)
            queue.rows_moved_out(result.rows)
            for target in targets.values():
                target.apply(committed)
            return 2 * result.bytes

        return step.run, apply
