"""Copies what can be read of a damaged database file into a new one, table by table.

The records come from `damaged_file.py`. Invariant: a row is copied whole and validated, or counted
as lost.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.message import (
    BEST_PRIORITY,
    DEFAULT_PRIORITY,
    WORST_EXPLICIT_PRIORITY,
    EndpointId,
    Priority,
    queue_id,
)
from edgehub.storage.durable_files import make_private_file
from edgehub.storage.sqlite_transaction import in_transaction
from edgehub.store.database import configure
from edgehub.store.migrations import migrate
from edgehub.store.salvage.damaged_file import Table, damaged_file, queue_shape
from edgehub.store.salvage.orphaned_rows import OrphanedRows
from edgehub.store.salvage.placement import ZoneDepths, counts_of
from edgehub.store.salvage.row_validation import RowValidator
from edgehub.store.transaction import (
    create_queue_table,
    lowest_row,
    offset_ranges,
    rebuild_zones,
)
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from edgehub.store.event_log import Depth, OffsetRange
    from edgehub.store.salvage.damaged_file import DamagedFile
    from edgehub.store.salvage.placement import Counts
    from edgehub.store.salvage.row_validation import Check, Record

RANGES_MAX: Final = 100
"""Ranges of missing offsets that are reported of one queue."""
REBUILT: Final = frozenset({"queue", "zone"})
REGISTRY_INDEX: Final = "sqlite_autoindex_queue_1"
PRIORITIES: Final = frozenset(
    {*range(BEST_PRIORITY, WORST_EXPLICIT_PRIORITY + 1), DEFAULT_PRIORITY}
)


class Salvaged(Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        rows: Rows of queues that were saved.
        lost: Endpoint, priority, rows and bytes that are known to be missing, by queue.
        offsets: Endpoint, priority, first and last offset: what is missing is among these.
        is_exact: False = more may be missing than `lost` says.
        tables: Names of other tables of which something is missing.
        is_whole: Nothing is missing, and the file's structure is sound.
    """

    rows: int
    lost: list[Depth]
    offsets: list[OffsetRange]
    is_exact: bool
    tables: list[str]
    is_whole: bool


def salvage(source: Path, target: Path) -> Salvaged:
    """Copy `source` to the new file `target`.

    Raises:
        StoreError, sqlite3.Error: `target` cannot be written, or the disk fails in other ways.
    """
    make_private_file(target)
    into = sqlite3.connect(target, isolation_level=None)
    try:
        configure(into)
        migrate(into)
        # It is deleted if it is not completed, and synced at the end.
        into.execute("PRAGMA journal_mode = OFF")
        into.execute("PRAGMA synchronous = OFF")
        made = dict(into.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0"))
        with damaged_file(source, made) as damaged:
            result = in_transaction(into, lambda _: _Salvage(damaged, into).run())
        into.execute("PRAGMA synchronous = FULL")
        into.execute("PRAGMA journal_mode = WAL")
        into.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        into.close()
    return result


class _Salvage:
    def __init__(self, source: DamagedFile, into: sqlite3.Connection) -> None:
        self._source = source
        self._into = into
        self._rows = 0
        self._lost: list[Depth] = []
        self._offsets: list[OffsetRange] = []
        self._is_exact = True
        self._incomplete: set[str] = set()
        self._check = RowValidator()
        self._numbers: dict[int, tuple[EndpointId, Priority]] = {}
        self._queues: dict[int, Table] = {}
        self._shape = queue_shape()
        self._parked = 0

    def run(self) -> Salvaged:
        """Copy everything."""
        names = [
            name
            for (name,) in self._into.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table'"
                " AND name NOT LIKE 'sqlite_%' ORDER BY name <> 'label'"
            )
            if name not in REBUILT
        ]
        for name in names:
            self._table(Table(self._into, name))
        listed = self._source.listed
        if listed is not None and listed.store_id:
            self._into.execute(
                "INSERT OR IGNORE INTO meta (key, value) VALUES ('store_id', ?)", (listed.store_id,)
            )
        self._all_queues()
        sound = self._source.is_sound()
        return Salvaged(
            rows=self._rows,
            lost=self._lost,
            offsets=self._offsets,
            is_exact=self._is_exact,
            tables=sorted(self._incomplete),
            is_whole=sound and not self._lost and self._is_exact and not self._incomplete,
        )

    def _table(self, table: Table, *, root: int = 0) -> None:
        records = self._source.records(table, root=root)
        self._copy(table, records)
        if not records.is_whole or self._check.refused:
            self._incomplete.add(table.name)

    def _copy(self, table: Table, records: Iterable[Record]) -> int:
        """Write the records that pass; return how many."""
        check: Check = self._check.of(table.name, table.columns)
        sql = (
            f"INSERT OR IGNORE INTO {table.name} ({', '.join(table.columns)})"  # noqa: S608 - our names
            f" VALUES ({', '.join('?' * len(table.columns))})"
        )
        before = self._into.total_changes
        for record in records:
            values = check(record)
            if values is None:
                continue
            try:
                self._into.execute(sql, values)
            except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError):
                self._check.refused += 1  # a value that no column of ours holds
        return self._into.total_changes - before

    def _all_queues(self) -> None:
        zones = self._zones()
        self._is_exact = zones.is_whole
        self._numbers = self._registered()
        for number in self._numbers:
            self._make_queue(number)
        names = [name[2:] for name in self._source.names if name.startswith("q_")]
        named = {int(name) for name in names if name.isascii() and name.isdigit()}
        for number in sorted(named):
            self._table(self._make_queue(number))
        expected = zones.expected()
        for number in expected:
            self._make_queue(number)
        if self._source.has_recovered_pages:
            self._nameless(zones, [number for number in self._numbers if number not in named])
            orphaned = OrphanedRows(self._source, self._into, self._queues, self._shape, self._copy)
            orphaned.place_bodies(Table(self._into, "body"))
            if orphaned.place(zones, self._make_parked):
                self._is_exact = False
        self._bodies()
        for number in sorted(self._numbers):
            found = {zone: rows for zone, _, _, _, rows, *_ in rebuild_zones(self._into, number)}
            self._settle(number, expected.get(number, (0, 0)))
            self._note_offsets(number, found, zones.of(number))

    def _make_queue(self, number: int) -> Table:
        """Enter a queue and make its table, once."""
        if number not in self._queues:
            if number not in self._numbers:
                # Its rows wait until an operator moves them.
                self._numbers[number] = (EndpointId(f"salvaged-{number}"), DEFAULT_PRIORITY)
            endpoint_id, priority = self._numbers[number]
            self._into.execute(
                "INSERT OR REPLACE INTO queue (number, name, endpoint_id, priority, checkpoint)"
                " VALUES (?, ?, ?, ?, 0)",
                (number, queue_id(endpoint_id, priority), endpoint_id, priority),
            )
            create_queue_table(self._into, number)
            self._queues[number] = Table(self._into, f"q_{number}")
        return self._queues[number]

    def _nameless(self, zones: ZoneDepths, numbers: Collection[int]) -> None:
        """Copy the tables of queues whose names are lost; `numbers` are queues without a table."""
        for root in self._source.page_recovery.nameless():
            records = self._source.records(self._shape, root=root)
            found = counts_of(record[0] for record in records)
            if found:
                number = zones.queue_of(found, numbers) or self._free_number()
                self._table(self._make_queue(number), root=root)

    def _free_number(self) -> int:
        return 1 + max(self._numbers, default=0)

    def _make_parked(self) -> Table:
        self._parked = self._parked or self._free_number()
        return self._make_queue(self._parked)

    def _registered(self) -> dict[int, tuple[EndpointId, Priority]]:
        """Return endpoint and priority by number, also of queues that only copies still know."""
        records = self._source.records(Table(self._into, "queue"))
        known = [(number, *queue) for number, _, *queue, _ in records]
        if not records.is_whole:
            index = self._source.page_recovery.table(REGISTRY_INDEX, has_rowid=False)
            for _, record in index or ():
                known.extend([(number, *queue) for *queue, number in [record]])
        if self._source.listed is not None:
            known.extend(self._source.listed.queues)
        found: dict[int, tuple[EndpointId, Priority]] = {}
        for number, *queue in known:
            if isinstance(number, int) and number > 0 and number not in found and _is_queue(queue):
                found[number] = (EndpointId(queue[0]), Priority(queue[1]))
        return found

    def _zones(self) -> ZoneDepths:
        zones = ZoneDepths()
        table = Table(self._into, "zone")
        records = self._source.records(table)
        for record in records:
            zones.add(table.columns, record)
        zones.is_whole &= records.is_whole
        return zones

    def _bodies(self) -> None:
        """Make shared bodies and the rows that refer to them fit each other."""
        self._into.execute("UPDATE body SET refs = 0")
        for number in self._numbers:
            self._into.execute(
                f"DELETE FROM q_{number} WHERE body_id IS NOT NULL"  # noqa: S608 - our number
                " AND body_id NOT IN (SELECT id FROM body)"
            )
            for offsets in offset_ranges(self._into, number):
                self._into.execute(
                    "UPDATE body SET refs = refs + shared.rows FROM (SELECT body_id,"  # noqa: S608 - our number
                    f" count(*) AS rows FROM q_{number} WHERE offset BETWEEN ? AND ?"
                    " AND body_id IS NOT NULL GROUP BY body_id) AS shared"
                    " WHERE id = shared.body_id",
                    offsets,
                )
        self._into.execute("DELETE FROM body WHERE refs = 0")

    def _settle(self, number: int, expected: tuple[int, int]) -> None:
        endpoint_id, priority = self._numbers[number]
        rows, size = self._into.execute(
            f"SELECT count(*), coalesce(sum(size), 0) FROM q_{number}"  # noqa: S608 - our number
        ).fetchone()
        lowest = lowest_row(self._into, number)
        self._into.execute(
            "UPDATE queue SET checkpoint = ? WHERE number = ?",
            (0 if lowest is None else lowest[0] - 1, number),
        )
        self._rows += rows
        incomplete = f"q_{number}" in self._incomplete
        self._incomplete.discard(f"q_{number}")
        if expected[0] > rows:
            self._lost.append(
                (endpoint_id, priority, expected[0] - rows, max(0, expected[1] - size))
            )
        elif incomplete and expected[0] != rows:
            self._is_exact = False

    def _note_offsets(self, number: int, found: Counts, expected: Counts) -> None:
        """Record between which offsets rows are missing; neighbouring ranges are one."""
        queue = self._numbers[number]
        highest: int | None = None
        if "boot" not in self._incomplete:
            (highest,) = self._into.execute("SELECT max(high_water) FROM boot").fetchone()
        ranges: list[tuple[int, int]] = []
        for zone in sorted(zone for zone, rows in expected.items() if found.get(zone, 0) < rows):
            low, high = zone * ZONE_OFFSETS, zone * ZONE_OFFSETS + ZONE_OFFSETS - 1
            sql = f"SELECT offset FROM q_{number} WHERE offset BETWEEN ? AND ?"  # noqa: S608 - our number
            present = {offset for (offset,) in self._into.execute(sql, (low, high))}
            handed_out = range(max(low, 1), min(high, highest or high) + 1)
            absent = sorted({*handed_out} - present)
            if not absent:
                continue  # a zone row that is wrong
            if ranges and (absent[0] == ranges[-1][1] + 1 or len(ranges) == RANGES_MAX):
                ranges[-1] = (ranges[-1][0], absent[-1])
            else:
                ranges.append((absent[0], absent[-1]))
        self._offsets += [(*queue, *each) for each in ranges]


def _is_queue(values: Sequence[Any]) -> bool:
    endpoint_id, priority = values
    return isinstance(endpoint_id, str) and priority in PRIORITIES
