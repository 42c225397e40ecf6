"""Measures the free space of the volume for the limits.

Runs on the connection's thread, because a file system may block.
"""

from __future__ import annotations

from functools import partial
from shutil import disk_usage
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.database import StoreBusyError
from edgehub.store.limits import Space
from edgehub.store.maintenance.vacuum import PAGES_KEPT

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.database import Database
    from edgehub.store.limits import Limits
    from edgehub.store.shared_state import SharedState
    from edgehub.store.wal import Wal
    from edgehub.store.writer import Writer

PERIOD_S: Final = 5.0

log = structlog.get_logger(__name__)


class SpaceMonitor:
    """The background task."""

    def __init__(self, shared: SharedState, writer: Writer, limits: Limits, wal: Wal) -> None:
        self._database = shared.database
        self._dead_letters = shared.dead_letters
        self._clock = shared.clock
        self._writer = writer
        self._limits = limits
        self._wal = wal

    async def run(self) -> None:
        """Measure periodically until cancelled."""
        while True:
            await self._clock.sleep(PERIOD_S)
            await self.measure()
            self._limits.report()
            if self._limits.makes_room and not self._writer.pending_rows:
                # Rows that were in flight may have been given back, and can be evicted now.
                self._writer.touch()
            await self._wal.retry()

    async def measure(self) -> None:
        """Measure once, and set the limits by it.

        Raises:
            StoreRemovedError: The file does not exist any more.
        """
        if self._database.in_memory:
            return
        try:
            space = await self._database.run(partial(_measure, self._database))
        except StoreBusyError as exc:
            # The last measurement stays; a full disk shows at the next commit.
            log.warning("store.read_failed", queue=None, error=str(exc))
        else:
            self._limits.set_space(space)
            self._dead_letters.bound(space.total)


def _measure(database: Database, connection: sqlite3.Connection) -> Space:
    database.check_files()
    path = database.path
    usage = disk_usage(path.parent)
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    spare_pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    # Pages in the log make the file grow at the next checkpoint.
    growth = max(0, pages * PAGE_BYTES - path.stat().st_size)
    spare = max(0, spare_pages - PAGES_KEPT) * PAGE_BYTES
    return Space(usage.total, max(0, usage.free - growth), spare)
