"""Compares this hub's table with the storage: count and sum first, then rows page by page.

Owns the reports of drift. It is the guard against what the log cannot tell: rows edited behind the
table's back, a live table that is not what its rows say. It repairs nothing itself, it has rows
looked at. What is merely on its way is not called drift.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.clock import between_slices
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.follower import differing_rows
from edgehub.sync.storage import DEFAULTS
from edgehub.sync.views import DriftReport, cut

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

    from edgehub.clock import Clock
    from edgehub.routes.live import LiveRoutes
    from edgehub.routes.tenant import RouteKey
    from edgehub.sync.follower import Follower
    from edgehub.sync.rebuild import Rebuild
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import TableStorage

JITTER: Final = 0.1
LOOKED_AT_ONCE: Final = 200
CATCH_UP_S: Final = 2.0
"""What is on its way may take so long to arrive before it is called drift."""

POLL_S: Final = 0.01

log = structlog.get_logger(__name__)


class Comparison:
    """Compares the table of this hub with that of the storage.

    Args:
        storage: The truth.
        reconciler: What this hub knows, and who repairs it.
        rebuild: Puts back what the storage has lost.
        follower: Knows up to which change this hub follows.
        live: What runs.
        clock: For waits and times.
        rng: Jitter.
        every_s: Time between two comparisons.
    """

    def __init__(
        self,
        storage: TableStorage,
        reconciler: Reconciler,
        rebuild: Rebuild,
        follower: Follower,
        live: LiveRoutes,
        *,
        clock: Clock,
        rng: random.Random,
        every_s: float,
    ) -> None:
        self.last: DriftReport | None = None
        self.compared_total = 0
        self.found_total = 0
        self.repaired_total = 0
        self._storage = storage
        self._reconciler = reconciler
        self._rebuild = rebuild
        self._restored_reported = 0
        self._follower = follower
        self._live = live
        self._clock = clock
        self._rng = rng
        self._every_s = every_s
        self._comparing = asyncio.Lock()

    async def run(self) -> None:
        """Compare and repair now and then, until cancelled."""
        while True:
            wait_s = self._every_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
            await self._clock.sleep(wait_s)
            try:
                await self.compare(repair=True)
            except StorageUnavailableError as error:
                # A table that cannot be read changes nothing; the follower reports it.
                log.debug("sync.comparison_failed", reason=error.reason)

    async def compare(self, *, repair: bool) -> DriftReport:
        """Compare now.

        Args:
            repair: Apply rows that differ, and try failed ones again.

        Raises:
            StorageUnavailableError: The storage cannot be read.
        """
        async with self._comparing:
            start = self._clock.monotonic()
            if repair:
                await self._put_back()
            suspects = await self._differing_rows()
            for keys in self._keys():
                suspects |= await self._differing_routes(keys)
            if suspects:
                suspects = await self._settled(suspects)
            report = await self._judge(suspects, start, repair=repair)
        self.compared_total += 1
        self.found_total += report.total
        self.repaired_total += report.repaired
        self.last = report
        if report.total:
            log.warning(
                "sync.drift_found",
                missing=list(report.missing),
                extra=list(report.extra),
                changed=list(report.changed),
                total=report.total,
                repaired=report.repaired,
            )
        return report

    async def _put_back(self) -> None:
        """Put back a table that is lost, so that no route is taken for a deleted one."""
        now = await self._storage.position()
        if not now.epoch and now.lacks(self._reconciler.applied):
            await self._rebuild.put_back(now)

    async def _differing_rows(self) -> set[RouteKey]:
        """Return the keys whose row here is not the one in the storage."""
        known = self._reconciler.rows
        if await self._storage.digest() == self._reconciler.digest:
            return set()
        _, differing = await differing_rows(self._storage, known)
        return differing

    def _keys(self) -> Iterator[list[RouteKey]]:
        """Return all keys that something is known of; to join the lists would hold others up."""
        yield list(self._live.ids())
        yield list(self._reconciler.rows)
        yield list(self._reconciler.file_routes)

    async def _differing_routes(self, keys: Sequence[RouteKey]) -> set[RouteKey]:
        """Return the keys whose live route differs from their row."""
        reconciler, wrong = self._reconciler, set()
        for start in range(0, len(keys), LOOKED_AT_ONCE):
            if start:
                await between_slices()
            for key in keys[start : start + LOOKED_AT_ONCE]:
                if self._live.hash_of(key) != reconciler.wanted(key):
                    wrong.add(key)
        return wrong - reconciler.failures.keys()

    async def _settled(self, suspects: Iterable[RouteKey]) -> set[RouteKey]:
        """Wait until what is on its way has arrived, and give those that differ still."""
        position = await self._storage.position()
        deadline = self._clock.monotonic() + CATCH_UP_S
        while self._clock.monotonic() < deadline:
            applied = self._reconciler.applied
            if applied.epoch == position.epoch and applied.revision >= position.revision:
                break
            await self._clock.sleep(POLL_S)
        keys = list(suspects)
        rows = dict(zip(keys, await self._storage.read(keys), strict=True))
        known = self._reconciler.rows
        differing = {
            key
            for key, row in rows.items()
            if (None if row is None else row.raw) != (known[key].raw if key in known else None)
        }
        return differing | await self._differing_routes(keys)

    async def _judge(self, suspects: set[RouteKey], start: float, *, repair: bool) -> DriftReport:
        reconciler = self._reconciler
        before = self._live.ids()
        failed = set(reconciler.failures)
        if repair:
            await reconciler.settled({*suspects, *failed})
        after = self._live.ids() if repair else dict(await self._wanted_by_storage(suspects))
        missing: list[str] = []
        extra: list[str] = []
        changed: list[str] = []
        for key in suspects - {DEFAULTS}:
            had, has = before.get(key), after.get(key)
            kind = missing if had is None else extra if has is None else changed
            kind.append(key.name)
        moved = [k for k in suspects | failed if before.get(k) != after.get(k)] if repair else []
        restored = self._rebuild.rows_total - self._restored_reported
        if repair:
            self._restored_reported += restored
        return DriftReport(
            at_ms=self._clock.wall_ms(),
            revision=self._follower.position.revision,
            compared=len(reconciler.rows) - (DEFAULTS in reconciler.rows),
            missing=cut(missing),
            extra=cut(extra),
            changed=cut(changed),
            failed=cut([key.name for key in failed]),
            total=len(missing) + len(extra) + len(changed),
            repaired=len(moved),
            restored=restored,
            duration_ms=round((self._clock.monotonic() - start) * 1000),
        )

    async def _wanted_by_storage(self, keys: Iterable[RouteKey]) -> dict[RouteKey, str]:
        ordered = list(keys)
        rows = zip(ordered, await self._storage.read(ordered), strict=True)
        return {key: row.raw for key, row in rows if row is not None}
