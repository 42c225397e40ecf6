"""Clean-up: rows whose time to live has ended are deleted in the background.

Owns the period and the choice of zones. A round works in steps between groups, so that no commit
waits longer than 50 ms for it. Invariant: rows in flight, and rows whose result waits for its
commit, are never touched; every row deleted here is counted as expired.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import orjson
import structlog
from typing_extensions import override

from edgehub.clock import Pause
from edgehub.journal.row_events import RowEvent
from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.zone_step import STEP_ROWS_MAX, StepResult, ZoneStep
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable

    from edgehub.store.event_log import Depth, EventBatch
    from edgehub.store.queue import Queue
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Job, PrepareJob, Writer
    from edgehub.store.zones import ZoneValues

    RunJob = Callable[[PrepareJob], Awaitable[object]]

log = structlog.get_logger(__name__)

PERIOD_S_MIN: Final = 5.0
PERIOD_S_MAX: Final = 3600.0
SOON_S: Final = 1.0
TTL_SHARE: Final = 0.1


class CleanStep(ZoneStep):
    """Deletes expired rows.

    Attributes:
        head_only: It ends at the first row that stays.
    """

    head_only = False

    @override
    def take(self, connection: sqlite3.Connection, values: ZoneValues, result: StepResult) -> bool:
        table = f"q_{self.number}"
        zone, _, max_expires_ms, fresh_until_ms, rows, size, stale_from_ms = values
        low, high = zone * ZONE_OFFSETS, (zone + 1) * ZONE_OFFSETS - 1
        busy = orjson.dumps(self.busy_between(low, high)).decode()
        if self.head_only:
            live = connection.execute(
                f"SELECT offset FROM {table} WHERE offset BETWEEN ? AND ?"  # noqa: S608 - our number
                " AND (expires_ms IS NULL OR expires_ms > ?)"
                " AND offset NOT IN (SELECT value FROM json_each(?)) ORDER BY offset LIMIT 1",
                (low, high, self.now_ms, busy),
            ).fetchone()
            if live is not None:
                result.at_live_row = True
                high = live[0] - 1
        where = (
            "q.offset BETWEEN ? AND ? AND q.expires_ms <= ?"
            " AND q.offset NOT IN (SELECT value FROM json_each(?))"
        )
        chosen = (low, high, self.now_ms, busy)
        expired = connection.execute(
            f"SELECT count(*), coalesce(sum(size), 0) FROM {table} q WHERE {where}",  # noqa: S608 - likewise
            chosen,
        ).fetchone()
        if expired[0]:
            self.record(connection, RowEvent.EXPIRED, where, chosen, expired)
            deleted = connection.execute(
                f"DELETE FROM {table} AS q WHERE {where}",  # noqa: S608 - likewise
                chosen,
            ).rowcount
            assert deleted == expired[0], (deleted, expired[0])
        # The whole zone has been read, so its entry can be exact again; otherwise each round would
        # read a zone that a few live rows keep.
        (min_expires_ms,) = connection.execute(
            f"SELECT coalesce(min(expires_ms), {NEVER_MS}) FROM {table}"  # noqa: S608 - our numbers
            " WHERE offset BETWEEN ? AND ?",
            (low, low + ZONE_OFFSETS - 1),
        ).fetchone()
        left = (rows - expired[0], size - expired[1])
        result.zones.append(
            (zone, min_expires_ms, max_expires_ms, fresh_until_ms, *left, stale_from_ms)
        )
        result.rows += expired[0]
        result.bytes += expired[1]
        return not result.at_live_row


class Retention:
    """The clean-up task."""

    def __init__(
        self, shared: SharedState, queues: Queues, writer: Writer, *, head_only: bool
    ) -> None:
        self._shared = shared
        self._queues = queues
        self._writer = writer
        self._clock = shared.clock
        self._hub_time = shared.hub_time
        self._dead_letters = shared.dead_letters
        self.head_only = head_only
        """Stop at the first live row of a queue; may change between rounds."""
        self._is_due_soon = False
        self._cleaned_ms = 0
        """All queues have been cleaned since this hub time."""
        self._idle = Pause()
        self.shortest_ttl_ms = self._shortest_stored()
        """Shortest time to live seen; of rows stored before, what was left of it at start."""

    async def run(self) -> None:
        """Clean up periodically until cancelled."""
        while True:
            await self._idle.wait_period(self._clock, self._next_s)
            self._is_due_soon = False
            await self.clean()

    async def clean(self) -> None:
        """Do one round over all queues."""
        began_ms = self._hub_time.now_ms()
        for queue in self._queues.all():
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
        queues = self._queues.all()
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
        """Do the next round within a second: expired rows take room that is needed."""
        self._is_due_soon = True
        self._idle.cut()

    async def make_room(self, run_job: RunJob, enough: Callable[[], bool]) -> None:
        """Delete expired rows until it is enough, the worst priorities first.

        Args:
            run_job: Runs a transaction.
            enough: Called before each of them.
        """
        for queue in sorted(self._queues.all(), key=lambda queue: -queue.priority):
            if enough() or not await self._clean_queue(queue, run_job, enough):
                return

    def _next_s(self) -> float:
        return min(self.period_s, SOON_S) if self._is_due_soon else self.period_s

    def _shortest_stored(self) -> int:
        expiries = [queue.zones.min_expires_ms for queue in self._queues.all()]
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
            prepare = partial(self._prepare, queue, todo, now_ms)
            if not await self._between(prepare, run_job):
                return False
        return True

    async def _between(self, prepare: PrepareJob, run_job: RunJob | None = None) -> bool:
        try:
            await (run_job or self._writer.between)(prepare)
        except StoreBusyError as exc:
            log.warning("store.clean_up_failed", error=str(exc))
            return False
        return True

    def _prepare(
        self, queue: Queue, todo: list[int], now_ms: int, batch: EventBatch | None
    ) -> Job | None:
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
        busy = queue.checkpointer.busy()
        step = CleanStep(queue, zones, self._shared, batch, now_ms=now_ms, busy=busy)
        step.head_only = self.head_only
        return step.run, partial(self._apply, queue, todo)

    def _apply(self, queue: Queue, todo: list[int], cleaned: StepResult) -> int:
        queue.zones.replace(cleaned.zones)
        queue.totals.expired_total += cleaned.rows
        queue.lowest_committed(cleaned.lowest, self._shared.offsets.committed)
        if cleaned.at_live_row:
            todo.clear()
        else:
            last = cleaned.zones[-1][0]
            todo[:] = [zone for zone in todo if zone > last]
        return cleaned.bytes

    def _prepare_dead_letters(self, batch: EventBatch | None) -> Job:
        now_ms = self._hub_time.now_ms()

        def evict(connection: sqlite3.Connection) -> list[Depth]:
            evicted = self._dead_letters.evict_older(connection, now_ms)
            if batch is not None:
                batch.dead_letters_left(evicted, "bounds")
            return evicted

        def apply(evicted: list[Depth]) -> int:
            self._dead_letters.committed([], evicted)
            return 0

        return evict, apply
