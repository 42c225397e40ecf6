"""Watches the volume: how much of it rows may still take.

Looks on the connection's thread, because asking a file system may block. Owns the rhythm alone;
what follows from it is up to the limits.
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

    from edgehub.clock import Clock
    from edgehub.store.database import Database
    from edgehub.store.dead_letters import DeadLetters
    from edgehub.store.writer import Writer

LOOK_S: Final = 5.0

log = structlog.get_logger(__name__)


class SpaceWatch:
    """The task."""

    __slots__ = ("_clock", "_database", "_dead_letters", "_limits", "_writer")

    def __init__(
        self, database: Database, writer: Writer, clock: Clock, dead_letters: DeadLetters
    ) -> None:
        self._database = database
        self._dead_letters = dead_letters
        self._writer = writer
        self._limits = writer.limits
        self._clock = clock

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self._clock.sleep(LOOK_S)
            await self.look()
            self._limits.look()
            self._writer.trim()
            await self._writer.wal.retry()

    async def look(self) -> None:
        """Look once.

        Raises:
            StoreGoneError: The file is not there any more.
        """
        if self._database.in_memory:
            return
        try:
            job = partial(_look, self._database)
            space = await self._database.run(job)
        except StoreBusyError as exc:
            # What was seen before still holds; commits fail by themselves where it does not.
            log.warning("store.read_failed", queue=None, error=str(exc))
        else:
            self._limits.set_space(space)
            self._dead_letters.bound(space.total)


def _look(database: Database, connection: sqlite3.Connection) -> Space:
    database.look_for_files()
    path = database.path
    usage = disk_usage(path.parent)
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    spare_pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    # What the log holds will make the file grow, and takes that space only then.
    growth = max(0, pages * PAGE_BYTES - path.stat().st_size)
    spare = max(0, spare_pages - PAGES_KEPT) * PAGE_BYTES
    return Space(usage.total, max(0, usage.free - growth), spare)
