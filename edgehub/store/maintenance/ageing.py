"""Checks the wall clock, and ages rows by the time that the machine was off, once it is known.

Hub time never jumps, because rows of this run would age with it; the past is moved back instead:
older boots, zones and rows get earlier times, one zone of offsets after another between groups.
Owns the key `ageing` of table `meta`, the progress of that, so that a crash neither loses nor
doubles it. Invariant: a row ages once; a move to another queue keeps its offset, and with it its
zone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import orjson
import structlog
from msgspec import Struct

from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.transaction import lowest_row, write_boot, write_zones
from edgehub.store.zones import ZONE_OFFSETS, ZoneValues

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from edgehub.journal.row_events import Note
    from edgehub.store.boots import PowerOff
    from edgehub.store.committer import Committer
    from edgehub.store.encoding import Params
    from edgehub.store.event_log import EventBatch
    from edgehub.store.queue import Queue
    from edgehub.store.queues import Queues
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Job, Writer

log = structlog.get_logger(__name__)

CHECK_S: Final = 10.0
HEARTBEAT_S: Final = 600.0
"""An idle hub writes its hub time so often: a power cut loses at most that."""


class Ageing(Struct, frozen=True):
    """Progress of the ageing.

    Attributes:
        off_ms: Milliseconds by which rows age.
        end_zone: Rows from this zone on do not age.
        zone: Rows below this zone have aged.
    """

    off_ms: int
    end_zone: int
    zone: int

    def store(self, connection: sqlite3.Connection) -> None:
        """Store it, or remove it once it is done, in the running transaction."""
        if self.zone >= self.end_zone:
            connection.execute("DELETE FROM meta WHERE key = 'ageing'")
            return
        value = orjson.dumps([self.off_ms, self.end_zone, self.zone]).decode()
        connection.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES ('ageing', ?)", (value,)
        )


def stored_ageing(connection: sqlite3.Connection) -> Ageing | None:
    """Read the ageing that an earlier run has not finished, None = there is none."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'ageing'").fetchone()
    return None if row is None else Ageing(*orjson.loads(row[0]))


class Timekeeper:
    """The background task."""

    def __init__(
        self,
        shared: SharedState,
        queues: Queues,
        writer: Writer,
        committer: Committer,
        pending: Ageing | None,
    ) -> None:
        self._boot = shared.boot
        self._queues = queues
        self._writer = writer
        self._committer = committer
        self._offsets = shared.offsets
        self._clock = shared.clock
        self.pending = pending
        """Ageing that is not done, None = there is none."""

    async def run(self) -> None:
        """Check the clock periodically until cancelled."""
        beat_s, commits = self._clock.monotonic(), self._committer.commits_total
        while True:
            await self.check()
            await self._clock.sleep(CHECK_S)
            if self._clock.monotonic() - beat_s < HEARTBEAT_S or self._writer.failure is not None:
                continue
            if commits == self._committer.commits_total:
                await self._writer.flush()
            beat_s, commits = self._clock.monotonic(), self._committer.commits_total

    async def check(self) -> None:
        """Check once: finish a pending ageing, then judge the clock, and age rows."""
        try:
            await self._age()
            before = self._boot.trusted
            power_off = self._boot.check_clock()
            if power_off is not None:
                await self._writer.between(partial(self._prepare_begin, power_off))
            elif self._boot.trusted and not before and self._writer.events is not None:
                self._writer.events.note(["trusted", self._boot.relations()])
                self._writer.commit_events()
            if self._boot.trusted and not before:
                figures = self._boot.statistics(ageing=self.pending is not None)
                log.info(
                    "store.clock_trusted",
                    off_s=figures.off_s,
                    correction_s=figures.correction_s,
                )
            await self._age()
        except StoreBusyError as exc:
            log.warning("store.ageing_failed", error=str(exc))

    async def _age(self) -> None:
        while self.pending is not None:
            await self._writer.between(self._prepare_step)

    def _prepare_begin(self, power_off: PowerOff, batch: EventBatch | None) -> Job:
        if batch is not None:
            notes: list[Note] = [
                ["aged", self._boot.first_hub_ms, power_off.off_ms],
                ["trusted", self._boot.relations(power_off)],
            ]
            batch.clock_trusted(power_off.ahead_ms, notes)
        queues = self._queues.all()
        first = min([queue.zones.span()[0] for queue in queues if len(queue.zones)], default=0)
        end = power_off.first_offset // ZONE_OFFSETS
        ageing = Ageing(power_off.off_ms, end, min(first, end))
        row = self._boot.record(self._offsets.high_water(), trusted_ahead_ms=power_off.ahead_ms)

        def begun(_result: None) -> int:
            self._boot.counted(power_off)
            self._advanced(ageing)
            return 0

        return partial(_begin, power_off, ageing, row), begun

    def _prepare_step(self, _batch: EventBatch | None) -> Job:
        ageing = self.pending
        assert ageing is not None
        # The lowest zone that has rows; those without cost nothing.
        zones = [
            values[0]
            for queue in self._queues.all()
            if (values := queue.zones.first_from(ageing.zone)) is not None
        ]
        zone = min([ageing.end_zone, *zones])
        queues: list[tuple[Queue, ZoneValues]] = []
        if zone < ageing.end_zone:
            for queue in self._queues.all():
                values = queue.zones.get(zone)
                if values is not None:
                    queues.append((queue, _age_zone(values, ageing.off_ms)))
        after = Ageing(ageing.off_ms, ageing.end_zone, min(zone + 1, ageing.end_zone))
        work = [(queue.number, values) for queue, values in queues]
        return partial(_step, after, work), partial(self._applied, after, queues)

    def _applied(
        self,
        after: Ageing,
        queues: Sequence[tuple[Queue, ZoneValues]],
        lowest: Sequence[tuple[int, int] | None],
    ) -> int:
        for (queue, values), row in zip(queues, lowest, strict=True):
            queue.zones.replace([values])
            queue.rows_aged(values[0], after.off_ms, row)
        self._advanced(after)
        return sum([values[5] for _, values in queues])

    def _advanced(self, ageing: Ageing) -> None:
        self.pending = ageing if ageing.zone < ageing.end_zone else None
        if self.pending is None:
            log.info("store.rows_aged", off_s=ageing.off_ms / 1000)


def _age_zone(values: ZoneValues, off_ms: int) -> ZoneValues:
    zone, min_expires_ms, max_expires_ms, fresh_until_ms, rows, size, stale_from_ms = values
    return (
        zone,
        _aged(min_expires_ms, off_ms),
        _aged(max_expires_ms, off_ms),
        _aged(fresh_until_ms, off_ms),
        rows,
        size,
        _aged(stale_from_ms, off_ms),
    )


def _aged(time_ms: int, off_ms: int) -> int:
    return time_ms if time_ms >= NEVER_MS else time_ms - off_ms


def _begin(
    power_off: PowerOff,
    ageing: Ageing,
    boot_row: Params,
    connection: sqlite3.Connection,
) -> None:
    write_boot(connection, boot_row)
    connection.execute(
        "UPDATE boot SET first_hub_ms = first_hub_ms - ?1, hub_ms = hub_ms - ?1 WHERE seq <= ?2",
        (power_off.off_ms, power_off.last_seq),
    )
    ageing.store(connection)


def _step(
    after: Ageing, work: Sequence[tuple[int, ZoneValues]], connection: sqlite3.Connection
) -> list[tuple[int, int] | None]:
    lowest: list[tuple[int, int] | None] = []
    for number, values in work:
        first = values[0] * ZONE_OFFSETS
        connection.execute(
            f"UPDATE q_{number} SET enqueued_ms = enqueued_ms - ?1, expires_ms = expires_ms - ?1,"  # noqa: S608 - our number
            " fresh_until_ms = fresh_until_ms - ?1 WHERE offset BETWEEN ?2 AND ?3",
            (after.off_ms, first, first + ZONE_OFFSETS - 1),
        )
        write_zones(connection, number, [values])
        lowest.append(lowest_row(connection, number))
    after.store(connection)
    return lowest
