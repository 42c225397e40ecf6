"""Puts back a table that its storage has lost, from what this hub holds of it.

Owns the record of when that happened. A storage is the truth as long as it has one: a server that
comes back without its data does not mean that routes were deleted, and alarms must not stop.
Invariants: one hub at a time puts back, and only what it has seen of that table; whatever order
hubs come in, the latest version that one of them holds is there in the end; what operators have
changed since stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from edgehub.clock import between_slices
from edgehub.sync.storage import Position, StoredRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgehub.clock import Clock
    from edgehub.routes.tenant import RouteKey
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import Row, TableStorage

SHOWN_S: Final = 86_400.0
"""The status shows a rebuild for this time."""

NOTICED_S: Final = 5.0
"""A hub that has put a table back sees that change itself."""

GATHERED_AT_ONCE: Final = 500

log = structlog.get_logger(__name__)


class Rebuilt(Struct, frozen=True, kw_only=True):
    """A table that was put back.

    Attributes:
        at: Monotonic seconds when this hub saw it.
        rows: Rows that this hub has put back, 0 = another one did.
        left_out: Rows that could not be put back, since they are unreadable.
    """

    at: float
    rows: int
    left_out: int


class Rebuild:
    """Puts a lost table back.

    Args:
        storage: Where the table belongs.
        reconciler: What this hub holds.
        clock: For times.
    """

    def __init__(self, storage: TableStorage, reconciler: Reconciler, clock: Clock) -> None:
        self.restored_total = 0
        self.rows_total = 0
        self._storage = storage
        self._reconciler = reconciler
        self._clock = clock
        self._last: Rebuilt | None = None
        self._begun_at: float | None = None

    async def put_back(self, now: Position) -> None:
        """Put back what the table lacks, unless it has changed; the position shows that.

        Args:
            now: Where the table stands.

        Raises:
            StorageUnavailableError: The storage does not answer, or takes no writes.
        """
        held, known = self._reconciler.applied, dict(self._reconciler.rows)
        present: dict[RouteKey, Row] = {}
        asked: set[RouteKey] = set()
        if now.epoch:
            found = await self._storage.asked_since(now)
            if found is None:
                # It is not known any more what is missing and what was deleted.
                log.warning("sync.table_replaced", epoch=now.epoch, held_revision=held.revision)
                self._reconciler.let_go()
                return
            asked = found
            async for page in self._storage.scan():
                present.update((row.key, row) for row in page)
        rows, left_out = await self._missing(known, present, asked)
        deleted = sorted(present.keys() - known.keys() - asked)
        await self.write(rows, deleted, at=now, version=held, left_out=left_out)

    async def write(
        self,
        rows: list[StoredRow],
        deleted: Iterable[RouteKey] = (),
        *,
        at: Position,
        version: Position,
        left_out: int = 0,
    ) -> None:
        """Put rows with contents back; see `TableStorage.restore`."""
        if not await self._storage.restore(rows, list(deleted), at=at, version=version):
            return
        self.restored_total += 1
        self.rows_total += len(rows)
        self.begins()
        self._last = Rebuilt(at=self._clock.monotonic(), rows=len(rows), left_out=left_out)
        log.warning(
            "sync.table_restored",
            epoch=version.epoch,
            revision=version.revision,
            rows=len(rows),
            left_out=left_out,
        )

    def noticed(self, before: Position, now: Position) -> None:
        """Record that the table that this hub reads is another one than before."""
        begun = now.begun
        if begun is None or not begun.epoch or not before.epoch or now.epoch <= before.epoch:
            return
        if not self.has_begun(NOTICED_S):
            self._last = Rebuilt(at=self._clock.monotonic(), rows=0, left_out=0)
            log.warning("sync.table_found_restored", epoch=now.epoch, revision=begun.revision)
        self.begins()

    def begins(self) -> None:
        """Record that the table was created again: reports of hubs may be lost as well."""
        self._begun_at = self._clock.monotonic()

    def has_begun(self, seconds: float) -> bool:
        """Return whether that was less than so long ago."""
        return self._begun_at is not None and self._clock.monotonic() - self._begun_at < seconds

    @property
    def warning(self) -> str:
        """Return that the table was put back; empty = it was not, or long ago."""
        last = self._last
        if last is None or (ago_s := self._clock.monotonic() - last.at) > SHOWN_S:
            return ""
        who = f"this hub put back {last.rows} rows" if last.rows else "another hub put it back"
        lost = f", {last.left_out} could not be read" if last.left_out else ""
        return (
            f"Redis had lost the routing table {round(ago_s / 60)} minutes ago, {who}{lost}; "
            "let it keep its data (appendonly yes, maxmemory-policy noeviction)"
        )

    async def _missing(
        self, known: Mapping[RouteKey, Row], present: Mapping[RouteKey, Row], asked: set[RouteKey]
    ) -> tuple[list[StoredRow], int]:
        """Return the rows to put back, and how many cannot be."""
        rows: list[StoredRow] = []
        left_out = 0
        for count, (key, row) in enumerate(known.items(), 1):
            if count % GATHERED_AT_ONCE == 0:
                await between_slices()
            if key in asked or _same(row, present.get(key)):
                continue
            text = self._reconciler.text(row) if isinstance(row, StoredRow) else None
            if text is None or not isinstance(row, StoredRow):
                left_out += 1
            else:
                rows.append(replace(row, text=text))
        return rows, left_out


def _same(row: Row, other: Row | None) -> bool:
    if not isinstance(row, StoredRow) or not isinstance(other, StoredRow):
        return False
    return (row.hash, row.enabled, row.origin) == (other.hash, other.enabled, other.origin)
