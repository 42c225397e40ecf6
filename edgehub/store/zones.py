"""Summaries of the rows of a queue: one entry per 1000 offsets.

Owns the zone entries of one queue in memory, 56 bytes each, and with them its depth and bytes.
They change after a transaction that wrote the same values has committed, so they equal the table
`zone` and the rows at any moment. Invariant: an entry covers every row of its zone; it is
removed with its last row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from edgehub.message import Row

BLOCK_ZONES: Final = 512
ZONE_OFFSETS: Final = 1000

ZoneValues = tuple[int, int, int, int, int, int, int]
"""zone, min expiry, max expiry, latest end of freshness, rows, bytes, earliest end of freshness; of
a row without time to live or recency that is `NEVER_MS`."""


class ZoneChange(Struct):
    """What one transaction does to one zone."""

    rows: int = 0
    bytes: int = 0
    min_expires_ms: int = NEVER_MS
    max_expires_ms: int = 0
    fresh_until_ms: int = 0
    stale_from_ms: int = NEVER_MS


class ZoneChanges:
    """What one transaction does to the zones of one queue."""

    __slots__ = ("zones",)

    def __init__(self) -> None:
        self.zones: defaultdict[int, ZoneChange] = defaultdict(ZoneChange)

    def add_rows(self, rows: Sequence[Row], *, recency: bool = False) -> None:
        """Count rows that join; `recency` = some of them have it."""
        start = 0
        while start < len(rows):
            zone = rows[start].offset // ZONE_OFFSETS
            end = len(rows)
            if rows[-1].offset // ZONE_OFFSETS != zone:
                end = bisect_left(rows, (zone + 1) * ZONE_OFFSETS, start, key=_offset_of)
            part = rows if end - start == len(rows) else rows[start:end]
            expiries = [row.expires_ms for row in part]
            lowest, highest = min(expiries), max(expiries)
            change = self.zones[zone]
            change.rows += len(part)
            change.bytes += sum([row.size for row in part])
            change.min_expires_ms = min(change.min_expires_ms, lowest)
            change.max_expires_ms = max(change.max_expires_ms, highest)
            if recency:
                ends = [row.fresh_until_ms for row in part]
                change.stale_from_ms = min(change.stale_from_ms, *ends)
                change.fresh_until_ms = max(change.fresh_until_ms, *ends)
            else:
                change.fresh_until_ms = NEVER_MS
            start = end

    def remove_rows(self, offsets: Iterable[int], sizes: Iterable[int]) -> None:
        """Count rows that leave."""
        current = -1
        change: ZoneChange | None = None
        for offset, size in zip(offsets, sizes, strict=True):
            zone = offset // ZONE_OFFSETS
            if change is None or zone != current:
                change = self.zones[zone]
                current = zone
            change.rows -= 1
            change.bytes -= size


class Zones:
    """The zones of one queue, in order."""

    __slots__ = (
        "_bytes",
        "_columns",
        "_expiry_bound",
        "_fresh",
        "_max",
        "_min",
        "_rows",
        "_stale",
        "_stale_bound",
        "_zones",
        "bytes",
        "depth",
    )

    def __init__(self, stored: Iterable[ZoneValues] = ()) -> None:
        self._columns = [array("q") for _ in range(7)]
        self._zones, self._min, self._max, self._fresh, *others = self._columns
        self._rows, self._bytes, self._stale = others
        # Lower bounds of their columns: most scans end at these.
        self._expiry_bound: int = NEVER_MS
        self._stale_bound: int = NEVER_MS
        self.depth = 0
        self.bytes = 0
        for values in stored:
            self._insert(len(self._zones), values)
            self.depth += values[4]
            self.bytes += values[5]

    def __len__(self) -> int:
        return len(self._zones)

    def __iter__(self) -> Iterator[ZoneValues]:
        for index in range(len(self._zones)):
            yield self._values(index)

    @property
    def min_expires_ms(self) -> int:
        """Lower bound of the expiries of all rows."""
        return min(self._min, default=NEVER_MS)

    def expired_from_ms(self, now_ms: int) -> int:
        """Return the same if it is in the past, else any later time: that costs no scan."""
        return self._expiry_bound if now_ms < self._expiry_bound else self.min_expires_ms

    def values_after(self, changes: ZoneChanges) -> list[ZoneValues]:
        """Return the entries as they are once `changes` are done; 0 rows = the entry goes."""
        result: list[ZoneValues] = []
        for zone, change in changes.zones.items():
            values = self.get(zone)
            if values is None:
                values = (zone, NEVER_MS, 0, 0, 0, 0, NEVER_MS)
            rows = values[4] + change.rows
            size = values[5] + change.bytes
            assert rows >= 0, (zone, rows)
            assert size >= 0, (zone, size)
            assert (rows == 0) == (size == 0), (zone, rows, size)
            result.append(
                (
                    zone,
                    min(values[1], change.min_expires_ms),
                    max(values[2], change.max_expires_ms),
                    max(values[3], change.fresh_until_ms),
                    rows,
                    size,
                    min(values[6], change.stale_from_ms),
                )
            )
        return result

    def get(self, zone: int) -> ZoneValues | None:
        """Return the entry of one zone, None = it has no rows."""
        index = bisect_left(self._zones, zone)
        if index < len(self._zones) and self._zones[index] == zone:
            return self._values(index)
        return None

    def first_from(self, zone: int) -> ZoneValues | None:
        """Return the first entry at or above `zone`, None = there is none."""
        index = bisect_left(self._zones, zone)
        return self._values(index) if index < len(self._zones) else None

    def replace(self, entries: Iterable[ZoneValues]) -> None:
        """Replace entries by those that have been committed."""
        for values in entries:
            index = bisect_left(self._zones, values[0])
            if index < len(self._zones) and self._zones[index] == values[0]:
                self.depth -= self._rows[index]
                self.bytes -= self._bytes[index]
                if values[4]:
                    self._set(index, values)
                else:
                    self._delete(index)
            elif values[4]:
                self._insert(index, values)
            self.depth += values[4]
            self.bytes += values[5]

    def readable(
        self, first: int, last: int, now_ms: int, rows_max: int
    ) -> tuple[list[tuple[int, int]], int, bool]:
        """Choose offset ranges to read, passing zones that are empty, wholly expired or stale.

        Args:
            first: Lowest offset that may be read.
            last: Highest offset that may be read.
            now_ms: Hub time.
            rows_max: Ranges with about this number of rows suffice.

        Returns:
            Ranges (both ends included), the offset up to which they cover the queue, and whether
            stale rows may be on the way.
        """
        ranges: list[tuple[int, int]] = []
        rows = 0
        is_stale = False
        for index in range(bisect_left(self._zones, first // ZONE_OFFSETS), len(self._zones)):
            low = max(first, self._zones[index] * ZONE_OFFSETS)
            high = min(last, self._zones[index] * ZONE_OFFSETS + ZONE_OFFSETS - 1)
            if low > last:
                break
            is_stale = is_stale or self._stale[index] <= now_ms
            if self._max[index] <= now_ms or self._fresh[index] <= now_ms:
                continue
            if ranges and ranges[-1][1] + 1 == low:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
            rows += self._rows[index]
            # The first zone may have been read in part, so one more than needed is chosen.
            if rows >= rows_max + ZONE_OFFSETS:
                return ranges, high, is_stale
        return ranges, last, is_stale

    def expired(self, now_ms: int, *, head_only: bool = False) -> list[int]:
        """List the zones in which some row may have expired, lowest first.

        `head_only` ends the list at the first zone in which none has.
        """
        if now_ms < self._expiry_bound:
            return []
        if not head_only:
            due, self._expiry_bound = _due(self._min, now_ms)
            return [self._zones[index] for index in due]
        zones: list[int] = []
        for zone, expiry in zip(self._zones, self._min, strict=True):
            if expiry > now_ms:
                break
            zones.append(zone)
        return zones

    def stale(self, now_ms: int) -> list[int]:
        """List the zones in which some row may have become stale, lowest first."""
        if now_ms < self._stale_bound:
            return []
        due, self._stale_bound = _due(self._stale, now_ms)
        return [self._zones[index] for index in due]

    @property
    def stale_from_ms(self) -> int:
        """Lower bound of the ends of freshness of all rows."""
        return min(self._stale, default=NEVER_MS)

    def span(self) -> tuple[int, int]:
        """Return the first and the last zone; there must be one."""
        return self._zones[0], self._zones[-1]

    def _values(self, index: int) -> ZoneValues:
        zone, low, high, fresh, rows, size, stale = [column[index] for column in self._columns]
        return zone, low, high, fresh, rows, size, stale

    def _set(self, index: int, values: ZoneValues) -> None:
        self._bound(values)
        for column, value in zip(self._columns, values, strict=True):
            column[index] = value

    def _bound(self, values: ZoneValues) -> None:
        self._expiry_bound = min(self._expiry_bound, values[1])
        self._stale_bound = min(self._stale_bound, values[6])

    def _insert(self, index: int, values: ZoneValues) -> None:
        self._bound(values)
        for column, value in zip(self._columns, values, strict=True):
            column.insert(index, value)

    def _delete(self, index: int) -> None:
        for column in self._columns:
            del column[index]


def _due(times: array[int], now_ms: int) -> tuple[list[int], int]:
    """Return the places of the times up to now, and the lowest time of all."""
    lowest: int = NEVER_MS
    due: list[int] = []
    # Ten thousand zones are scanned every few seconds; blocks without any cost little.
    for start in range(0, len(times), BLOCK_ZONES):
        block = times[start : start + BLOCK_ZONES]
        least = min(block)
        lowest = min(lowest, least)
        if least <= now_ms:
            due += [start + place for place, time in enumerate(block) if time <= now_ms]
    return due, lowest


def _offset_of(row: Row) -> int:
    return row.offset
