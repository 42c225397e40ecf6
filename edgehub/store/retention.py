"""Clean-up: rows whose time to live has ended leave the file in the background.

Owns the rhythm and the choice of zones. A round works in steps between groups, each at most 50 ms
or 10 000 rows, so that nobody's commit waits longer. Invariant: rows in flight, and rows whose
result waits for its commit, are never touched; every row deleted here is counted as expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
import structlog

from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.pause import Pause
from edgehub.store.transaction import write_checkpoint, write_zones
from edgehub.store.zones import ZONE_OFFSETS, ZoneValues

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from edgehub.clock import Clock, HubTime
    from edgehub.store.dead_letters import DeadLetters
    from edgehub.store.offsets import Offsets
    from edgehub.store.queue import Queue
    from edgehub.store.registry import Registry
    from edgehub.store.writer import Job, Writer

log = structlog.get_logger(__name__)

PERIOD_S_MIN: Final = 5.0
PERIOD_S_MAX: Final = 3600.0
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
    """

    zones: list[ZoneValues]
    rows: int
    bytes: int
    lowest: tuple[int, int] | None
    at_live_row: bool


class CleanStep:
    """One step on some zones of one queue; runs as a transaction of its own."""

    def __init__(
        self,
        number: int,
        zones: list[ZoneValues],
        *,
        now_ms: int,
        busy: list[int],
        empty_checkpoint: int,
        head_only: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._number = number
        self._zones = zones
        self._now_ms = now_ms
        self._busy = busy
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
        return Cleaned(zones=done, rows=rows, bytes=size, lowest=lowest, at_live_row=at_live_row)

    def _clean(self, connection: sqlite3.Connection, values: ZoneValues) -> tuple[ZoneValues, bool]:
        zone, _, max_expires_ms, fresh_until_ms, rows, size = values
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
        )
        return after, at_live_row


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
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._dead_letters = dead_letters
        self._offsets = offsets
        self._clock = clock
        self._hub_time = hub_time
        self.head_only = head_only
        """Stop at the first live row of a queue; may change between rounds."""
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
        for queue in self._registry.queues():
            if not await self._clean_queue(queue):
                return
        if self._dead_letters.rows:
            await self._between(self._prepare_dead_letters)

    def ttl_seen(self, ttl_ms: int) -> None:
        """Note a time to live shorter than all before; the period follows it at once."""
        self.shortest_ttl_ms = ttl_ms
        self._idle.cut()

    @property
    def period_s(self) -> float:
        """Time between two rounds."""
        share_s = self.shortest_ttl_ms / 1000 * TTL_SHARE
        return min(max(share_s, PERIOD_S_MIN), PERIOD_S_MAX)

    async def _pause(self) -> None:
        until_s = self._clock.monotonic() + self.period_s
        while (left_s := until_s - self._clock.monotonic()) > 0:
            await self._idle.wait(self._clock, left_s)
            until_s = min(until_s, self._clock.monotonic() + self.period_s)

    def _shortest_stored(self) -> int:
        expiries = [queue.zones.min_expires_ms for queue in self._registry.queues()]
        return max(0, min(expiries, default=NEVER_MS) - self._hub_time.now_ms())

    async def _clean_queue(self, queue: Queue) -> bool:
        now_ms = self._hub_time.now_ms()
        todo = queue.zones.expired(now_ms, head_only=self.head_only)
        while todo:
            if not await self._between(lambda: self._prepare(queue, todo, now_ms)):
                return False
        return True

    async def _between(self, prepare: Callable[[], Job | None]) -> bool:
        try:
            await self._writer.between(prepare)
        except StoreBusyError as exc:
            log.warning("store.clean_up_failed", error=str(exc))
            return False
        return True

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
            queue.number,
            zones,
            now_ms=now_ms,
            busy=queue.checkpointer.busy(),
            empty_checkpoint=self._offsets.committed,
            head_only=self.head_only,
            monotonic=self._clock.monotonic,
        )
        return step.run, lambda cleaned: self._apply(queue, todo, cleaned)

    def _apply(self, queue: Queue, todo: list[int], cleaned: Cleaned) -> None:
        queue.zones.replace(cleaned.zones)
        queue.rows_expired(cleaned.rows)
        queue.lowest_committed(cleaned.lowest, self._offsets.committed)
        self._writer.wal.written(cleaned.bytes)
        if cleaned.at_live_row:
            todo.clear()
        else:
            last = cleaned.zones[-1][0]
            todo[:] = [zone for zone in todo if zone > last]

    def _prepare_dead_letters(self) -> Job | None:
        now_ms = self._hub_time.now_ms()
        return (
            lambda connection: self._dead_letters.evict_older(connection, now_ms),
            lambda evicted: self._dead_letters.committed([], *evicted),
        )
