"""The reading side of one queue: what comes out next, and what is held back.

Owns the read position, the cache of rows ahead of it, rows that came back and rows that are held.
Order of reading: rows that came back (they were read before, so they are lower), then the cache,
then the file from the read position on, then, where groups linger, rows of the open group.
Invariant: every row of the file that is neither in flight, nor left, nor held, nor expired is in
exactly one of these places.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.store.database import StoreBusyError
from edgehub.store.encoding import SELECT_COLUMNS, decode_row
from edgehub.store.transaction import json_list

if TYPE_CHECKING:
    import sqlite3
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
READ_BYTES_MAX: Final = 1024 * 1024
RECALL_ROWS: Final = 256
HELD_ROWS_MAX: Final = 1_000_000
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
    """

    database: Database
    clock: Clock
    hub_time: HubTime
    labels: Labels
    store_id: str
    cache: Cache
    offsets: Offsets


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
        "_held_count",
        "_held_rows",
        "_held_senders",
        "_number",
        "_paused",
        "_position",
        "_reading",
        "_recall",
        "_returned",
        "_returned_sorted",
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
        self._number = number
        self._checkpointer = checkpointer
        self._zones = zones
        self._wake = wake
        self._position = position
        self._cache: deque[Row] = deque()
        self._returned: deque[Row] = deque()
        self._returned_sorted = True
        self._recall = array("q")
        self._unripe: list[Row] = []
        self._held_senders: dict[str, array[int]] = {}
        self._held_rows: dict[int, bool] = {}
        self._held_count = 0
        self._reading = False
        self._paused = False

    def has_ready(self) -> bool:
        """Tell whether a row may be had; never False while one can."""
        if self._paused:
            return False
        if self._returned or self._recall:
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
        try:
            while not self._fill(batch) and await self._refill(rows_max):
                pass
        except BaseException:
            self._checkpointer.withdraw(batch.rows)
            self.give_back(batch.rows)
            raise
        finally:
            self._reading = False
        return batch.rows

    def give_back(self, rows: Sequence[Row]) -> None:
        """Take rows back to their old place; they are no longer in flight."""
        if rows:
            self._returned.extend(rows)
            self._returned_sorted = False

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
        if self._unripe:
            self.give_back(self._unripe)
            self._unripe = []

    def hold_sender(self, sender: str) -> None:
        """Skip the rows of `sender` from now on."""
        self._held_senders.setdefault(sender, array("q"))

    def release_sender(self, sender: str) -> None:
        """Let the rows of `sender` come again, the skipped ones first."""
        skipped = self._held_senders.pop(sender, None)
        if skipped:
            self._held_count -= len(skipped)
            self._remember(skipped)

    def hold_row(self, offset: int) -> None:
        """Skip one row from now on."""
        self._held_rows.setdefault(offset, False)

    def release_row(self, offset: int) -> None:
        """Let one row come again."""
        if self._held_rows.pop(offset, False):
            self._held_count -= 1
            self._remember([offset])

    def _remember(self, offsets: Iterable[int]) -> None:
        self._recall = array("q", sorted([*self._recall, *offsets]))

    def _full(self) -> bool:
        # Both bounds are of memory: offsets of skipped rows, and of rows that have left while the
        # disk takes no deletes.
        return self._held_count >= HELD_ROWS_MAX or self._checkpointer.unstored >= UNSTORED_ROWS_MAX

    def _fill(self, batch: _Batch) -> bool:
        """Move rows from memory into the batch; returns True when it is full."""
        if not self._returned_sorted:
            self._returned = deque(sorted(self._returned, key=lambda row: row.offset))
            self._returned_sorted = True
        recall = self._recall
        if self._returned and self._move(self._returned, batch, recall[0] if recall else None)[0]:
            return True
        if recall or self._full():
            return False
        if self._cache:
            full, rows, size = self._move(self._cache, batch, None)
            self._source.cache.bytes -= size + rows * ROW_MEMORY_BYTES
            if full:
                return True
        if self._early_rows():
            return self._move_early(batch)
        return False

    def _move(self, source: deque[Row], batch: _Batch, below: int | None) -> tuple[bool, int, int]:
        """Move rows until the batch is full.

        Returns:
            Whether the batch is full; number and bytes of the rows that left `source`.
        """
        now_ms = self._source.hub_time.now_ms()
        holding = bool(self._held_senders or self._held_rows)
        room = batch.rows_max - len(batch.rows)
        left = batch.bytes_left
        first = not batch.rows
        taken: list[Row] = []
        rows = size = 0
        full = False
        while source:
            row = source[0]
            if below is not None and row.offset > below:
                break
            # An expired row is only passed by: clean-up deletes and counts it.
            if row.expires_ms > now_ms and not (holding and self._hold_back(row)):
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
        batch.bytes_left = left
        batch.rows.extend(self._checkpointer.admit(taken))
        return full, rows, size

    def _hold_back(self, row: Row) -> bool:
        offset = row.offset
        if offset in self._held_rows:
            if offset > self._checkpointer.proposed:
                self._unripe.append(row)
            else:
                self._held_rows[offset] = True
                self._held_count += 1
            return True
        skipped = self._held_senders.get(row.message.sender)
        if skipped is None:
            return False
        if offset > self._checkpointer.proposed:
            # Not in the file yet, so it could not be read back: looked at again once it is.
            self._unripe.append(row)
        else:
            skipped.append(offset)
            self._held_count += 1
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
            if self._recall:
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
        chunk = list(self._recall[:RECALL_ROWS])
        job = partial(_read_offsets, self._number, chunk, self._source)
        rows, complete = await self._source.database.run(job)
        # What was released meanwhile may have joined; a row that is not in the file any more has
        # expired while it was held.
        last = chunk[-1] if complete else rows[-1].offset
        done = {offset for offset in chunk if offset <= last}
        self._recall = array("q", [offset for offset in self._recall if offset not in done])
        self.give_back(rows)

    async def _read_ahead(self, rows_max: int) -> None:
        proposed = self._checkpointer.proposed
        now_ms = self._source.hub_time.now_ms()
        ranges, end = self._zones.readable(self._position, proposed, now_ms, rows_max)
        if not ranges:
            self._position = end + 1
            return
        job = partial(_read_ranges, self._number, ranges, now_ms, rows_max, self._source)
        rows, complete = await self._source.database.run(job)
        # Rows committed meanwhile lie above `end` and were not cached: the position was behind.
        self._position = end + 1 if complete else rows[-1].offset + 1
        self._cache.extend(rows)
        size = sum([row.size for row in rows])
        self._source.cache.bytes += size + len(rows) * ROW_MEMORY_BYTES


def _read_ranges(
    number: int,
    ranges: list[tuple[int, int]],
    now_ms: int,
    rows_max: int,
    source: ReadSource,
    connection: sqlite3.Connection,
) -> tuple[list[Row], bool]:
    """Read live rows of the ranges; the flag says that nothing of them is left to read."""
    sql = (
        f"{_select(number)} WHERE q.offset BETWEEN ? AND ?"
        " AND (q.expires_ms IS NULL OR q.expires_ms > ?) ORDER BY q.offset"
    )
    rows: list[Row] = []
    for low, high in ranges:
        if not _collect(connection.execute(sql, (low, high, now_ms)), rows, rows_max, source):
            return rows, False
    return rows, True


def _read_offsets(
    number: int, offsets: list[int], source: ReadSource, connection: sqlite3.Connection
) -> tuple[list[Row], bool]:
    sql = (
        f"{_select(number)} WHERE q.offset IN (SELECT value FROM json_each(?))"  # noqa: S608 - our names
        " ORDER BY q.offset"
    )
    rows: list[Row] = []
    cursor = connection.execute(sql, (json_list(offsets),))
    return rows, _collect(cursor, rows, len(offsets) + 1, source)


def _collect(cursor: sqlite3.Cursor, rows: list[Row], rows_max: int, source: ReadSource) -> bool:
    """Decode records until the bounds are met; returns False when some may be left."""
    size = sum([row.size for row in rows])
    for record in cursor:
        row = decode_row(record, source.labels, source.store_id)
        rows.append(row)
        size += row.size
        if len(rows) >= rows_max or size >= READ_BYTES_MAX:
            cursor.close()
            return False
    return True


def _select(number: int) -> str:
    return f"SELECT {SELECT_COLUMNS} FROM q_{number} q LEFT JOIN body b ON b.id = q.body_id"  # noqa: S608 - our names
