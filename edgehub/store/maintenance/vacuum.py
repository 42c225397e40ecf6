"""Returns free pages of the file to the disk after a backlog has drained.

Only pages that stayed free for half a minute are returned, so that short backlogs do not make the
file shrink and grow. Small steps between groups.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.store.database import StoreBusyError

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.event_log import EventBatch
    from edgehub.store.shared_state import SharedState
    from edgehub.store.wal import Wal
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
    """The background task."""

    def __init__(self, shared: SharedState, writer: Writer, wal: Wal) -> None:
        self._database = shared.database
        self._writer = writer
        self._wal = wal
        self._clock = shared.clock
        self._samples: deque[int] = deque(maxlen=SAMPLES)
        self._freed = 0

    async def run(self) -> None:
        """Take samples periodically until cancelled."""
        while True:
            await self._clock.sleep(SAMPLE_S)
            try:
                await self.step()
            except StoreBusyError as exc:
                log.warning("store.vacuum_failed", error=str(exc))

    async def step(self) -> None:
        """Take a sample, and return the pages that were free in all samples."""
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
        # The file is truncated by the checkpoint; and the backlog has made the log long.
        await self._wal.checkpoint(cut=True)
        log.info("store.space_given_back", bytes=freed * 4096)

    def _prepare(self, _batch: EventBatch | None) -> Job:
        return _vacuum_step, self._apply

    def _apply(self, pages: int) -> int:
        self._freed += pages
        return STEP_WAL_BYTES


def _free_pages(connection: sqlite3.Connection) -> int:
    pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return pages


def _vacuum_step(connection: sqlite3.Connection) -> int:
    # sqlite3 runs a statement without columns for one step, and this pragma frees a page a step.
    before = _free_pages(connection)
    for _ in range(min(STEP_PAGES, before)):
        connection.execute("PRAGMA incremental_vacuum(1)")
    return before - _free_pages(connection)
