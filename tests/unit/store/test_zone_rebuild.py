"""Zone rows made anew from the rows: part by part, so that a long backlog takes no memory."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from edgehub.message import NEVER_MS
from edgehub.store.migrations import migrate
from edgehub.store.transaction import (
    ZONES_PER_RANGE,
    create_queue_table,
    offset_ranges,
    rebuild_zones,
)
from edgehub.store.zones import ZONE_OFFSETS

PART = ZONES_PER_RANGE * ZONE_OFFSETS
OFFSETS = (1, 999, 1000, PART - 1, PART, PART + 1, 2 * PART + 7, 5_000_000_999)


def test_parts_leave_no_row_out_and_none_twice() -> None:
    """Over borders of parts and over wide gaps, each zone is made once."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        create_queue_table(connection, 1)
        assert rebuild_zones(connection, 1) == []
        connection.executemany(
            "INSERT INTO q_1 (offset, enqueued_ms, size, routes) VALUES (?, 1, 10, 1)",
            [(offset,) for offset in OFFSETS],
        )
        ranges = list(offset_ranges(connection, 1))
        zones = rebuild_zones(connection, 1)
    held = [[offset for offset in OFFSETS if low <= offset <= high] for low, high in ranges]
    assert [offset for part in held for offset in part] == list(OFFSETS)
    assert len(ranges) == 4
    numbers = sorted({offset // ZONE_OFFSETS for offset in OFFSETS})
    assert [zone[0] for zone in zones] == numbers
    assert [zone[4] for zone in zones] == [
        sum(offset // ZONE_OFFSETS == number for offset in OFFSETS) for number in numbers
    ]
    assert {zone[1:4] for zone in zones} == {(NEVER_MS, NEVER_MS, NEVER_MS)}
