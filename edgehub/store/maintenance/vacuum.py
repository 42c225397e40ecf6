"""Gives free pages of the file back to the disk after a backlog has drained.

Only pages that stayed free for half a minute go, so that a queue that breathes does not make the
file shrink and grow. Small steps between groups.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.store.database import StoreBusyError

if TYPE_CHECKING:
    import sqlite3

    from edgehub.clock import Clock
    from edgehub.store.database import Database
    from edgehub.store.writer import Job, Writer

log = structlog.get_logger(__name__)

SAMPLE_S: Final = 5.0
SAMPLES: Final = 6
PAGES_KEPT: Final = 256
"""1 MiB stays free for the next rows."""
STEP_PAGES: Final = 256
STEPS_PER_SAMPLE: Final = 64
STEP_WAL_BYTES: Final = STEP_PAGES * 4096


class Vacuum:
    """The task."""

    __slots__ = ("_clock", "_database", "_freed", "_samples", "_writer")

    def __init__(self, database: Database, writer: Writer, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self._samples: deque[int] = deque(maxlen=SAMPLES)
        self._freed = 0

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self._clock.sleep(SAMPLE_S)
            try:
                await self.step()
            except StoreBusyError as exc:
                log.warning("store.vacuum_failed", error=str(exc))

    async def step(self) -> None:
        """Take a sample, and give back what has been free all the time."""
        self._samples.append(await self._database.run(_free_pages))
        if len(self._samples) < SAMPLES:
            return
        spare = min(self._samples) - PAGES_KEPT
        steps = min(spare // STEP_PAGES, STEPS_PER_SAMPLE)
        if steps <= 0:
            return
        before = self._freed
        for _ in range(steps):
            await self._writer.between(self._prepare)
        freed = self._freed - before
        self._samples = deque((pages - freed for pages in self._samples), maxlen=SAMPLES)
        # The file is cut when the log is moved into it; and what has filled and emptied the file
        # has made the log long.
        await self._writer.wal.checkpoint(cut=True)
        log.info("store.space_given_back", bytes=freed * 4096)

    def _prepare(self) -> Job:
        return _vacuum_step, self._applied

    def _applied(self, pages: int) -> None:
        self._freed += pages
        self._writer.wal.written(STEP_WAL_BYTES)


def _free_pages(connection: sqlite3.Connection) -> int:
    pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return pages


def _vacuum_step(connection: sqlite3.Connection) -> int:
    # Python takes a statement without columns one step far, and this pragma frees a page a step.
    before = _free_pages(connection)
    for _ in range(min(STEP_PAGES, before)):
        connection.execute("PRAGMA incremental_vacuum(1)")
    return before - _free_pages(connection)
