"""Follows the table of the storage: its log, and its position at least every `check_s` seconds.

Owns the position up to which this hub knows of changes. Invariant: a change that was missed,
for whatever reason, is noticed by the number of its revision within `check_s` of the storage being
there; a table that was created again, or is another server's, is read whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from edgehub.clock import between_slices
from edgehub.errors import first_of
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.storage import Position, Row

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.routes.tenant import RouteKey
    from edgehub.sync.rebuild import Rebuild
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import LogEntry, TableStorage, WriteResult

RETRY_S: Final = (0.1, 2.0)
"""First and longest wait before an unreachable storage is tried again."""

SECOND_LOOK_S: Final = 1.0
"""A table that was lost, or is another one and empty, is believed to be so after so long: it may be
about to be brought back."""

PEEK_S: Final = 0.001
SESSIONS_MAX: Final = 10_000
SOUGHT_AT_ONCE: Final = 200

log = structlog.get_logger(__name__)


class Follower:
    """Follows the table of the storage.

    Args:
        storage: What is followed.
        reconciler: Notified of the rows that changed.
        rebuild: Puts back what the storage has lost.
        instance: Names this hub in the log.
        clock: For waits.
        rng: Jitter of the waits.
        check_s: Longest time between two checks of the position.
    """

    def __init__(
        self,
        storage: TableStorage,
        reconciler: Reconciler,
        rebuild: Rebuild,
        *,
        instance: str,
        clock: Clock,
        rng: random.Random,
        check_s: float,
    ) -> None:
        self.position = Position()
        self.away_since: float | None = None
        """Monotonic seconds since when the storage does not answer, None = it does."""
        self.away_reason = ""
        self.notices_total = 0
        self.malformed_total = 0
        self.gaps_total = 0
        self.reloads_total = 0
        self.losses_total = 0
        self._storage = storage
        self._reconciler = reconciler
        self._rebuild = rebuild
        self._instance = instance
        self._clock = clock
        self._rng = rng
        self._check_s = check_s
        self._cursor = Position()
        self._own: dict[str, None] = {}
        self._reloaded = asyncio.Event()

    def wrote(self, session: str, result: WriteResult) -> None:
        """Record that the changes of a write of this hub are being applied already."""
        self._own[session] = None
        if len(self._own) > SESSIONS_MAX:
            del self._own[next(iter(self._own))]
        before = result.revision - sum(each.changed for each in result.stored)
        own = self.position
        if before == own.revision and own.epoch in {0, result.epoch}:
            # There was no other write in between, so the log has nothing new.
            self.position = replace(own, epoch=result.epoch, revision=result.revision)
            self._reconciler.seen(self.position)

    async def caught_up(self, epoch: int) -> None:
        """Wait until this hub follows the table of an epoch, or a later one."""
        while self.position.epoch < epoch:
            self._reloaded.clear()
            await self._reloaded.wait()

    async def load(self) -> None:
        """Read the whole table.

        Raises:
            StorageUnavailableError: It cannot be read.
        """
        await self._reload(await self._storage.position())

    async def run(self) -> None:
        """Follow until cancelled."""
        wait_s, longest_s = RETRY_S
        while True:
            began = self._clock.monotonic()
            try:
                await self._step()
            except StorageUnavailableError as error:
                if self._clock.monotonic() - began > wait_s:
                    # It was reachable in between: a bad network is not an unreachable server.
                    wait_s = RETRY_S[0]
                if self.away_since is None:
                    self.away_since = self._clock.monotonic()
                    self.losses_total += 1
                    log.warning("sync.storage_lost", reason=error.reason)
                self.away_reason = error.reason
                await self._clock.sleep(wait_s * self._rng.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, longest_s)
            else:
                wait_s = RETRY_S[0]

    async def _step(self) -> None:
        """Compare positions, then wait for the log."""
        before = self.position  # a write of this hub moves it while the storage answers
        now = await self._storage.position()
        if self.away_since is not None:
            away_s = self._clock.monotonic() - self.away_since
            log.info("sync.storage_found", away_s=round(away_s, 3))
            self.away_since, self.away_reason = None, ""
        if not self.reloads_total or not now.continues(before):
            await self._reload(now)
        elif now.revision > self.position.revision:
            self._take(await self._peek())
            if self.position.revision < now.revision:
                # The log does not have what the table has: it was cut, or a notice was lost.
                self.gaps_total += 1
                await self._reload(now)
        if self._take(await self._storage.follow(self._cursor, self._check_s)):
            await self._reload(await self._storage.position())

    async def _peek(self) -> Sequence[LogEntry]:
        try:
            return await self._storage.follow(self._cursor, PEEK_S)
        except StorageUnavailableError:
            # The position was readable, so the rows are as well.
            return ()

    def _take(self, entries: Sequence[LogEntry]) -> bool:
        """Process entries of the log; True = some are missing."""
        self._note(entries, self.position.epoch)
        return self._advance(entries)

    def _note(self, entries: Sequence[LogEntry], epoch: int) -> None:
        """Schedule the rows that entries name; those of another table than `epoch` do not count."""
        keys: list[RouteKey] = []
        for entry in entries:
            self.notices_total += 1
            if entry.epoch:
                self._cursor = Position(epoch=entry.epoch, revision=entry.revision)
            if entry.key is None:
                self.malformed_total += 1
                log.warning("sync.notice_malformed", epoch=entry.epoch, revision=entry.revision)
            elif entry.instance == self._instance and entry.session in self._own:
                del self._own[entry.session]
            elif entry.epoch in {0, epoch}:
                # Rows of another table count only once this one is known to be lost.
                keys.append(entry.key)
        self._reconciler.look(keys)

    def _advance(self, entries: Sequence[LogEntry]) -> bool:
        """Move the position along entries; True = some are missing."""
        gap = False
        position = self.position
        for entry in entries:
            if entry.epoch == position.epoch and entry.revision == position.revision + 1:
                position = replace(position, revision=entry.revision)
                gap = gap or entry.key is None
            elif (entry.epoch, entry.revision) > (position.epoch, position.revision):
                gap = True
        if gap and self.position.epoch:
            self.gaps_total += 1
        self.position = position
        self._reconciler.seen(position)
        return gap

    async def _reload(self, now: Position) -> None:
        """Read all rows, and schedule those that have changed.

        That takes a while, during which notices are applied as they come: the log is followed
        from the position on at which the reading began.
        """
        now = await self._whole(now)
        if now.epoch:
            self._cursor = now
        notices: list[LogEntry] = []
        found, changed = await self._differing(now.epoch, notices)
        self.reloads_total += 1
        if self.position.epoch:
            log.info(
                "sync.table_read",
                epoch=now.epoch,
                revision=now.revision,
                rows=found,
                changed=len(changed),
            )
        self._rebuild.noticed(self.position, now)
        self._reconciler.look(changed)
        self.position = now
        self._advance(notices)
        self._reloaded.set()
        await asyncio.sleep(0)

    async def _differing(self, epoch: int, notices: list[LogEntry]) -> tuple[int, set[RouteKey]]:
        """Return what `differing_rows` finds; apply and collect notices at the same time."""
        try:
            async with asyncio.TaskGroup() as tasks:
                collecting = tasks.create_task(self._collect(epoch, notices), name="table[log]")
                found = await differing_rows(self._storage, self._reconciler.rows)
                collecting.cancel()
        except ExceptionGroup as errors:
            raise first_of(errors) from errors
        return found

    async def _collect(self, epoch: int, notices: list[LogEntry]) -> None:
        """Apply notices until cancelled, and collect them."""
        # Without the log they are found by the position, once the table is read.
        with contextlib.suppress(StorageUnavailableError):
            while True:
                entries = await self._storage.follow(self._cursor, self._check_s)
                notices += entries
                self._note(entries, epoch)
                await self._reconciler.step()

    async def _whole(self, now: Position) -> Position:
        """Check that the table has what it had, and return where it stands then."""
        reconciler = self._reconciler
        if now.epoch and not self.reloads_total:
            # A copy from the disk may be old; it counts only where there is no table at all.
            reconciler.let_go()
        lost = now.lacks(reconciler.applied)
        if lost or (not now.rows and now.epoch != self.position.epoch and reconciler.rows):
            event = "sync.table_lost" if lost else "sync.table_empty"
            log.warning(event, epoch=now.epoch, known=len(reconciler.rows))
            await self._clock.sleep(SECOND_LOOK_S)
            now = await self._storage.position()
        while now.lacks(reconciler.applied):
            await self._rebuild.put_back(now)
            now = await self._storage.position()
        return now


async def differing_rows(
    storage: TableStorage, known: Mapping[RouteKey, Row]
) -> tuple[int, set[RouteKey]]:
    """Read all rows; give their number, and the keys whose row is not the known one.

    Args:
        storage: Where they are read.
        known: What they should be.

    Raises:
        StorageUnavailableError: They cannot be read.
    """
    before = list(known)
    # As text: thousands of tuples would be work for the garbage collector in the middle of it.
    found: set[str] = set()
    differing: set[RouteKey] = set()
    async for page in storage.scan():
        for row in page:
            found.add(str(row.key))
            present = known.get(row.key)
            if present is None or present.raw != row.raw:
                differing.add(row.key)
        await between_slices()
    for start in range(0, len(before), SOUGHT_AT_ONCE):
        sought = before[start : start + SOUGHT_AT_ONCE]
        differing.update(key for key in sought if str(key) not in found)
        await between_slices()
    return len(found), differing
