"""Rows without a table: put where they are missed, dropped where they are not, parked in doubt."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from edgehub.store.migrations import migrate
from edgehub.store.salvage.damaged_file import DamagedFile, Table, queue_shape
from edgehub.store.salvage.orphaned_rows import OrphanedRows
from edgehub.store.salvage.placement import ZoneDepths
from edgehub.store.transaction import create_queue_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ZONE_COLUMNS = ("queue", "zone", "rows", "bytes")
PARKED = 9


def a_row(offset: int, routes: str = '["a"]') -> tuple[Any, ...]:
    """Build what stands on a page; the key is beside it."""
    return (offset, 1, None, 10, 0, None, None, None, None, routes, None, None, b"[]", b"")


@pytest.fixture
def into() -> Iterator[sqlite3.Connection]:
    """Return a new file with two queues and one for what is parked."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        for number in (1, 2, PARKED):
            create_queue_table(connection, number)
        yield connection


def place(
    into: sqlite3.Connection,
    *pages: list[tuple[Any, ...]],
    zones: dict[tuple[int, int], int],
    is_whole: bool = True,
) -> dict[int, list[int]]:
    """Place the rows of some pages; gives the offsets in each queue."""

    def unowned_rows() -> Iterator[list[tuple[int, tuple[Any, ...]]]]:
        for page in pages:
            yield [(row[0], (None, *row[1:])) for row in page]

    def copy(table: Table, records: Iterable[Any]) -> int:
        before = into.total_changes
        sql = f"INSERT OR IGNORE INTO {table.name} VALUES ({', '.join('?' * 14)})"
        into.executemany(sql, records)
        return into.total_changes - before

    page_recovery = SimpleNamespace(has_unowned=True, unowned_rows=unowned_rows)
    source = cast("DamagedFile", SimpleNamespace(page_recovery=page_recovery))
    depths = ZoneDepths()
    for (number, zone), rows in zones.items():
        depths.add(ZONE_COLUMNS, (number, zone, rows, rows))
    depths.is_whole = is_whole
    queues = {number: Table(into, f"q_{number}") for number in (1, 2)}
    strays = OrphanedRows(source, into, queues, queue_shape(), copy)
    strays.place(depths, lambda: Table(into, f"q_{PARKED}"))
    return {
        number: [offset for (offset,) in into.execute(f"SELECT offset FROM q_{number}")]
        for number in (1, 2, PARKED)
    }


def test_rows_go_where_they_are_missed(into: sqlite3.Connection) -> None:
    """One queue misses rows at these offsets: it gets them, whatever page comes first."""
    zones = {(1, 1): 3, (2, 7): 1}
    pages = [a_row(1002), a_row(1003)], [a_row(1001)], [a_row(7001)]
    assert place(into, *pages, zones=zones) == {1: [1001, 1002, 1003], 2: [7001], PARKED: []}


def test_rows_that_are_not_missing_are_old(into: sqlite3.Connection) -> None:
    """All that waited at these offsets is there, or nothing did."""
    copy_into = f"INSERT INTO q_1 VALUES ({', '.join('?' * 14)})"
    into.execute(copy_into, a_row(1001))
    assert place(into, [a_row(1002)], [a_row(5000)], zones={(1, 1): 1}) == {
        1: [1001],
        2: [],
        PARKED: [],
    }


def test_in_doubt_rows_are_parked(into: sqlite3.Connection) -> None:
    """Two queues miss rows there; or what the queues miss is not known."""
    zones = {(1, 1): 2, (2, 1): 2}
    assert place(into, [a_row(1001)], zones=zones)[PARKED] == [1001]
    assert place(into, [a_row(8001)], zones={}, is_whole=False)[PARKED] == [1001, 8001]


def test_rows_of_routes_that_lead_elsewhere_are_parked(into: sqlite3.Connection) -> None:
    """Though this queue alone misses a row there: its own came by another route."""
    copy_into = f"INSERT INTO q_1 VALUES ({', '.join('?' * 14)})"
    into.execute(copy_into, a_row(1001))
    pages = [a_row(1002)], [a_row(1003, '["b"]')]
    assert place(into, *pages, zones={(1, 1): 3}) == {1: [1001, 1002], 2: [], PARKED: [1003]}
