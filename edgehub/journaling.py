"""The journal of one hub: built where the settings want it, asked over the control socket.

Owns the journal's parts and the order of its end: what the hub did last is told before the files
are let go. Without a journal everything here does nothing, and says so when it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.errors import EdgeHubError, StoreError
from edgehub.journal.journal import Journal
from edgehub.journal.lines import Origin
from edgehub.journal.retention import Bounds
from edgehub.journal.segments import Segments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgehub.clock import Clock
    from edgehub.control.server import Command
    from edgehub.journal.search import FoundLines, LineQuery
    from edgehub.journal.trace import Passed, Trace
    from edgehub.journal.waits import Key, Split
    from edgehub.settings import Settings
    from edgehub.store.store import Store

FOLDER: Final = "journal"
WRITE_OUT_S: Final = 5.0
"""For lines of what has happened so far; the rest follows after the next start, or later."""

TRACE_S: Final = 2.0
"""For writing what waits, and again for looking through segments; people wait meanwhile."""

log = structlog.get_logger(__name__)


class JournalError(EdgeHubError):
    """The journal cannot do what was asked."""


class Journaling:
    """See the module.

    Args:
        settings: Of the hub.
        hub_id: Stands in every line.
        store: Gives the events; opened with `journal` if the settings want one.
        clock: Timers and dates.
    """

    def __init__(self, settings: Settings, *, hub_id: str, store: Store, clock: Clock) -> None:
        self._store = store
        self._journal: Journal | None = None
        self._folder = settings.data_dir.absolute() / FOLDER
        self._hub_id = hub_id
        feed = store.journal
        if feed is not None:
            self._journal = Journal(
                feed,
                Segments(self._folder, hub_id=hub_id, store_id=feed.store_id),
                Origin(hub_id, feed.store_id, feed.message_prefix),
                clock=clock,
                bounds=Bounds(
                    keep_days=settings.journal.keep_days,
                    bytes_max=settings.journal.bytes_max,
                ),
            )

    async def run(self) -> None:
        """Write lines until cancelled.

        Raises:
            StoreCorruptError: The database file is damaged.
        """
        if self._journal is not None:
            await self._journal.run()

    async def end(self) -> None:
        """Tell what waits at the end, when nothing else is going to happen, within some seconds."""
        if self._journal is None or self._store.journal is None:
            return
        self._store.journal.end()
        try:
            async with asyncio.timeout(WRITE_OUT_S):
                await self._store.flush()
                # A step that has begun ends within the second that is left.
                await self._journal.write_out(seconds_max=WRITE_OUT_S - 1)
        except (TimeoutError, OSError, StoreError) as error:
            # What is in the database file is written after the next start.
            log.warning("journal.end_cut_short", error=str(error) or "it took too long")

    async def trace(self, message_id: str, passed: Sequence[Passed]) -> Trace | None:
        """Look for the lines of a message, within some seconds; None = there is no journal.

        Raises:
            JournalError: The folder cannot be read.
        """
        if self._journal is None:
            return None
        try:
            await self._write_newest(self._journal)
            return await self._journal.trace(message_id, passed, seconds_max=TRACE_S)
        except OSError as error:
            raise JournalError(f"{self._folder}: {error.strerror or error}") from error

    async def search(self, query: LineQuery) -> FoundLines:
        """Return the newest lines that fit, within some seconds; see `edgehub.journal.search`.

        Raises:
            JournalError: There is no journal, or the folder cannot be read.
        """
        journal = self._enabled()
        try:
            await self._write_newest(journal)
            return await journal.search(query, seconds_max=TRACE_S)
        except OSError as error:
            raise JournalError(f"{self._folder}: {error.strerror or error}") from error

    async def _write_newest(self, journal: Journal) -> None:
        """Write the lines of what happened last, or they would be missing; within some seconds."""
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(TRACE_S):
                await self._store.flush()
                await journal.write_out(seconds_max=TRACE_S)

    def split(
        self, key: Key, sender: str, offset: int, *, from_ms: int, until_ms: int
    ) -> Split | None:
        """Say what a row has waited for; None = there is no journal. See `Waits.split`."""
        if self._journal is None:
            return None
        return self._journal.split(key, sender, offset, from_ms, until_ms)

    def document(self) -> dict[str, Any]:
        """Describe the journal."""
        if self._journal is None:
            return {"enabled": False}
        return {"enabled": True, **asdict(self._journal.statistics())}

    @property
    def name(self) -> str:
        """Give its key in the status."""
        return "journal"

    def warnings(self) -> list[str]:
        """List what a person should look at."""
        return [] if self._journal is None else self._journal.statistics().warnings()

    def commands(self) -> Mapping[str, Command]:
        """Give the commands of the control socket."""
        return {
            "journal status": self._status_command,
            "journal plan": self._plan_command,
            "journal exported": self._exported_command,
        }

    async def _status_command(self, _arguments: Mapping[str, Any]) -> dict[str, Any]:
        targets = [] if self._journal is None else await self._journal.targets()
        return {
            **self.document(),
            "folder": str(self._folder),
            "targets": targets,
            "clock": self._clock(),
        }

    async def _plan_command(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        target, close = _target(arguments), arguments.get("close") is True
        journal = self._enabled()
        complete = True
        try:
            if close:
                complete = await journal.write_out(close=True, seconds_max=WRITE_OUT_S)
            elif self._clock()["trusted"] and journal.statistics().held_segments:
                # Their times are known by now, and whoever asks wants them.
                await journal.write_out(seconds_max=WRITE_OUT_S)
            segments = await journal.plan_export(target)
        except OSError as error:
            raise JournalError(f"{self._folder}: {error.strerror or error}") from error
        return {
            "folder": str(self._folder),
            "hub_id": self._hub_id,
            "segments": segments,
            "complete": complete,
            "growing": journal.statistics().growing is not None,
            "held_segments": journal.statistics().held_segments,
            "clock": self._clock(),
        }

    async def _exported_command(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        target, segments = _target(arguments), arguments.get("segments")
        if segments is not None and not _are_texts(segments):
            msg = "want `segments` as a list of paths, those that arrived"
            raise JournalError(msg)
        try:
            await self._enabled().export_done(target, segments)
        except OSError as error:
            raise JournalError(f"{self._folder}: {error.strerror or error}") from error
        return {}

    def _clock(self) -> dict[str, Any]:
        clock = self._store.statistics().clock
        return {"trusted": clock.trusted, "reason": clock.reason}

    def _enabled(self) -> Journal:
        if self._journal is None:
            msg = "this hub keeps no journal (set journal.enabled = true and restart it)"
            raise JournalError(msg)
        return self._journal


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _target(arguments: Mapping[str, Any]) -> str:
    target = arguments.get("target")
    if not isinstance(target, str) or not target:
        msg = "want `target`, the folder or URL that segments go to"
        raise JournalError(msg)
    return target
