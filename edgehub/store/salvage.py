"""Copies what can be read of a damaged database file into a new one.

Walks each table by its key: forwards to the first page that cannot be read, backwards to the last,
and by halves in between. Plain SQL on two connections of its own; the damaged file is only read.
Invariant: a row is taken whole and checked, or counted as lost.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from edgehub.message import (
    BEST_PRIORITY,
    DEFAULT_PRIORITY,
    WORST_EXPLICIT_PRIORITY,
    EndpointId,
    Priority,
    queue_id,
)
from edgehub.sqlite_transaction import in_transaction
from edgehub.store.database import Fault, classify, configure
from edgehub.store.migrations import migrate
from edgehub.store.row_check import RowCheck
from edgehub.store.transaction import create_queue_table, lowest_row, rebuild_zones

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgehub.store.event_log import Depth
    from edgehub.store.row_check import Check

FAILURES_MAX: Final = 20_000
"""Reads of one table that may fail; what has not been reached by then is given up."""
KEY_MAX: Final = 2**62
MADE_ANEW: Final = frozenset({"queue", "zone"})
SQLITE_DAMAGE: Final = (Fault.DAMAGE, Fault.BUG)
"""Beside SQLite's own words for damage: texts that are none, columns of the wrong type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """What was found.

    Attributes:
        rows: Rows of queues that were saved.
        lost: Endpoint, priority, rows and bytes that are known to be missing, by queue.
        is_exact: False = more may be missing than `lost` says.
        tables: Names of other tables of which something is missing.
        is_whole: Nothing is missing, and the file's structure is sound.
    """

    rows: int
    lost: list[Depth]
    is_exact: bool
    tables: list[str]
    is_whole: bool


def salvage(source: Path, target: Path) -> Salvaged:
    """Copy `source` to the new file `target`.

    Raises:
        StoreError, sqlite3.Error: `target` cannot be written, or the disk fails in other ways.
    """
    into = sqlite3.connect(target, isolation_level=None)
    try:
        configure(into)
        migrate(into)
        # It is thrown away if it does not become whole, and synced at the end.
        into.execute("PRAGMA journal_mode = OFF")
        into.execute("PRAGMA synchronous = OFF")
        damaged = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
        try:
            damaged.isolation_level = None
            damaged.text_factory = lambda data: data.decode("utf-8", "replace")
            result = in_transaction(into, lambda _: _Salvage(damaged, into).run())
        finally:
            damaged.close()
        into.execute("PRAGMA synchronous = FULL")
        into.execute("PRAGMA journal_mode = WAL")
        into.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        into.close()
    return result


class _Salvage:
    def __init__(self, source: sqlite3.Connection, into: sqlite3.Connection) -> None:
        self._source = source
        self._into = into
        self._rows = 0
        self._lost: list[Depth] = []
        self._is_exact = True
        self._incomplete: set[str] = set()
        self._check = RowCheck()

    def run(self) -> Salvaged:
        """Copy everything."""
        # The first lets SQLite read a file that is shorter than it says, or whose schema has holes.
        self._try("PRAGMA writable_schema = ON")
        self._try("PRAGMA cell_size_check = ON")
        # Where part of the schema is lost, this fails; what comes after it sees the other part.
        self._try("SELECT count(*) FROM sqlite_schema")
        known = {row[0] for row in self._try("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        tables = [
            (name, "WITHOUT ROWID" not in sql)
            for name, sql in self._into.execute(
                "SELECT name, sql FROM sqlite_schema WHERE type = 'table'"
                " AND name NOT LIKE 'sqlite_%' ORDER BY name <> 'label'"
            ).fetchall()
            if name not in MADE_ANEW
        ]
        for name, has_rowid in tables:
            if name in known:
                self._table(name, has_rowid=has_rowid)
            else:
                self._incomplete.add(name)
        self._queues({name for name in known if name.startswith("q_") and name[2:].isdigit()})
        sound = self._try("PRAGMA quick_check(1)") == [("ok",)]
        return Salvaged(
            rows=self._rows,
            lost=self._lost,
            is_exact=self._is_exact,
            tables=sorted(self._incomplete),
            is_whole=sound and not self._lost and self._is_exact and not self._incomplete,
        )

    def _try(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Read what may be had of a small result."""
        found: list[tuple[Any, ...]] = []
        try:
            found.extend(self._source.execute(sql, parameters))
        except sqlite3.Error as exc:
            _only_damage(exc)
        return found

    def _table(self, name: str, *, has_rowid: bool) -> None:
        columns = [row[1] for row in self._into.execute(f"PRAGMA table_info({name})")]
        theirs = {row[1] for row in self._try(f"PRAGMA table_info({name})")}
        columns = [column for column in columns if column in theirs]
        if not columns:
            self._incomplete.add(name)
            return
        walk: _Walk | _Ends = _Ends(self._source, name, columns)
        records = iter(walk)
        if has_rowid:
            walk = _Walk(self._source, name, ["rowid", *columns])
            records = (record[1:] for record in walk)
        check = self._check.of(name, columns)
        self._copy(name, columns, records, check)
        if walk.failures or self._check.refused:
            self._incomplete.add(name)

    def _copy(
        self, name: str, columns: list[str], records: Iterator[tuple[Any, ...]], check: Check
    ) -> None:
        sql = (
            f"INSERT OR IGNORE INTO {name} ({', '.join(columns)})"  # noqa: S608 - our names
            f" VALUES ({', '.join('?' * len(columns))})"
        )
        for record in records:
            values = check(record)
            if values is None:
                continue
            try:
                self._into.execute(sql, values)
            except (sqlite3.IntegrityError, OverflowError):
                self._check.refused += 1  # a value that no column of ours holds

    def _queues(self, tables: set[str]) -> None:
        expected = self._expected()
        if expected is None:
            self._is_exact, expected = False, {}
        numbers = self._registered()
        for number in sorted({*expected, *numbers, *(int(name[2:]) for name in tables)}):
            if number not in numbers:
                # Parked until a person says where they belong.
                numbers[number] = (EndpointId(f"salvaged-{number}"), DEFAULT_PRIORITY)
            endpoint_id, priority = numbers[number]
            self._into.execute(
                "INSERT OR REPLACE INTO queue (number, name, endpoint_id, priority, checkpoint)"
                " VALUES (?, ?, ?, ?, 0)",
                (number, queue_id(endpoint_id, priority), endpoint_id, priority),
            )
            create_queue_table(self._into, number)
            if f"q_{number}" in tables:
                self._queue(number)
        self._bodies(list(numbers))
        for number, (endpoint_id, priority) in sorted(numbers.items()):
            rebuild_zones(self._into, number)
            self._settle(number, endpoint_id, priority, expected.get(number, (0, 0)))

    def _registered(self) -> dict[int, tuple[EndpointId, Priority]]:
        """Give endpoint and priority by number, also of queues that only the index still knows."""
        sql = "SELECT number, endpoint_id, priority FROM queue"
        found: dict[int, tuple[EndpointId, Priority]] = {}
        priorities = {*range(BEST_PRIORITY, WORST_EXPLICIT_PRIORITY + 1), DEFAULT_PRIORITY}
        for number, endpoint_id, priority in (
            *self._try(f"{sql} INDEXED BY sqlite_autoindex_queue_1"),
            *self._try(f"{sql} NOT INDEXED"),
        ):
            if isinstance(number, int) and isinstance(endpoint_id, str) and priority in priorities:
                found[number] = (EndpointId(endpoint_id), Priority(priority))
        return found

    def _expected(self) -> dict[int, tuple[int, int]] | None:
        """Give rows and bytes by queue as the zones tell, None = they cannot be read."""
        expected: dict[int, tuple[int, int]] = {}
        try:
            for number, rows, size in self._source.execute(
                "SELECT queue, sum(rows), sum(bytes) FROM zone GROUP BY queue"
            ):
                expected[number] = (rows, size)
        except sqlite3.Error as exc:
            _only_damage(exc)
            return None
        return expected

    def _queue(self, number: int) -> None:
        name = f"q_{number}"
        columns = [row[1] for row in self._into.execute(f"PRAGMA table_info({name})")]
        walk = _Walk(self._source, name, columns)
        self._copy(name, columns, iter(walk), self._check.of(name, columns))
        if walk.failures or self._check.refused:
            self._incomplete.add(name)

    def _bodies(self, numbers: list[int]) -> None:
        """Make shared bodies and the rows that refer to them fit each other."""
        self._into.execute("UPDATE body SET refs = 0")
        for number in numbers:
            self._into.execute(
                f"DELETE FROM q_{number} WHERE body_id IS NOT NULL"  # noqa: S608 - our number
                " AND body_id NOT IN (SELECT id FROM body)"
            )
            self._into.execute(
                "UPDATE body SET refs = refs + shared.rows FROM (SELECT body_id, count(*) AS rows"  # noqa: S608 - our number
                f" FROM q_{number} WHERE body_id IS NOT NULL GROUP BY body_id) AS shared"
                " WHERE id = shared.body_id"
            )
        self._into.execute("DELETE FROM body WHERE refs = 0")

    def _settle(
        self, number: int, endpoint_id: str, priority: int, expected: tuple[int, int]
    ) -> None:
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
        elif incomplete:
            self._is_exact = False


class _Walk:
    """Records of a table with a whole-number key, which is the first column, in any order.

    Attributes:
        failures: Reads that met damage.
    """

    def __init__(self, source: sqlite3.Connection, table: str, columns: list[str]) -> None:
        key = columns[0]
        self._source = source
        self._sql = (
            f"SELECT {', '.join(columns)} FROM {table} WHERE {key} BETWEEN ? AND ? ORDER BY {key}"  # noqa: S608 - our names
        )
        self.failures = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        ranges = deque([(-KEY_MAX, KEY_MAX)])
        while ranges and self.failures < FAILURES_MAX:
            low, high = ranges.popleft()
            failures = self.failures
            for record in self._read(self._sql, low, high):
                # A spoilt tree may give keys in any order, and must not lead back.
                low = max(low, record[0] + 1)
                yield record
            if self.failures == failures:
                continue
            failures = self.failures
            for record in self._read(f"{self._sql} DESC", low, high):
                high = min(high, record[0] - 1)
                yield record
            if self.failures > failures and low < high:
                middle = (low + high) // 2
                ranges.extend([(low, middle), (middle + 1, high)])

    def _read(self, sql: str, low: int, high: int) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._source.execute(sql, (low, high))
        except sqlite3.Error as exc:
            _only_damage(exc)
            self.failures += 1


class _Ends:
    """Records of a small table with another key: from both ends up to what cannot be read."""

    def __init__(self, source: sqlite3.Connection, table: str, columns: list[str]) -> None:
        self._source = source
        self._sql = f"SELECT {', '.join(columns)} FROM {table} ORDER BY {columns[0]}"  # noqa: S608 - our names
        self.failures = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for sql in (self._sql, f"{self._sql} DESC"):
            try:
                yield from self._source.execute(sql)
            except sqlite3.Error as exc:
                _only_damage(exc)
                self.failures += 1
            else:
                return


def _only_damage(error: sqlite3.Error) -> None:
    """Let damage pass; a full disk, a lock or want of memory is another matter."""
    if classify(error) not in SQLITE_DAMAGE:
        raise error
