"""The reading side of one queue: what comes out next, and what is held back.

Owns the read position, the cache of rows ahead of it, rows that came back and rows that are held.
Order of reading: by offset over rows that came back, rows that are to be recalled and the cache,
then the file from the read position on, then, where groups linger, rows of the open group.
Invariant: every row of the file that is neither in flight, nor left, nor held, nor expired is in
exactly one of these places.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.encoding import decode_row
from edgehub.store.held_rows import HeldRows
from edgehub.store.row_reading import read_offsets, read_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.clock import Clock, HubTime
    from edgehub.message import Row
    from edgehub.store.checkpointer import Checkpointer
    from edgehub.store.database import Database
    from edgehub.store.group import Part
    from edgehub.store.labels import Labels
    from edgehub.store.offsets import Offsets
    from edgehub.store.zones import Zones

log = structlog.get_logger(__name__)

ROW_MEMORY_BYTES: Final = 700
"""What a row costs in memory beside its size: row, message, dictionaries, texts."""
READ_ROWS_MIN: Final = 256
RECALL_ROWS: Final = 256
UNSTORED_ROWS_MAX: Final = 1_000_000
READ_PAUSE_S: Final = 1.0


class Cache:
    """The memory that rows ahead of the pump may take, over all queues."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSource:
    """What all readers of a store share.

    Attributes:
        offsets: Say up to which offset rows of the open group may be read before their commit.
        stale_met: Called when rows were passed by because they belong into their fallback priority.
    """

    database: Database
    clock: Clock
    hub_time: HubTime
    labels: Labels
    store_id: str
    cache: Cache
    offsets: Offsets
    stale_met: Callable[[], None]


class _Batch:
    __slots__ = ("bytes_left", "rows", "rows_max")

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.rows: list[Row] = []
        self.rows_max = rows_max
        self.bytes_left = bytes_max


class Reader:
    """The rows of one queue on their way to the pump."""

    __slots__ = (
        "_cache",
        "_checkpointer",
        "_decode",
        "_held",
        "_leaving",
        "_mixed_until",
        "_number",
        "_paused",
        "_position",
        "_reading",
        "_reading_file",
        "_returned",
        "_returned_sorted",
        "_rewinds",
        "_source",
        "_unripe",
        "_wake",
        "_zones",
        "open_part",
        "sealed_rows",
    )

    def __init__(
        self,
        source: ReadSource,
        number: int,
        checkpointer: Checkpointer,
        zones: Zones,
        wake: Callable[[], None],
        *,
        position: int,
    ) -> None:
        self.open_part: Part | None = None
        self.sealed_rows = 0
        """Unread rows of groups that are sealed and not committed: they precede the open part."""
        self._source = source
        self._decode = partial(decode_row, labels=source.labels, store_id=source.store_id)
        self._number = number
        self._checkpointer = checkpointer
        self._zones = zones
        self._wake = wake
        self._position = position
        self._cache: deque[Row] = deque()
        self._returned: deque[Row] = deque()
        self._returned_sorted = True
        self._unripe: list[Row] = []
        self._held = HeldRows()
        self._reading = False
        self._paused = False
        self._reading_file = False
        self._rewinds = 0
        self._leaving: set[int] = set()
        """Rows that gave way to others and are still in the file."""
        self._mixed_until = -1
        """Up to here rows ahead of the position may have been read before: it went back."""

    def has_ready(self) -> bool:
        """Return whether a row may be had; never False while one can."""
        if self._paused:
            return False
        if self._returned or self._held.recall:
            return True
        if self._full():
            return False
        return (
            bool(self._cache)
            or self._position <= self._checkpointer.proposed
            or self._early_rows() > 0
        )

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `Queue.read_batch`."""
        assert rows_max > 0
        assert not self._reading, "a queue has one reader"
        self._reading = True
        batch = _Batch(rows_max, bytes_max)
        was_read = False
        try:
            while not self._fill(batch):
                was_read = True
                has_more = await self._refill(rows_max)
                self._pass_by_stale(batch)
                if not has_more:
                    break
        except BaseException:
            self._checkpointer.withdraw(batch.rows)
            self.give_back(batch.rows)
            raise
        finally:
            self._reading = False
        if was_read:
            # Lower rows may have come back, or in, meanwhile.
            batch.rows.sort(key=attrgetter("offset"))
        return batch.rows

    def rows_ahead(self) -> Iterable[Row]:
        """Return the rows of the file that are in memory and not in flight."""
        return chain(self._returned, self._cache, self._unripe)

    def give_back(self, rows: Sequence[Row]) -> None:
        """Take rows back to their old place; they are no longer in flight."""
        if self._leaving:
            # Those that were taken by their offsets are taken so again.
            rows = [row for row in rows if row.offset not in self._leaving]
        refused = self._checkpointer.refused
        if refused:
            rows = [row for row in rows if row.offset not in refused]
        if rows:
            self._returned.extend(rows)
            self._returned_sorted = False
            if self._position <= self._mixed_until and not self._reading_file:
                self._leave_to_file()

    def refuse(self, offset: int) -> None:
        """Forget a row that was read before its commit and will never be in the file."""
        self._checkpointer.refuse(offset)
        self._returned = deque([row for row in self._returned if row.offset != offset])
        self._unripe = [row for row in self._unripe if row.offset != offset]

    def go_back(self, lowest: int) -> None:
        """Read again from `lowest` on: rows have come to places that were read before."""
        if lowest >= self._position and not self._reading_file:
            return
        # What is being read from the file now is as it was before.
        self._rewinds += 1
        self._mixed_until = max(self._mixed_until, self._position - 1)
        self._position = min(self._position, lowest)
        kept = deque([row for row in self._cache if row.offset < lowest])
        size = sum([row.size for row in self._cache]) - sum([row.size for row in kept])
        self._source.cache.bytes -= size + (len(self._cache) - len(kept)) * ROW_MEMORY_BYTES
        self._cache = kept
        self._held.go_back(lowest)
        self._leave_to_file()

    def pass_stale(self) -> None:
        """Forget rows at the head of the cache that are stale; they are in another queue now."""
        now_ms = self._source.hub_time.now_ms()
        cache = self._cache
        while cache and cache[0].fresh_until_ms <= now_ms:
            self._source.cache.bytes -= cache.popleft().size + ROW_MEMORY_BYTES

    def evict(self, offsets: Sequence[int]) -> None:
        """Forget rows that leave without having been read; they are not in flight."""
        gone = set(offsets)
        self._leaving |= gone
        last = offsets[-1]
        if self._cache and self._cache[0].offset <= last:
            kept = [row for row in self._cache if row.offset not in gone]
            size = sum([row.size for row in self._cache]) - sum([row.size for row in kept])
            self._source.cache.bytes -= size + (len(self._cache) - len(kept)) * ROW_MEMORY_BYTES
            self._cache = deque(kept)
        if self._returned:
            self._returned = deque([row for row in self._returned if row.offset not in gone])
        self._held.evict(gone)

    def forget_evicted(self, offsets: Iterable[int]) -> None:
        """Take note that displaced rows are not in the file any more; others may be among them."""
        if self._leaving:
            self._leaving.difference_update(offsets)

    def come_back(self, offset: int) -> None:
        """Let a displaced row that is still in the file be read again."""
        self._leaving.discard(offset)
        if offset < self._position:
            self._held.remember([offset])

    def _leave_to_file(self) -> None:
        """Drop rows that came back and that the file will give again."""
        first, last = self._position, self._checkpointer.proposed
        kept = [row for row in self._returned if not first <= row.offset <= last]
        self._returned = deque(kept)

    def rows_committed(self, rows: Sequence[Row], size: int, handed_out: int) -> None:
        """Keep rows that have just been committed, if the pump is that far and memory allows.

        Args:
            rows: Rows in order.
            size: Sum of their sizes.
            handed_out: So many of the first were read before the commit.
        """
        self.sealed_rows -= len(rows) - handed_out
        cache = self._source.cache
        caught_up = self._position > self._checkpointer.proposed
        self._checkpointer.propose(rows[-1].offset)
        if caught_up and (handed_out or cache.bytes < cache.bytes_max):
            fresh = rows[handed_out:] if handed_out else rows
            if handed_out:
                size = sum([row.size for row in fresh])
            self._cache.extend(fresh)
            cache.bytes += size + len(fresh) * ROW_MEMORY_BYTES
            self._position = rows[-1].offset + 1
        elif handed_out:
            self._mixed_until = max(self._mixed_until, rows[-1].offset)
            self._leave_to_file()
        if self._unripe:
            self.give_back(self._unripe)
            self._unripe = []

    def hold_sender(self, sender: str) -> None:
        """Skip the rows of `sender` from now on."""
        self._held.hold_sender(sender)

    def release_sender(self, sender: str) -> None:
        """Let the rows of `sender` come again, the skipped ones first."""
        self._held.release_sender(sender)

    def holds(self, row: Row) -> bool:
        """Return whether a row is skipped now, for its own sake or its sender's."""
        return self._held.holds(row)

    def hold_row(self, offset: int) -> None:
        """Skip one row from now on."""
        self._held.hold_row(offset)

    def release_row(self, offset: int) -> None:
        """Let one row come again."""
        self._held.release_row(offset)

    def _full(self) -> bool:
        # Both bounds are of memory: offsets of skipped rows, and of rows that have left while the
        # disk takes no deletes.
        return self._held.is_full or self._checkpointer.unstored >= UNSTORED_ROWS_MAX

    def _fill(self, batch: _Batch) -> bool:
        """Move rows from memory into the batch; returns True when it is full."""
        if not self._returned_sorted:
            self._returned = deque(sorted(self._returned, key=lambda row: row.offset))
            self._returned_sorted = True
        # Rows that moved in may be ahead in the cache and lower than what came back meanwhile.
        while self._returned or self._held.recall or self._cache:
            returned = self._returned[0].offset if self._returned else NEVER_MS
            ahead = self._cache[0].offset if self._cache else NEVER_MS
            recalled = self._held.recall[0] if self._held.recall else NEVER_MS
            if recalled < min(returned, ahead):
                return False
            if returned <= ahead:
                full, _, _ = self._move(self._returned, batch, min(recalled, ahead))
            elif self._full():
                return False
            else:
                full, rows, size = self._move(self._cache, batch, min(recalled, returned))
                self._source.cache.bytes -= size + rows * ROW_MEMORY_BYTES
            if full:
                return True
        if self._full():
            return False
        if self._early_rows():
            return self._move_early(batch)
        return False

    def _move(self, source: deque[Row], batch: _Batch, last: int) -> tuple[bool, int, int]:
        """Move rows up to offset `last`, until the batch is full.

        Returns:
            Whether the batch is full; number and bytes of the rows that left `source`.
        """
        now_ms = self._source.hub_time.now_ms()
        holding = bool(self._held)
        room = batch.rows_max - len(batch.rows)
        left = batch.bytes_left
        first = not batch.rows
        taken: list[Row] = []
        rows = size = 0
        full = stale = False
        while source:
            row = source[0]
            if row.offset > last:
                break
            # Expired and stale rows are only passed by: others delete, move and count them.
            if row.fresh_until_ms <= now_ms:
                stale = True
            elif row.expires_ms > now_ms and not (holding and self._hold_back(row)):
                if room == 0 or (row.size > left and not first):
                    full = True
                    break
                taken.append(row)
                first = False
                room -= 1
                left -= row.size
            source.popleft()
            rows += 1
            size += row.size
        if stale:
            self._source.stale_met()
        batch.bytes_left = left
        batch.rows.extend(self._checkpointer.admit(taken))
        return full, rows, size

    def _pass_by_stale(self, batch: _Batch) -> None:
        """Let go of rows that became stale while others were read from the file."""
        now_ms = self._source.hub_time.now_ms()
        stale = [row for row in batch.rows if row.fresh_until_ms <= now_ms]
        if stale:
            self._checkpointer.withdraw(stale)
            batch.rows = [row for row in batch.rows if row.fresh_until_ms > now_ms]
            batch.bytes_left += sum([row.size for row in stale])
            self._source.stale_met()

    def _hold_back(self, row: Row) -> bool:
        if not self._held.holds(row):
            return False
        if row.offset > self._checkpointer.proposed:
            # Not in the file yet, so it could not be read back: looked at again once it is.
            self._unripe.append(row)
        else:
            self._held.skip(row)
        return True

    def _early_rows(self) -> int:
        """Count rows of the open group that may be read before their commit."""
        part = self.open_part
        if part is None or not self._source.offsets.ahead:
            return 0
        if self._cache or self.sealed_rows or self._position <= self._checkpointer.proposed:
            return 0
        count = min(len(part.rows), part.early_max) - part.handed_out
        if count <= 0 or part.rows[part.handed_out].offset > self._source.offsets.reserved:
            return 0
        return count

    def _move_early(self, batch: _Batch) -> bool:
        part = self.open_part
        assert part is not None
        start = part.handed_out
        rows = deque(part.rows[start : start + self._early_rows()])
        count = len(rows)
        full, _, _ = self._move(rows, batch, self._source.offsets.reserved)
        part.handed_out += count - len(rows)
        return full

    async def _refill(self, rows_max: int) -> bool:
        """Bring rows from the file into memory; returns False when there are none to be had."""
        try:
            if self._held.recall:
                await self._read_recalled()
                return True
            if self._full() or self._position > self._checkpointer.proposed:
                return False
            await self._read_ahead(max(rows_max, READ_ROWS_MIN))
        except StoreBusyError as exc:
            log.warning("store.read_failed", queue=self._number, error=str(exc))
            self._paused = True
            self._source.clock.call_later(READ_PAUSE_S, self._resume)
            return False
        return True

    def _resume(self) -> None:
        self._paused = False
        self._wake()

    async def _read_recalled(self) -> None:
        chunk = list(self._held.recall[:RECALL_ROWS])
        rewinds = self._rewinds
        leaving = set(self._leaving)
        job = partial(read_offsets, self._number, chunk, self._decode)
        rows, complete = await self._source.database.run(job)
        if rewinds != self._rewinds:
            return  # some of them will be read at their place again
        # What was released meanwhile may have joined; a row that is not in the file any more has
        # expired while it was held.
        last = chunk[-1] if complete else rows[-1].offset
        self._held.recalled({offset for offset in chunk if offset <= last})
        leaving |= self._leaving
        if leaving:
            rows = [row for row in rows if row.offset not in leaving]
        self._checkpointer.count_unstored(rows)
        self.give_back(rows)

    async def _read_ahead(self, rows_max: int) -> None:
        proposed = self._checkpointer.proposed
        now_ms = self._source.hub_time.now_ms()
        first = self._position
        ranges, end, is_stale = self._zones.readable(first, proposed, now_ms, rows_max)
        if is_stale:
            self._source.stale_met()
        if not ranges:
            self._position = end + 1
            return
        busy = set(self._leaving)
        if first <= self._mixed_until:
            busy.update(self._checkpointer.busy())
        rewinds = self._rewinds
        job = partial(read_ranges, self._number, ranges, now_ms, rows_max, self._decode)
        self._reading_file = True
        try:
            rows, complete = await self._source.database.run(job)
            if rewinds != self._rewinds:
                return
            # Rows committed meanwhile lie above `end` and were not cached: the position was behind.
            self._position = end + 1 if complete else rows[-1].offset + 1
        finally:
            self._reading_file = False
            if first <= self._mixed_until:
                self._leave_to_file()
        busy |= self._leaving
        if busy:
            rows = [row for row in rows if row.offset not in busy]
        if first <= self._mixed_until:
            self._checkpointer.count_unstored(rows)
        self._cache.extend(rows)
        size = sum([row.size for row in rows])
        self._source.cache.bytes += size + len(rows) * ROW_MEMORY_BYTES
