"""The table in memory, behind the contract of the product's storages, for hubs of one process.

Owns the rows, their log and the reports of hubs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from edgehub.sync.faults import TableLostError
from edgehub.sync.plan import check_table, plan_write
from edgehub.sync.storage import (
    DEFAULTS,
    IMPORT,
    RESTORE,
    Begun,
    Change,
    Digest,
    LogEntry,
    Position,
    Row,
    StoredRow,
    WriteResult,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from edgehub.clock import Clock
    from edgehub.routes.tenant import RouteKey, Tenant
    from edgehub.sync.storage import Report

PAGE: Final = 100
LOG_MAX: Final = 10_000


class MemoryTable:
    """The table that several `MemoryStorage` share.

    Args:
        clock: For times of rows and ages of reports.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows: dict[RouteKey, Row] = {}
        self.texts: dict[str, str] = {}
        self.uses: Counter[str] = Counter()
        self.log: list[LogEntry] = []
        self.reports: dict[str, tuple[Report, float, float]] = {}
        self.epoch = 0
        self.revision = 0
        self.begun: Begun | None = None
        self._woken: list[asyncio.Future[None]] = []

    def count(self, tenant: Tenant) -> int:
        """Count the rows of a tenant."""
        return sum(1 for key in self.rows if key.tenant == tenant)

    def wake(self) -> None:
        """Wake the waiters for the log."""
        woken, self._woken = self._woken, []
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait for the log, at most so long."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._woken.append(waiter)
        timer = self.clock.call_later(
            seconds, lambda: None if waiter.done() else waiter.set_result(None)
        )
        try:
            await waiter
        finally:
            timer.cancel()


class MemoryStorage:
    """The access of one hub to a table in memory.

    Args:
        table: What is shared.
        instance: Names this hub in the log.
    """

    kind: Final = "memory"

    def __init__(self, table: MemoryTable, *, instance: str) -> None:
        self._table = table
        self._instance = instance
        self._epoch_seen = 0

    async def position(self) -> Position:
        """Return the position of the table."""
        table = self._table
        self.knows(table.epoch)
        return Position(
            epoch=table.epoch, revision=table.revision, rows=len(table.rows), begun=table.begun
        )

    async def read(self, keys: Sequence[RouteKey]) -> list[Row | None]:
        """Read rows with their contents, each as it is now; None = there is none."""
        return [self._whole(self._table.rows.get(key)) for key in keys]

    async def scan(self) -> AsyncIterator[list[Row]]:
        """Read all rows without contents, page by page; a row may come twice."""
        keys = list(self._table.rows)
        for start in range(0, len(keys), PAGE):
            page = (self._table.rows.get(key) for key in keys[start : start + PAGE])
            yield [row for row in page if row is not None]

    async def digest(self) -> Digest:
        """Return the sum over all rows, computed where they are."""
        return Digest.of((str(row.key), row.raw) for row in self._table.rows.values())

    async def write(
        self, changes: Sequence[Change], *, session: str, expected: int | None = None
    ) -> WriteResult:
        """Apply all changes or none."""
        table = self._table
        if not table.epoch and self._epoch_seen:
            raise TableLostError
        check_table(expected, table.revision)
        present = {c.key: table.rows[c.key] for c in changes if c.key in table.rows}
        counts = {c.key.tenant: table.count(c.key.tenant) for c in changes}
        now_ms = table.clock.wall_ms()
        start = table.revision
        table.revision, stored = plan_write(changes, present, counts, revision=start, now_ms=now_ms)
        if table.revision != start and not table.epoch:
            table.epoch = max(now_ms, 1)
            table.begun = Begun(epoch=0, revision=0, first=1, root=table.epoch)
        self.knows(table.epoch)
        revision = start
        for change, outcome in zip(changes, stored, strict=True):
            if not outcome.changed:
                continue
            revision += 1
            self._put(change, outcome.row)
            table.log.append(
                LogEntry(
                    epoch=table.epoch,
                    revision=revision,
                    key=change.key,
                    instance=self._instance,
                    session=session,
                )
            )
        if revision != start:
            if len(table.log) > LOG_MAX:
                del table.log[: LOG_MAX // 2]
            table.wake()
        return WriteResult(epoch=table.epoch, revision=revision, stored=tuple(stored))

    async def restore(
        self,
        rows: Sequence[StoredRow],
        deleted: Sequence[RouteKey],
        *,
        at: Position,
        version: Position,
    ) -> bool:
        """Put back what the table has lost, in one step and above all revisions that there were."""
        table = self._table
        if (table.epoch, table.revision) != (at.epoch, at.revision):
            return False
        now_ms = table.clock.wall_ms()
        revision = max(table.revision, version.revision) + 1
        for key in deleted:
            self._put(Change(key=key, delete=True), None)
        for row in rows:
            assert row.text is not None
            revision += 1
            change = Change(key=row.key, hash=row.hash, text=row.text)
            self._put(change, replace(row, revision=revision, modified_ms=now_ms))
        table.revision = revision + 1
        table.epoch = table.epoch or max(now_ms, version.epoch + 1)
        first = table.revision if table.begun is None else table.begun.first
        table.begun = Begun(
            epoch=version.epoch, revision=version.revision, first=first, root=version.root
        )
        table.log.append(
            LogEntry(
                epoch=table.epoch,
                revision=table.revision,
                key=DEFAULTS,
                instance=self._instance,
                session=RESTORE,
            )
        )
        table.wake()
        return True

    async def asked_since(self, begun: Position) -> set[RouteKey] | None:
        """Return the keys that operators changed since the table was created; None = unknown."""
        assert begun.begun is not None
        entries = [entry for entry in self._table.log if entry.epoch == begun.epoch]
        if not entries or entries[0].revision != begun.begun.first:
            return None
        ours = {IMPORT, RESTORE}
        return {e.key for e in entries if e.key is not None and e.session not in ours}

    def knows(self, epoch: int) -> None:
        """Record a table that this hub knows, so that no write creates another one unnoticed."""
        self._epoch_seen = max(self._epoch_seen, epoch)

    async def follow(self, after: Position, wait_s: float) -> list[LogEntry]:
        """Wait for entries of the log behind a position, at most `wait_s`."""
        found = self._behind(after)
        if not found:
            await self._table.wait(wait_s)
            found = self._behind(after)
        return found

    async def report(self, report: Report, *, expires_s: float) -> str:
        """Store this hub's report in place of its last one; it expires."""
        now = self._table.clock.monotonic()
        before = self._table.reports.get(report.hub_id)
        self._table.reports[report.hub_id] = (report, now, now + expires_s)
        return "" if before is None or before[2] <= now else before[0].instance

    async def reports(self) -> list[Report]:
        """Read the reports that have not expired."""
        now = self._table.clock.monotonic()
        return [
            replace(report, age_ms=round((now - at) * 1000))
            for report, at, until in self._table.reports.values()
            if until > now
        ]

    async def leave(self, hub_id: str) -> None:
        """Delete this hub's report: it stops."""
        self._table.reports.pop(hub_id, None)

    async def close(self) -> None:
        """Close connections."""

    def _behind(self, after: Position) -> list[LogEntry]:
        start = (after.epoch, after.revision)
        return [entry for entry in self._table.log if (entry.epoch, entry.revision) > start]

    def _whole(self, row: Row | None) -> Row | None:
        if isinstance(row, StoredRow):
            return replace(row, text=self._table.texts.get(row.hash))
        return row

    def _put(self, change: Change, row: StoredRow | None) -> None:
        table = self._table
        if change.hash:
            table.texts[change.hash] = change.text
        before = table.rows.pop(change.key, None)
        if row is not None:
            table.rows[change.key] = replace(row, text=None)
            table.uses[row.hash] += 1
        if isinstance(before, StoredRow):
            table.uses[before.hash] -= 1
            if not table.uses[before.hash]:
                del table.uses[before.hash], table.texts[before.hash]
