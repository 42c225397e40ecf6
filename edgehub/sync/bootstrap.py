"""Loads the first table of a hub, or a substitute until the storage answers.

Owns the reason why the table is not the storage's yet. Invariants: a hub that cannot read the table
routes by its last copy of it, else by its manifest; a table that never was gets the manifest only
if this hub has no copy of an earlier one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.sync.faults import QuotaError, StorageUnavailableError
from edgehub.sync.manifest_import import contents_of
from edgehub.sync.storage import StoredRow

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.sync.disk_copy import DiskCopy
    from edgehub.sync.follower import Follower
    from edgehub.sync.manifest_import import SharedManifest
    from edgehub.sync.rebuild import Rebuild
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import Position, TableStorage

RETRY_S: Final = 1.0
"""Wait before an import is tried again."""

log = structlog.get_logger(__name__)


class Bootstrap:
    """The first table of a hub: from the storage, or a substitute until that answers.

    Args:
        storage: Of the table.
        reconciler: Runs the substitute.
        follower: Reads the table.
        rebuild: Puts a copy back.
        shared: The manifest of a hub with a shared table; None = the table is its own.
        clock: For waits.
    """

    def __init__(
        self,
        storage: TableStorage,
        reconciler: Reconciler,
        follower: Follower,
        rebuild: Rebuild,
        shared: SharedManifest | None,
        clock: Clock,
    ) -> None:
        self.reason = "it has not been read yet"
        """Why the table is not the storage's; empty = it is."""
        self.copy: DiskCopy | None = None
        self._storage = storage
        self._reconciler = reconciler
        self._follower = follower
        self._rebuild = rebuild
        self._shared = shared
        self._clock = clock
        self._current = asyncio.Event()

    async def open(self) -> None:
        """Load the table, or the substitute for a shared one.

        Raises:
            StorageUnavailableError: The hub's own table cannot be read.
        """
        try:
            if self._shared is not None:
                await self._begin(self._shared)
            await self._follower.load()
            await self._reconciler.step_or_raise()
            self.reason = ""
        except StorageUnavailableError as error:
            if self._shared is None:
                raise
            await self._open_without(error, self._shared)

    def applied(self) -> None:
        """Record that rows were applied."""
        if self.reason and self._follower.reloads_total:
            self._current.set()

    async def run(self) -> None:
        """Remove the substitute once the table is loaded."""
        if not self.reason:
            return
        await self._current.wait()
        if self._shared is not None:
            await self._import_late(self._shared)
            await self._reconciler.take_file(self._reconciler.head, {})
        log.info("sync.table_current", was=self.reason)
        self.reason = ""

    async def _begin(self, shared: SharedManifest) -> None:
        """Put something into a table that never was."""
        position = await self._storage.position()
        if position.epoch or position.rows:
            return
        copy = None if self.copy is None else await self.copy.load()
        if copy is None:
            self._rebuild.begins()
            await shared.import_once()
            return
        # The server has lost its data while this hub was down.
        version, rows = copy
        whole = [row for row in rows.values() if isinstance(row, StoredRow) and row.text]
        left_out = len(rows) - len(whole)
        await self._rebuild.write(whole, at=position, version=version, left_out=left_out)

    async def _import_late(self, shared: SharedManifest) -> None:
        """Put the manifest into a table that never was, and wait until its routes run."""
        while True:
            try:
                await self._begin(shared)
            except (StorageUnavailableError, QuotaError) as error:
                log.debug("sync.import_failed", reason=str(error))
                await self._clock.sleep(RETRY_S)
            else:
                await self._reconciler.settled(shared.own_keys)
                return

    async def _open_without(self, error: StorageUnavailableError, shared: SharedManifest) -> None:
        """Run what was last seen of the table, or the manifest where nothing was."""
        copy = None if self.copy is None else await self.copy.load()
        if copy is None:
            # A hub that routes nothing would lose what it is sent.
            self.reason = (
                f"the storage is unreachable ({error.reason}); the manifest is used instead"
            )
            await self._reconciler.take_file(shared.manifest, contents_of(shared.manifest))
        else:
            position, rows = copy
            self.reason = f"the storage is unreachable ({error.reason}); a copy is used instead"
            await self._reconciler.take(rows)
            self._hold(position)
        log.warning("sync.started_without_storage", reason=error.reason, substitute=self.reason)

    def _hold(self, position: Position) -> None:
        self._follower.position = position
        self._reconciler.applied = position
        self._reconciler.seen(position)
        self._storage.knows(position.epoch)
