"""A store with its journal on a manual clock, for tests; and files as a crash leaves them."""

from __future__ import annotations

import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from edgehub.journal.journal import Journal
from edgehub.journal.lines import Origin
from edgehub.journal.retention import Bounds
from edgehub.journal.segments import Segments
from edgehub.store import StoreOptions
from edgehub.store.database import Database
from tests.support.stores import Harness, crash_copy, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from edgehub.clock import ManualClock
    from edgehub.store.journal_feed import JournalFeed

HUB = "gw-1"
BOUNDS = Bounds(keep_days=3650, bytes_max=1 << 30)


class JournalHarness:
    """A running store, and the journal that tells of it when the test says so."""

    def __init__(self, hub: Harness, segments: type[Segments], bounds: Bounds) -> None:
        feed = hub.store.journal
        assert feed is not None
        self.hub = hub
        self.feed: JournalFeed = feed
        self.folder = hub.path.parent / "journal"
        self.segments = segments(self.folder, hub_id=HUB, store_id=feed.store_id)
        self.journal = Journal(
            feed,
            self.segments,
            Origin(HUB, feed.store_id, feed.message_prefix),
            clock=hub.clock,
            bounds=bounds,
        )

    async def end(self) -> None:
        """End in order, as the hub does."""
        await self.hub.store.writer.flush()
        self.feed.end()
        await self.hub.store.writer.flush()
        await self.journal.write_out()

    def depths(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return rows and bytes of the queues that are not empty."""
        figures = [queue.statistics() for queue in self.hub.store.queues.all()]
        return {(f.endpoint_id, f.priority): (f.depth, f.bytes) for f in figures if f.depth}


@asynccontextmanager
async def journaling(
    path: Path,
    *,
    clock: ManualClock | None = None,
    options: StoreOptions | None = None,
    segments: type[Segments] = Segments,
    bounds: Bounds = BOUNDS,
    database_type: type[Database] = Database,
) -> AsyncIterator[JournalHarness]:
    """Open and run a store that keeps a journal beside its file."""
    options = options or StoreOptions(journal=True)
    async with running(path, clock=clock, options=options, database_type=database_type) as hub:
        yield JournalHarness(hub, segments, bounds)


def state_copy(path: Path, directory: Path) -> Path:
    """Copy database and journal as a crash would leave them."""
    copy = crash_copy(path, directory)
    folder = path.parent / "journal"
    if folder.exists():
        shutil.copytree(folder, directory / "journal")
    return copy
