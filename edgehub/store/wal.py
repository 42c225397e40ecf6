"""The write-ahead log: when it is checkpointed, and how much was written.

Checkpoints run between groups: inside a commit they would delay its waiters. With a longer log,
pages that are written several times go to the file once. On a small disk the log is kept short: one
that has taken all space leaves none for the file. Another process that reads the file keeps the log
from being emptied; that is reported, and tried again until the log is short.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from edgehub.errors import StoreError
from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.database import StoreBusyError
from edgehub.store.salvage.table_list import TableListKeeper

if TYPE_CHECKING:
    import sqlite3

    from edgehub.clock import Clock
    from edgehub.store.database import Database

log = structlog.get_logger(__name__)

FRAME_BYTES: Final = PAGE_BYTES + 24
COMMIT_PAGES: Final = 5
"""Pages that every commit writes: boot row, zones, last pages of tables, maps of free pages."""
TRUNCATE_FACTOR: Final = 4
BYTES_MIN: Final = 256 * 1024
FIRST_BYTES: Final = 2**20
"""Before the first checkpoint has measured the space."""
SPACE_SHARE: Final = 4
"""The log may take this fraction of the space that is free or its own."""
RETRY_S: Final = 30.0
"""A checkpoint that another process kept from its end is tried again after this time."""


class _Checkpoint(NamedTuple):
    """The result of a checkpoint.

    Attributes:
        frames: In the log.
        threshold: Its length at which the next one is due.
        size: Its size now.
        is_held: Another process reads it, so it was not emptied.
    """

    frames: int
    threshold: int
    size: int
    is_held: bool


class Wal:
    """Estimates the log's length and empties it in time."""

    def __init__(self, database: Database, clock: Clock, bytes_max: int) -> None:
        self._database = database
        self._clock = clock
        self._bytes_max = bytes_max
        self._threshold = min(bytes_max, FIRST_BYTES)
        self._estimate = 0
        self._failing = False
        self._tables = TableListKeeper(database.path)
        self._held_since_s: float | None = None
        self._retry_s = 0.0
        self._counted_frames = 0
        self.bytes_total = 0
        self.size = 0
        """Of the log, after the last checkpoint."""

    @property
    def held_for_s(self) -> float | None:
        """For how long another process has kept the log from being emptied, None = none does."""
        since_s = self._held_since_s
        return None if since_s is None else self._clock.monotonic() - since_s

    def written(self, row_bytes: int) -> None:
        """Count one commit."""
        self._estimate += COMMIT_PAGES * FRAME_BYTES + row_bytes + row_bytes // 8

    def checkpoint_soon(self) -> None:
        """Make the next checkpoint at once: the disk is full, and an emptied log has room."""
        self._estimate = max(self._estimate, self._threshold)

    async def checkpoint_if_due(self) -> None:
        """Move the log into the file once it is long enough."""
        if self._estimate >= self._threshold:
            await self.checkpoint()

    async def checkpoint(self, *, cut: bool = False) -> None:
        """Move the log into the file; a failure is logged once and tried again later.

        Args:
            cut: Truncate the log, too: its space is not needed again soon.
        """
        if self._database.in_memory:
            self._estimate = 0
            return
        log_path = Path(f"{self._database.path}-wal")
        kept = BYTES_MIN if cut else None
        job = partial(_checkpoint, log_path, self._bytes_max, kept, self._tables)
        try:
            found = await self._database.run(job)
        except StoreBusyError as exc:
            if not self._failing:
                self._failing = True
                log.warning("store.wal_checkpoint_failed", error=str(exc))
            self._threshold = self._estimate + BYTES_MIN
            return
        self._failing = False
        self.bytes_total += (found.frames - self._counted_frames) * FRAME_BYTES
        self._counted_frames = found.frames if found.is_held else 0
        self._threshold, self.size = found.threshold, found.size
        self._estimate = 0
        self._note_reader(is_held=found.is_held)

    async def retry(self) -> None:
        """Try again to empty a log that another process has kept from being emptied."""
        if self._held_since_s is not None and self._clock.monotonic() >= self._retry_s:
            await self.checkpoint(cut=True)

    def _note_reader(self, *, is_held: bool) -> None:
        now_s = self._clock.monotonic()
        self._retry_s = now_s + RETRY_S
        if is_held and self._held_since_s is None:
            self._held_since_s = now_s
            log.warning("store.log_held", path=str(self._database.path), bytes=self.size)
        elif not is_held and self._held_since_s is not None:
            held_for_s = round(now_s - self._held_since_s, 1)
            self._held_since_s = None
            log.info("store.log_emptied", held_for_s=held_for_s, bytes=self.size)

    async def truncate(self) -> None:
        """Move all of the log into the file and cut it, at the end."""
        if self._database.in_memory:
            return
        try:
            await self._database.run(partial(_truncate, self._tables))
        except StoreError as exc:
            # Nothing is lost: the next start reads the log.
            log.warning("store.wal_checkpoint_failed", error=str(exc))


def _truncate(tables: TableListKeeper, connection: sqlite3.Connection) -> None:
    tables.keep(connection)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _checkpoint(
    path: Path,
    bytes_max: int,
    kept: int | None,
    tables: TableListKeeper,
    connection: sqlite3.Connection,
) -> _Checkpoint:
    # Before pages of a changed list of tables leave the log.
    tables.keep(connection)
    # PASSIVE never waits, and with one connection it moves everything; the next commit then starts
    # the log from its beginning. A log grown by a huge transaction is truncated. Both leave what
    # another process reads.
    busy, frames, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    is_held = bool(busy) or moved < frames
    size = path.stat().st_size
    threshold = threshold_bytes(size + disk_usage(path.parent).free, bytes_max)
    if size > (threshold * TRUNCATE_FACTOR if kept is None else kept):
        (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        is_held |= bool(busy)
        size = path.stat().st_size
    return _Checkpoint(max(frames, 0), threshold, size, is_held)


def threshold_bytes(space: int, bytes_max: int) -> int:
    """Return the length at which the log is emptied, of `space` bytes at most."""
    return min(bytes_max, max(BYTES_MIN, space // SPACE_SHARE))
