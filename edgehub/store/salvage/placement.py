"""Determines the queue of rows whose table has lost its name, by the zone rows.

An offset is used once over all queues, and the zone rows contain how many rows of each 1000 offsets
are in which queue. Pure. Invariant: where two queues are possible none is chosen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Counts = dict[int, int]
"""Zone -> rows."""

ZONE_FIELDS = ("queue", "zone", "rows", "bytes")


class ZoneDepths:
    """What the zone rows of a damaged file say.

    Attributes:
        is_whole: None of them is lost.
    """

    def __init__(self) -> None:
        self.is_whole = True
        self._rows: defaultdict[int, Counts] = defaultdict(dict)
        self._bytes: Counter[int] = Counter()

    def add(self, columns: Sequence[str], record: Sequence[Any]) -> None:
        """Take one zone row; one that was read twice counts once."""
        number, zone, rows, size = (record[columns.index(name)] for name in ZONE_FIELDS)
        if not all(isinstance(value, int) for value in (number, zone, rows, size)):
            self.is_whole = False
        elif zone not in self._rows[number]:
            self._rows[number][zone] = rows
            self._bytes[number] += size

    def expected(self) -> dict[int, tuple[int, int]]:
        """Return rows and bytes by number of the queue; nothing where zone rows are lost."""
        if not self.is_whole:
            return {}
        return {
            number: (sum(rows.values()), self._bytes[number]) for number, rows in self._rows.items()
        }

    def of(self, number: int) -> Counts:
        """Return the rows by zone of one queue; nothing where zone rows are lost."""
        return self._rows.get(number, {}) if self.is_whole else {}

    def queue_of(self, found: Counts, numbers: Iterable[int]) -> int:
        """Return the queue of a table by its rows; 0 = that is not certain."""
        if not self.is_whole:
            return 0
        known = {number: self._rows.get(number, {}) for number in numbers}
        equal = [number for number, rows in known.items() if rows == found]
        return _only(equal) or _only(queues_of(found, known))

    def without(self, present: Mapping[int, Counts]) -> dict[int, Counts]:
        """Return what is missing by number of the queue, where `present` was found."""
        return {
            number: {
                zone: rows - present.get(number, {}).get(zone, 0) for zone, rows in zones.items()
            }
            for number, zones in self._rows.items()
        }


def queues_of(found: Counts, missing: Mapping[int, Counts]) -> list[int]:
    """List the queues that miss as many rows as were found on a page, and at these offsets."""
    return [number for number, rows in missing.items() if _covers(rows, found)]


def counts_of(offsets: Iterable[int]) -> Counts:
    """Count rows by zone."""
    return Counter(offset // ZONE_OFFSETS for offset in offsets)


def _covers(rows: Counts, found: Counts) -> bool:
    return all(rows.get(zone, 0) >= count for zone, count in found.items())


def _only(numbers: list[int]) -> int:
    return numbers[0] if len(numbers) == 1 else 0
