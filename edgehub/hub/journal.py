"""The journal of one hub: built where the settings want it.

Owns the journal and the order of its end: what the hub did last is written before the files are
let go. Records the settings in force at the start and whenever they or the routes change. Without a
journal everything here does nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.clock import Timer
from edgehub.errors import StoreError
from edgehub.hub.part import Part
from edgehub.hub.settings_line import settings_line
from edgehub.journal.journal import Journal
from edgehub.journal.lines import Origin
from edgehub.journal.retention import Bounds
from edgehub.journal.segments import Segments
from edgehub.operations.journal import WRITE_OUT_S, JournalOperations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.operations.operation import Operation
    from edgehub.router import Router
    from edgehub.settings import Settings
    from edgehub.settings.configuration import Configuration
    from edgehub.store.store import Store

FOLDER: Final = "journal"

SETTLE_S: Final = 1.0
"""Routes that change together are recorded once."""
RECORDS_EVERY_S: Final = 60.0
"""Least time between two records of settings."""

log = structlog.get_logger(__name__)


class JournalPart(Part):
    """The journal, where the settings want one.

    Args:
        settings: Of the hub.
        hub_id: Stands in every line.
        store: Gives the events; opened with `journal` if the settings want one.
        clock: Timers and dates.

    Attributes:
        asked: What operations ask of it.
    """

    name = "journal"

    def __init__(self, settings: Settings, *, hub_id: str, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._router: Router | None = None
        self._recorded: dict[str, Any] = {}
        self._recorded_at = -RECORDS_EVERY_S
        self._recording = Timer(clock, self._record_settings)
        self._journal: Journal | None = None
        folder = settings.data_dir.absolute() / FOLDER
        feed = store.journal
        if feed is not None:
            self._journal = Journal(
                feed,
                Segments(folder, hub_id=hub_id, store_id=feed.store_id),
                Origin(hub_id, feed.store_id, feed.message_prefix),
                clock=clock,
                bounds=Bounds(
                    keep_days=settings.journal.keep_days,
                    bytes_max=settings.journal.bytes_max,
                ),
            )
        self.asked = JournalOperations(self._journal, folder=folder, hub_id=hub_id, store=store)

    def follow(self, router: Router) -> None:
        """Record the settings, and again whenever the routes in force change."""
        if self._store.journal is not None:
            self._router = router
            router.follow(lambda _table: self._record_soon())
            self._record_settings()

    async def reload(self, configuration: Configuration) -> Mapping[str, Any]:
        """Record changed settings."""
        self._settings = configuration.settings
        if self._router is not None:
            self._record_settings()
        return {}

    async def run(self) -> None:
        """Write lines until cancelled.

        Raises:
            StoreCorruptError: The database file is damaged.
        """
        if self._journal is not None:
            await self._journal.run()

    async def drain(self, deadline: float) -> None:
        """Write what still waits, within some seconds; nothing else is going to happen."""
        del deadline
        self._recording.cancel()
        if self._journal is None or self._store.journal is None:
            return
        self._store.journal.end()
        try:
            async with asyncio.timeout(WRITE_OUT_S):
                await self._store.writer.flush()
                # A step that has begun ends within the second that is left.
                await self._journal.write_out(seconds_max=WRITE_OUT_S - 1)
        except (TimeoutError, OSError, StoreError) as error:
            # What is in the database file is written after the next start.
            log.warning("journal.shutdown_timed_out", error=str(error) or "it took too long")

    def status(self) -> dict[str, Any]:
        """Return the journal's figures."""
        return {"journal": self.asked.document()}

    def warnings(self) -> list[str]:
        """List what keeps lines from being written."""
        return [] if self._journal is None else self._journal.statistics().warnings()

    def operations(self) -> Sequence[Operation]:
        """Return what is asked of the journal."""
        return self.asked.table()

    def _record_soon(self) -> None:
        due_s = max(SETTLE_S, self._recorded_at + RECORDS_EVERY_S - self._clock.monotonic())
        self._recording.start(due_s)

    def _record_settings(self) -> None:
        self._recording.cancel()
        feed = self._store.journal
        assert feed is not None
        assert self._router is not None
        members = settings_line(self._settings, self._router.table.manifest)
        if members != self._recorded:
            self._recorded, self._recorded_at = members, self._clock.monotonic()
            feed.settings(members)
