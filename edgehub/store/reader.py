"""Reads one queue: which rows the pump gets next, and which are held back.

Owns the read position, the cache of rows behind it, rows that were given back and rows that are
held. Order of reading: by offset over rows given back, released rows and the cache, then the file
from the read position on, then rows of groups that are not committed yet. Invariant: every row of
the file that is neither in flight, nor left, nor held, nor expired is in exactly one of
these places.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.message import NEVER_MS
from edgehub.store.database import StoreBusyError
from edgehub.store.encoding import decode_row
from edgehub.store.held_rows import HeldRows
from edgehub.store.row_reading import read_offsets, read_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.message import Row
    from edgehub.store.checkpointer import Checkpointer
    from edgehub.store.queue_rows import QueueRows
    from edgehub.store.shared_state import SharedState
    from edgehub.store.zones import Zones

log = structlog.get_logger(__name__)

ROW_MEMORY_BYTES: Final = 700
"""Memory of a row in addition to its size: row, message, dictionaries, texts."""
READ_ROWS_MIN: Final = 256
RECALL_ROWS: Final = 256
UNSTORED_ROWS_MAX: Final = 1_000_000
READ_PAUSE_S: Final = 1.0


class _Batch(Struct, eq=False):
    rows_max: int
    bytes_left: int
    rows: list[Row] = []


class Reader:
    """The rows of one queue on their way to the pump."""

    __slots__ = (
        "_cache",
        "_checkpointer",
        "_decode",
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
        "_shared",
        "_uncommitted_held",
        "_wake",
        "_zones",
        "held",
        "open_rows",
        "sealed",
    )

    def __init__(
        self,
        shared: SharedState,
        number: int,
        checkpointer: Checkpointer,
        zones: Zones,
        wake: Callable[[], None],
        *,
        position: int,
    ) -> None:
        self.open_rows: QueueRows | None = None
        """Those of the open group."""
        self.sealed: deque[QueueRows] = deque()
        """Those of groups that take no more and are not committed: they precede the open rows."""
        self._shared = shared
        self._decode = partial(decode_row, labels=shared.labels, store_id=shared.store_id)
        self._number = number
        self._checkpointer = checkpointer
        self._zones = zones
        self._wake = wake
        self._position = position
        self._cache: deque[Row] = deque()
        self._returned: deque[Row] = deque()
        self._returned_sorted = True
        self._uncommitted_held: list[Row] = []
        self.held = HeldRows()
        self._reading = False
        self._paused = False
        self._reading_file = False
        self._rewinds = 0
        self._leaving: set[int] = set()
        """Rows that are evicted and still in the file."""
        self._mixed_until = -1
        """Up to here rows behind the position may have been read before: it went back."""

    def has_ready(self) -> bool:
        """Return whether a row may be ready; never False while one is."""
        if self._paused:
            return False
        if self._returned or self.held.recall:
            return True
        if self._full():
            return False
        return (
            bool(self._cache)
            or self._position <= self._checkpointer.proposed
            or self._early_rows() is not None
        )

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Read the oldest rows that are ready; they are in flight from then on."""
        assert rows_max > 0
        assert not self._reading, "a queue has one reader"
        self._reading = True
        batch = _Batch(rows_max, bytes_max)
        was_read = False
        try:
            while not self._fill(batch):
                was_read = True
                has_more = await self._refill(rows_max)
                self._remove_stale(batch)
                if not has_more:
                    break
        except BaseException:
            self._checkpointer.withdraw(batch.rows)
            self.give_back(batch.rows)
            raise
        finally:
            self._reading = False
        if was_read:
            # Lower rows may have been given back, or moved in, during the read.
            batch.rows.sort(key=attrgetter("offset"))
        return batch.rows

    def rows_ahead(self) -> Iterable[Row]:
        """Return the rows of the file that are in memory and not in flight."""
        return chain(self._returned, self._cache, self._uncommitted_held)

    def give_back(self, rows: Sequence[Row]) -> None:
        """Return rows to their place; they are no longer in flight."""
        if self._leaving:
            # Rows that were read by their offsets are read so again.
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
        """Remove a row that was read before its commit and will never be in the file."""
        self._checkpointer.refuse(offset)
        self._returned = deque([row for row in self._returned if row.offset != offset])
        self._uncommitted_held = [row for row in self._uncommitted_held if row.offset != offset]

    def go_back(self, lowest: int) -> None:
        """Read again from `lowest` on: rows were moved to places that were read before."""
        if lowest >= self._position and not self._reading_file:
            return
        # A read that runs now returns the rows of before.
        self._rewinds += 1
        self._mixed_until = max(self._mixed_until, self._position - 1)
        self._position = min(self._position, lowest)
        self._keep_cached([row for row in self._cache if row.offset < lowest])
        self.held.go_back(lowest)
        self._leave_to_file()

    def release(self, who: str | int) -> None:
        """End the hold of a sender or of a row; what was skipped is read next."""
        self.held.release(who)
        self._return_uncommitted()

    def drop_stale(self) -> None:
        """Remove stale rows at the head of the cache; they are in another queue now."""
        now_ms = self._shared.hub_time.now_ms()
        cache = self._cache
        while cache and cache[0].fresh_until_ms <= now_ms:
            self._shared.cache.bytes -= cache.popleft().size + ROW_MEMORY_BYTES

    def evict(self, offsets: Sequence[int]) -> None:
        """Remove rows that are evicted; they are not in flight."""
        evicted = set(offsets)
        self._leaving |= evicted
        last = offsets[-1]
        if self._cache and self._cache[0].offset <= last:
            self._keep_cached([row for row in self._cache if row.offset not in evicted])
        if self._returned:
            self._returned = deque([row for row in self._returned if row.offset not in evicted])
        self.held.evict(evicted)

    def forget_evicted(self, offsets: Iterable[int]) -> None:
        """Record that evicted rows are not in the file any more; others may be among them."""
        if self._leaving:
            self._leaving.difference_update(offsets)

    def restore(self, offset: int) -> None:
        """Read an evicted row again that is still in the file."""
        self._leaving.discard(offset)
        if offset < self._position:
            self.held.remember([offset])

    def _keep_cached(self, kept: Sequence[Row]) -> None:
        size = sum([row.size for row in self._cache]) - sum([row.size for row in kept])
        self._shared.cache.bytes -= size + (len(self._cache) - len(kept)) * ROW_MEMORY_BYTES
        self._cache = deque(kept)

    def _leave_to_file(self) -> None:
        """Drop rows given back that are read from the file again."""
        first, last = self._position, self._checkpointer.proposed
        kept = [row for row in self._returned if not first <= row.offset <= last]
        self._returned = deque(kept)

    def remove(self, joined: QueueRows) -> None:
        """Forget the rows of a group: none of them is left, or none will be in the file."""
        if joined is self.open_rows:
            self.open_rows = None
        else:
            self.sealed.remove(joined)

    def split(self, joined: QueueRows, parts: Sequence[QueueRows]) -> None:
        """Replace the rows of the group that is committed next by those of parts of it."""
        first = self.sealed.popleft()
        assert first is joined
        self.sealed.extendleft(reversed(parts))

    def uncommitted(self) -> list[QueueRows]:
        """Return the rows of groups that are not committed yet, in order."""
        opened = self.open_rows
        return [*self.sealed] if opened is None else [*self.sealed, opened]

    def uncommitted_between(self, first: int, last: int) -> list[QueueRows]:
        """Return those that may have rows from offset `first` to `last`."""
        if last <= self._checkpointer.proposed:
            return []
        # While commits fail, any number of groups may wait.
        return [
            joined
            for joined in self.uncommitted()
            if joined.rows[0].offset <= last and joined.rows[-1].offset >= first
        ]

    def uncommitted_rows(self) -> list[Row]:
        """Return the rows that are not committed yet and have not left before."""
        return [
            row
            for joined in self.uncommitted()
            for row in joined.rows
            if row.offset not in joined.withdrawn
        ]

    def rows_committed(self, joined: QueueRows) -> None:
        """Cache rows that have just been committed, if the pump is that far and memory allows."""
        rows, size, handed_out = joined.rows, joined.bytes, joined.handed_out
        self.remove(joined)
        if joined.recency and handed_out:
            # Those that were skipped could not be moved before.
            now_ms = self._shared.hub_time.now_ms()
            if any(row.fresh_until_ms <= now_ms for row in rows[:handed_out]):
                self._shared.staleness.met()
        cache = self._shared.cache
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
            if not self._reading_file:  # rows in flight when it began are not among those read
                self._leave_to_file()
        self._return_uncommitted()

    def _return_uncommitted(self) -> None:
        """Check again whether rows that wait for their commit are held."""
        if self._uncommitted_held:
            rows, self._uncommitted_held = self._uncommitted_held, []
            self.give_back(rows)

    def _full(self) -> bool:
        # Both bounds are of memory: offsets of skipped rows, and of rows that have left while the
        # disk takes no deletes.
        return self.held.is_full or self._checkpointer.unstored >= UNSTORED_ROWS_MAX

    def _fill(self, batch: _Batch) -> bool:
        """Move rows from memory into the batch; return True when it is full."""
        if not self._returned_sorted:
            self._returned = deque(sorted(self._returned, key=lambda row: row.offset))
            self._returned_sorted = True
        # Rows in the cache may be lower than rows given back: they were moved in.
        while self._returned or self.held.recall or self._cache:
            returned = self._returned[0].offset if self._returned else NEVER_MS
            ahead = self._cache[0].offset if self._cache else NEVER_MS
            recalled = self.held.recall[0] if self.held.recall else NEVER_MS
            if recalled < min(returned, ahead):
                return False
            if returned <= ahead:
                full, _, _ = self._move(self._returned, batch, min(recalled, ahead))
            elif self._full():
                return False
            else:
                full, rows, size = self._move(self._cache, batch, min(recalled, returned))
                self._shared.cache.bytes -= size + rows * ROW_MEMORY_BYTES
            if full:
                return True
        if self._full():
            return False
        while (joined := self._early_rows()) is not None:
            if self._move_early(joined, batch):
                return True
        return False

    def _move(self, source: deque[Row], batch: _Batch, last: int) -> tuple[bool, int, int]:
        """Move rows up to offset `last`, until the batch is full.

        Returns:
            Whether the batch is full; number and bytes of the rows that left `source`.
        """
        now_ms = self._shared.hub_time.now_ms()
        holding = bool(self.held)
        room = batch.rows_max - len(batch.rows)
        left = batch.bytes_left
        first = not batch.rows
        taken: list[Row] = []
        rows = size = 0
        full = stale = False
        for row in source:
            if row.offset > last:
                break
            # Expired and stale rows are only skipped: clean-up and demotion count them.
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
            rows += 1
            size += row.size
        if rows == len(source):
            source.clear()
        else:
            for _ in range(rows):
                source.popleft()
        if stale:
            self._shared.staleness.met()
        batch.bytes_left = left
        batch.rows.extend(self._checkpointer.admit(taken))
        return full, rows, size

    def _remove_stale(self, batch: _Batch) -> None:
        """Remove rows that became stale while others were read from the file."""
        now_ms = self._shared.hub_time.now_ms()
        stale = [row for row in batch.rows if row.fresh_until_ms <= now_ms]
        if stale:
            self._checkpointer.withdraw(stale)
            batch.rows = [row for row in batch.rows if row.fresh_until_ms > now_ms]
            batch.bytes_left += sum([row.size for row in stale])
            self._shared.staleness.met()

    def _hold_back(self, row: Row) -> bool:
        if not self.held.holds(row):
            return False
        if row.offset > self._checkpointer.proposed:
            # Not in the file yet, so it cannot be read again: checked once it is, or no more held.
            self._uncommitted_held.append(row)
        else:
            self.held.skip(row)
        return True

    def _early_rows(self) -> QueueRows | None:
        """Return the first rows of which some may be read before their commit, None = none may."""
        if self._cache or self._position <= self._checkpointer.proposed:
            return None
        unread = self.open_rows
        for joined in self.sealed:
            if joined.handed_out < len(joined.rows):
                unread = joined
                break
        if unread is None or unread.handed_out >= min(len(unread.rows), unread.early_max):
            return None
        first = unread.rows[unread.handed_out]
        return unread if first.offset <= self._shared.offsets.early_max else None

    def _move_early(self, joined: QueueRows, batch: _Batch) -> bool:
        rows = deque(joined.rows[joined.handed_out : joined.early_max])
        count = len(rows)
        full, _, _ = self._move(rows, batch, self._shared.offsets.early_max)
        joined.handed_out += count - len(rows)
        return full

    async def _refill(self, rows_max: int) -> bool:
        """Read rows from the file into memory; return False when there are none."""
        try:
            if self.held.recall:
                await self._read_recalled()
                return True
            if self._full() or self._position > self._checkpointer.proposed:
                return False
            await self._read_ahead(max(rows_max, READ_ROWS_MIN))
        except StoreBusyError as exc:
            log.warning("store.read_failed", queue=self._number, error=str(exc))
            self._paused = True
            self._shared.clock.call_later(READ_PAUSE_S, self._resume)
            return False
        return True

    def _resume(self) -> None:
        self._paused = False
        self._wake()

    async def _read_recalled(self) -> None:
        chunk = list(self.held.recall[:RECALL_ROWS])
        rewinds = self._rewinds
        leaving = set(self._leaving)
        job = partial(read_offsets, self._number, chunk, self._decode)
        rows, complete = await self._shared.database.run(job)
        if rewinds != self._rewinds:
            return  # some of them will be read at their place again
        # Rows released during the read may have joined; a row that is not in the file any more has
        # expired while it was held.
        last = chunk[-1] if complete else rows[-1].offset
        self.held.recalled({offset for offset in chunk if offset <= last})
        leaving |= self._leaving
        if leaving:
            rows = [row for row in rows if row.offset not in leaving]
        self._checkpointer.count_unstored(rows)
        self.give_back(rows)

    async def _read_ahead(self, rows_max: int) -> None:
        proposed = self._checkpointer.proposed
        now_ms = self._shared.hub_time.now_ms()
        first = self._position
        ranges, end, is_stale = self._zones.readable(first, proposed, now_ms, rows_max)
        if is_stale:
            self._shared.staleness.met()
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
            rows, complete = await self._shared.database.run(job)
            if rewinds != self._rewinds:
                return
            # Rows committed during the read lie above `end` and were not cached.
            self._position = end + 1 if complete else rows[-1].offset + 1
        finally:
            self._reading_file = False
            if self._position <= self._mixed_until:
                self._leave_to_file()
        busy |= self._leaving
        if busy:
            rows = [row for row in rows if row.offset not in busy]
        if first <= self._mixed_until:
            self._checkpointer.count_unstored(rows)
        self._cache.extend(rows)
        size = sum([row.size for row in rows])
        self._shared.cache.bytes += size + len(rows) * ROW_MEMORY_BYTES
