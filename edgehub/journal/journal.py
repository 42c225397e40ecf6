"""The journal's background work: writes lines of stored blobs to segments, and deletes the blobs.

Owns the ledger, the growing segments and the pace. A step reads some blobs, appends their lines,
syncs, and deletes the blobs in one transaction that stores the position and the ledger; only then a
segment may be closed. While the clock is not trusted, lines go to held segments, and are written
again with right times once it is. Invariants: each event is in exactly one line, whatever was cut
off; errors of the folder delay lines and never messages.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
import structlog
from msgspec import Struct, field

from edgehub.errors import StoreCorruptError, StoreError
from edgehub.journal.events import unpack
from edgehub.journal.exports import ExportBook
from edgehub.journal.held import Held
from edgehub.journal.ledger import HOUR_MS, Ledger
from edgehub.journal.lines import DAY_MS
from edgehub.journal.pace import LOOK_S, Pace
from edgehub.journal.retention import drop_segments
from edgehub.journal.search import search
from edgehub.journal.statistics import JournalStatistics
from edgehub.journal.trace import Trace, trace
from edgehub.journal.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgehub.clock import Clock
    from edgehub.journal.events import CommitEvents, Stretches
    from edgehub.journal.held import HeldSegment
    from edgehub.journal.ledger import Piece
    from edgehub.journal.lines import Origin
    from edgehub.journal.retention import Bounds
    from edgehub.journal.search import FoundLines, LineQuery
    from edgehub.journal.segments import Segment, Segments
    from edgehub.journal.source import EventSource
    from edgehub.journal.trace import Passed
    from edgehub.journal.waits import Key, Split

STATE_FORM: Final = 2
STEP_LINES: Final = 16_384
SEGMENT_BYTES_MAX: Final = 8 * 2**20
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
UNKNOWN_AFTER_MS: Final = 7 * DAY_MS
"""Lines of a clock that has not been trusted for so long get no date any more."""

APPEND_SHARE: Final = 8
"""Most of the time of an append is not the processor's."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Writes(Struct):
    """What one step appends.

    Attributes:
        dated: Lines by segment.
        held: Lines and events by held segment.
        number: The last commit that was read.
        lines: Number of lines.
    """

    dated: list[tuple[Segment, list[bytes]]] = field(default_factory=list)
    held: list[tuple[HeldSegment, list[bytes], list[tuple[int, bytes]]]] = field(
        default_factory=list
    )
    number: int = 0
    lines: int = 0


class Journal:
    """The background work of the journal: from stored blobs to lines in segments.

    Args:
        source: Where events come from.
        segments: The folder.
        origin: Part of every line.
        clock: Timers.
        bounds: Of the folder.
    """

    def __init__(
        self,
        source: EventSource,
        segments: Segments,
        origin: Origin,
        *,
        clock: Clock,
        bounds: Bounds,
    ) -> None:
        self._source = source
        self._segments = segments
        self._origin = origin
        self._clock = clock
        self._pace = Pace(source, clock)
        self._bounds = bounds
        self._bytes_max = bounds.bytes_max
        self._book = ExportBook(segments.folder / "exports.json")
        self._ledger = Ledger(origin)
        self._growing: list[Segment] = []
        self._held = Held(segments)
        self._fresh = False
        """Ledger and segments are those of the stored position."""
        self._turns = asyncio.Lock()
        self._worker = Worker()
        self._failing: str | None = None
        self._closed: dict[str, int] = {}
        self._exported: set[str] = set()
        self._dropped = 0
        self._tidied_hour = 0
        self._midnight_reported = 0

    async def run(self) -> None:
        """Write lines until cancelled.

        Raises:
            StoreCorruptError: The database file is damaged.
        """
        retry_s = 0.0
        more = False
        while True:
            if not more:
                await self._clock.sleep(LOOK_S)
            try:
                async with self._turns:
                    more = await self._look()
            except StoreCorruptError:
                raise
            except (OSError, StoreError) as error:
                retry_s = min(max(2 * retry_s, RETRY_S_MIN), RETRY_S_MAX)
                if self._failing is None:
                    log.warning("journal.write_failed", error=str(error))
                self._failing = str(error)
                await self._clock.sleep(retry_s)
                continue
            if self._failing is not None:
                log.info("journal.write_recovered")
                self._failing = None
            retry_s = 0.0

    async def write_out(self, *, close: bool = False, seconds_max: float = math.inf) -> bool:
        """Write the lines of all events that are committed.

        Args:
            close: Close the growing segment too.
            seconds_max: Begin no further step after so long.

        Returns:
            Whether all are written.

        Raises:
            OSError: The folder takes no lines.
            StoreError: The blobs cannot be read or deleted.
        """
        until_s = self._clock.monotonic() + seconds_max
        with self._pace.without_pauses():
            async with self._turns:
                while more := await self._step(paced=False):
                    if self._clock.monotonic() >= until_s:
                        break
                if close:
                    await self._close(self._growing)
        return not more

    async def plan_export(self, target: str) -> list[str]:
        """Return the segments that are to go to a target, which is a folder or URL.

        Returns:
            Their paths relative to the folder, oldest first.

        Raises:
            OSError: The plan cannot be kept.
        """
        async with self._turns:
            await self._ready()
            return await self._worker.do(self._book.plan, target, list(self._closed))

    async def export_done(self, target: str, segments: Sequence[str] | None = None) -> None:
        """Record what of `plan_export` has arrived, or all of it.

        Raises:
            OSError: It cannot be noted.
        """
        async with self._turns:
            await self._worker.do(self._book.done, target, list(self._closed), segments)
            self._exported = await self._worker.do(self._book.exported)

    async def targets(self) -> list[str]:
        """List where segments have been exported to."""
        async with self._turns:
            return await self._worker.do(self._book.targets)

    async def trace(
        self, message_id: str, passed: Sequence[Passed], *, seconds_max: float
    ) -> Trace:
        """Look for the lines of a message, newest segment first.

        Args:
            message_id: Of the hub.
            passed: Rows of which to count who has overtaken them.
            seconds_max: Stop after this time.

        Raises:
            OSError: The folder cannot be read.
        """
        return await self._look_through(
            partial(trace, message_id=message_id, passed=passed), seconds_max
        )

    async def search(self, query: LineQuery, *, seconds_max: float) -> FoundLines:
        """Return the newest lines that fit; see `edgehub.journal.search`.

        Raises:
            OSError: The folder cannot be read.
        """
        return await self._look_through(partial(search, query=query), seconds_max)

    async def _look_through(self, job: Callable[..., T], seconds_max: float) -> T:
        """Run a job on all segments, newest first."""
        async with self._turns:
            await self._ready()
            files = [self._segments.folder / path for path in self._closed]
            files += [self._segments.growing_file(segment) for segment in self._growing]
            if not self._held.rewriting:
                files += [self._held.lines_file(entry) for entry in self._held.entries]
            on_files = partial(
                job, files[::-1], seconds_max=seconds_max, monotonic=self._clock.monotonic
            )
            return await self._worker.do(on_files)

    def split(self, key: Key, sender: str, offset: int, from_ms: int, until_ms: int) -> Split:
        """Return what a row that still waits has waited for; see `Waits.split`."""
        return self._ledger.split(key, sender, offset, from_ms, until_ms)

    def statistics(self) -> JournalStatistics:
        """Return a snapshot."""
        return JournalStatistics(
            journal_lag_seconds=self._source.waiting_ms / 1000,
            waiting_bytes=self._source.bytes_waiting,
            segments=len(self._closed),
            segment_bytes=sum(self._closed.values()),
            not_exported=len(self._closed.keys() - self._exported),
            growing=self._growing[-1].path if self._growing else None,
            held_segments=len(self._held.entries),
            held_bytes=self._held.size,
            dropped_not_exported=self._dropped,
            corrections=self._ledger.corrections,
            failing=self._failing,
        )

    async def _look(self) -> bool:
        """Do what is due; return whether more is."""
        await self._ready()
        source = self._source
        source.record_refused()
        utc_ms = source.utc_now_ms()
        day = utc_ms // DAY_MS
        known = self._ledger.day if source.clock_trusted else None
        if known is not None and day > max(known, self._midnight_reported):
            self._midnight_reported = day
            source.passed_midnight()
        if self._pace.is_busy():
            return False
        if self._pace.is_due():
            await self._step(paced=True)
        hour = utc_ms // HOUR_MS
        if self._growing and self._growing[-1].hour != hour and not source.bytes_waiting:
            await self._close(self._growing)
        if self._is_given_up():
            await self._give_up()
        hub_hour = source.hub_now_ms() // HOUR_MS
        if hub_hour != self._tidied_hour:
            self._tidied_hour = hub_hour
            await self._tidy(by_age=True)
        return self._pace.is_due()

    async def _step(self, *, paced: bool) -> bool:
        """Write the lines of some blobs; return False when there were none."""
        await self._ready()
        blobs = await self._source.read()
        if not blobs:
            return False
        self._fresh = False
        if self._held.entries:
            # Events without right times are written before those with.
            first = next(filter(None, (_unpacked(blob) for _, blob in blobs)), None)
            if first is not None and first.trusted:
                await self._rewrite(first.stretches(), paced=paced)
                return True
        writes = Writes()
        for number, blob in blobs:
            events = _unpacked(blob, number)
            if events is not None:
                if events.trusted and self._held.entries:
                    break
                await self._add_commit(writes, number, events, blob, paced=paced)
            writes.number = number
            if writes.lines >= STEP_LINES:
                break
        await self._write(writes, writes.number, paced=paced)
        return True

    async def _add_commit(
        self, writes: Writes, number: int, events: CommitEvents, blob: bytes, *, paced: bool
    ) -> None:
        """Add the lines of one commit; without right times they go to a held segment."""
        if not events.trusted:
            hour = events.hub_ms // HOUR_MS
            entry = self._held.growing(hour, min(SEGMENT_BYTES_MAX, self._bytes_max))
            if entry is None:
                if not self._held.entries:
                    await self._add(writes, self._ledger.settle(number, events), paced=paced)
                account = self._ledger.document()
                entry = self._held.begin(hour, number, events.hub_ms, account)
            entry.hub_ms, entry.lines.last_commit = events.hub_ms, number
            if not writes.held or writes.held[-1][0] is not entry:
                writes.held.append((entry, [], []))
            writes.held[-1][2].append((number, blob))
        await self._add(writes, self._ledger.take(number, events), paced=paced)

    async def _rewrite(self, stretches: Stretches | None, *, paced: bool) -> None:
        """Write some of the held events again, with the times that are known now."""
        held = self._held
        if stretches is None:
            # The event with the times is damaged.
            await self._give_up()
            return
        if not held.rewriting:
            is_known = self._ledger.day is not None
            self._ledger = Ledger.load(self._origin, await self._worker.do(held.account))
            if not is_known:
                self._ledger.forget_day()
            held.rewriting = True
        number = held.entries[-1].lines.last_commit
        blobs, rewritten = await self._worker.do(held.read)
        writes = Writes()
        for commit, blob in blobs:
            events = _unpacked(blob, commit)
            if events is not None:
                pieces = self._ledger.take(commit, events, stretches)
                await self._add(writes, pieces, paced=paced)
        held.rewritten(rewritten)
        await self._write(writes, number, paced=paced)
        await self._worker.do(held.clean)
        if not held.entries:
            log.info("journal.times_corrected", commit=number)

    async def _add(self, writes: Writes, pieces: Iterator[Piece], *, paced: bool) -> None:
        """Add lines to segments, with pauses for messages between them."""
        while True:
            started = self._clock.monotonic()
            piece = next(pieces, None)
            if piece is None:
                return
            if piece.day is None:
                writes.held[-1][1].append(piece.text)
            else:
                self._place(writes.dated, piece, piece.day)
            writes.lines += piece.text.count(b"\n")
            await self._pace.pause(self._clock.monotonic() - started, paced=paced)

    async def _write(self, writes: Writes, number: int, *, paced: bool) -> None:
        """Append what a step has made, and then store the position."""
        started = self._clock.monotonic()
        await self._worker.do(self._append, writes)
        await self._pace.pause((self._clock.monotonic() - started) / APPEND_SHARE, paced=paced)
        await self._source.forget(number, self._dump(), self._ledger.hub_ms)
        self._fresh = True
        last = self._growing[-1] if self._growing else None
        whole = last is not None and last.length >= min(SEGMENT_BYTES_MAX, self._bytes_max)
        await self._close(self._growing if whole else self._growing[:-1])

    def _is_given_up(self) -> bool:
        """Return whether the oldest held lines are to get no date any more."""
        held = self._held
        if not held.entries or held.rewriting or self._source.clock_trusted:
            return False
        waited_ms = self._source.hub_now_ms() - held.entries[0].hub_ms
        return waited_ms >= UNKNOWN_AFTER_MS or held.size > self._bytes_max

    async def _give_up(self) -> None:
        """Keep the oldest held lines as they are; the next known date begins with what waits."""
        self._fresh = False
        segment = self._held.entries[0].lines.path
        await self._worker.do(self._held.give_up)
        self._ledger.forget_day()
        await self._source.forget(self._ledger.commit, self._dump(), self._ledger.hub_ms)
        await self._worker.do(self._held.clean)
        self._fresh = True
        log.warning("journal.date_unknown", segment=segment)
        await self._tidy()

    def _place(self, writes: list[tuple[Segment, list[bytes]]], piece: Piece, day: int) -> None:
        """Append lines to the segment of their date and hour, or start one."""
        last = self._growing[-1] if self._growing else None
        if (
            last is None
            or last.day != day
            or (last.hour != piece.hour and last.last_commit != piece.commit)
        ):
            last = self._segments.begin(day, piece.hour, piece.commit)
            self._growing.append(last)
        last.last_commit = piece.commit
        if not writes or writes[-1][0] is not last:
            writes.append((last, []))
        writes[-1][1].append(piece.text)

    def _append(self, writes: Writes) -> None:
        for segment, texts in writes.dated:
            self._segments.append(segment, texts)
        for entry, texts, events in writes.held:
            self._held.append(entry, texts, events)

    async def _close(self, segments: list[Segment]) -> None:
        if not segments:
            return
        self._fresh = False
        for segment in list(segments):
            await self._worker.do(self._segments.close, segment)
            self._growing.remove(segment)
        self._fresh = True
        await self._tidy()

    async def _ready(self) -> None:
        """Go back to the stored position after a start or a failure."""
        if self._fresh:
            return
        # A cancelled caller may have left a transaction running, which decides on the position.
        await self._source.settled()
        state = self._source.state
        growing: list[list[Any]] = []
        held: list[list[Any]] = []
        rewriting = False
        if state is None:
            self._ledger = Ledger(self._origin)
        else:
            _, account, growing, held, rewriting = orjson.loads(zlib.decompress(state))
            self._ledger = Ledger.load(self._origin, account)
        if await self._worker.do(partial(self._held.resume, held, rewriting=rewriting)):
            self._ledger.forget_day()
        self._growing = await self._worker.do(self._segments.resume, growing)
        self._fresh = True
        # Those that were to be closed when the position was stored.
        await self._close(self._growing[:-1])
        await self._tidy()

    def _dump(self) -> bytes:
        growing = [segment.document() for segment in self._growing]
        held = [entry.document() for entry in self._held.entries]
        account = self._ledger.document()
        document = (STATE_FORM, account, growing, held, self._held.rewriting)
        return zlib.compress(orjson.dumps(document), 1)

    async def _tidy(self, *, by_age: bool = False) -> None:
        source = self._source
        is_known = by_age and source.clock_trusted
        job = partial(
            drop_segments,
            self._segments,
            self._book,
            self._bounds,
            today=source.utc_now_ms() // DAY_MS if is_known else None,
            held_bytes=self._held.size,
        )
        found = await self._worker.do(job)
        self._closed, self._exported = found.kept, found.exported
        self._bytes_max = found.bytes_max
        if found.not_exported:
            self._dropped += found.not_exported
            log.warning(
                "journal.segments_dropped",
                not_exported=found.not_exported,
                bytes=found.not_exported_bytes,
                total=self._dropped,
            )


def _unpacked(blob: bytes, number: int = 0) -> CommitEvents | None:
    """Unpack a blob; one that is damaged is logged if it has a number."""
    try:
        return unpack(blob)
    except ValueError as error:
        if number:
            log.error("journal.events_lost", commit=number, error=str(error))  # noqa: TRY400 - no bug of ours
        return None
