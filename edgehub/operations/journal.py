"""Operations on the journal: its state, its lines, and what is to be exported.

Owns nothing; asks the journal. Without one everything here says so when it is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from edgehub.errors import EdgeHubError, StoreError
from edgehub.operations.arguments import flag, text, texts
from edgehub.operations.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from edgehub.journal.journal import Journal
    from edgehub.journal.search import FoundLines, LineQuery
    from edgehub.journal.trace import Passed, Trace
    from edgehub.journal.waits import Key, Split
    from edgehub.store.store import Store

WRITE_OUT_S: Final = 5.0
"""For lines of what has happened so far; the rest follows after the next start, or later."""

TRACE_S: Final = 2.0
"""For writing what waits, and again for looking through segments; the operator waits for it."""


_TARGET: Final = text("target", "Folder or URL that segments go to.", required=True)


class JournalError(EdgeHubError):
    """The journal cannot do what was asked."""


class JournalOperations:
    """Operations on the journal of one hub.

    Args:
        journal: What is asked, None = the hub keeps none.
        folder: Where its segments are.
        hub_id: Stands in every line.
        store: Gives the events.
    """

    def __init__(self, journal: Journal | None, *, folder: Path, hub_id: str, store: Store) -> None:
        self._journal = journal
        self._folder = folder
        self._hub_id = hub_id
        self._store = store

    def table(self) -> list[Operation]:
        """Return every operation."""
        return [
            Operation(
                name="journal status",
                about="Show the journal's figures and its targets.",
                handler=self._status,
                result="edgehub.operations.results.journal:JournalDocument",
            ),
            Operation(
                name="journal plan",
                about="List the segments that a target has not got.",
                handler=self._plan,
                result="edgehub.operations.results.journal:ExportPlan",
                arguments=(_TARGET, flag("close", "Close the segment that grows.")),
                changes=True,
            ),
            Operation(
                name="journal exported",
                about="Record the segments that a target has got.",
                handler=self._exported,
                result="edgehub.operations.results.journal:Nothing",
                arguments=(_TARGET, texts("segments", "Their paths; absent = all.")),
                changes=True,
            ),
        ]

    async def trace(self, message_id: str, passed: Sequence[Passed]) -> Trace | None:
        """Look for the lines of a message, within some seconds; None = there is no journal.

        Raises:
            JournalError: The folder cannot be read.
        """
        if self._journal is None:
            return None
        with self._readable():
            await self._write_newest(self._journal)
            return await self._journal.trace(message_id, passed, seconds_max=TRACE_S)

    async def search(self, query: LineQuery) -> FoundLines:
        """Return the newest lines that fit, within some seconds; see `edgehub.journal.search`.

        Raises:
            JournalError: There is no journal, or the folder cannot be read.
        """
        journal = self._enabled()
        with self._readable():
            await self._write_newest(journal)
            return await journal.search(query, seconds_max=TRACE_S)

    def split(
        self, key: Key, sender: str, offset: int, *, from_ms: int, until_ms: int
    ) -> Split | None:
        """Return what a row has waited for; None = there is no journal. See `Waits.split`."""
        if self._journal is None:
            return None
        return self._journal.split(key, sender, offset, from_ms, until_ms)

    def document(self) -> dict[str, Any]:
        """Describe the journal."""
        if self._journal is None:
            return {"enabled": False}
        return {"enabled": True, **to_builtins(self._journal.statistics())}

    async def _write_newest(self, journal: Journal) -> None:
        """Write the lines of what happened last, or they would be missing; within some seconds."""
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(TRACE_S):
                await self._store.writer.flush()
                await journal.write_out(seconds_max=TRACE_S)

    async def _status(self) -> dict[str, Any]:
        targets = [] if self._journal is None else await self._journal.targets()
        return {
            **self.document(),
            "folder": str(self._folder),
            "targets": targets,
            "clock": self._clock(),
        }

    async def _plan(self, *, target: str, close: bool) -> dict[str, Any]:
        journal = self._enabled()
        complete = True
        with self._readable():
            if close:
                complete = await journal.write_out(close=True, seconds_max=WRITE_OUT_S)
            elif self._clock()["trusted"] and journal.statistics().held_segments:
                # Their times are known by now, and the caller wants them.
                await journal.write_out(seconds_max=WRITE_OUT_S)
            segments = await journal.plan_export(target)
        return {
            "folder": str(self._folder),
            "hub_id": self._hub_id,
            "segments": segments,
            "complete": complete,
            "growing": journal.statistics().growing is not None,
            "held_segments": journal.statistics().held_segments,
            "clock": self._clock(),
        }

    async def _exported(self, *, target: str, segments: list[str] | None = None) -> dict[str, Any]:
        with self._readable():
            await self._enabled().export_done(target, segments)
        return {}

    def _clock(self) -> dict[str, Any]:
        clock = self._store.statistics().clock
        return {"trusted": clock.trusted, "reason": clock.reason}

    def _enabled(self) -> Journal:
        if self._journal is None:
            raise JournalError(
                "this hub keeps no journal (set journal.enabled = true and restart it)"
            )
        return self._journal

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(f"{self._folder}: {error.strerror or error}") from error
