"""The write-ahead log: when its pages go into the database file, and what was written.

Runs between groups only. A checkpoint inside a commit would make somebody wait for it; a longer
log lets pages that are rewritten meanwhile go to the file once. On a small disk the log is kept
short: one that has taken all space leaves none for the file, and then nothing can move any more.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.errors import StoreError
from edgehub.store.database import StoreBusyError

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.database import Database

log = structlog.get_logger(__name__)

PAGE_BYTES: Final = 4096
FRAME_BYTES: Final = PAGE_BYTES + 24
COMMIT_PAGES: Final = 5
"""Pages that every commit rewrites: boot row, zones, last pages of tables, maps of free pages."""
TRUNCATE_FACTOR: Final = 4
BYTES_MIN: Final = 256 * 1024
FIRST_BYTES: Final = 2**20
"""Before the first checkpoint has looked how much space there is."""
SPACE_SHARE: Final = 4
"""The log may take this part of the space that is free or its own."""


class Wal:
    """Estimates the log's length and empties it in time."""

    __slots__ = ("_bytes_max", "_database", "_estimate", "_failing", "_threshold", "bytes_total")

    def __init__(self, database: Database, bytes_max: int) -> None:
        self._database = database
        self._bytes_max = bytes_max
        self._threshold = min(bytes_max, FIRST_BYTES)
        self._estimate = 0
        self._failing = False
        self.bytes_total = 0

    def written(self, row_bytes: int) -> None:
        """Count one commit."""
        self._estimate += COMMIT_PAGES * FRAME_BYTES + row_bytes + row_bytes // 8

    def hasten(self) -> None:
        """Have the next checkpoint made at once: the disk is full, and an emptied log has room."""
        self._estimate = max(self._estimate, self._threshold)

    async def checkpoint_if_due(self) -> None:
        """Move the log into the file once it is long enough."""
        if self._estimate >= self._threshold:
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Move the log into the file; a failure is logged once and tried again later."""
        if self._database.in_memory:
            self._estimate = 0
            return
        job = partial(_checkpoint, Path(f"{self._database.path}-wal"), self._bytes_max)
        try:
            frames, self._threshold = await self._database.run(job)
        except StoreBusyError as exc:
            if not self._failing:
                self._failing = True
                log.warning("store.wal_checkpoint_failed", error=str(exc))
            self._threshold = self._estimate + BYTES_MIN
            return
        self._failing = False
        self.bytes_total += frames * FRAME_BYTES
        self._estimate = 0

    async def truncate(self) -> None:
        """Move all of the log into the file and cut it, at the end."""
        try:
            await self._database.run(
                lambda conn: conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            )
        except StoreError as exc:
            # Nothing is lost by it, on a damaged file either: the next start reads the log.
            log.warning("store.wal_checkpoint_failed", error=str(exc))


def _checkpoint(path: Path, bytes_max: int, connection: sqlite3.Connection) -> tuple[int, int]:
    # PASSIVE waits for nobody, and with one connection it moves everything; the next commit then
    # starts the log from its beginning. One that a huge transaction has blown up is cut.
    row = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    frames: int = max(row[1], 0)
    size = path.stat().st_size
    threshold = threshold_bytes(size + disk_usage(path.parent).free, bytes_max)
    if size > threshold * TRUNCATE_FACTOR:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return frames, threshold


def threshold_bytes(space: int, bytes_max: int) -> int:
    """Give the length at which the log is emptied, of `space` bytes that it could have at most."""
    return min(bytes_max, max(BYTES_MIN, space // SPACE_SHARE))
