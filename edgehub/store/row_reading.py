"""The SQL that reads rows of one queue: plain functions on the connection, run as jobs.

Sees values only, never a reader. Invariant: rows come in the order of their offsets, and each job
is bounded in rows and in bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.message import NEVER_MS
from edgehub.store.encoding import SELECT_COLUMNS
from edgehub.store.transaction import json_list

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from edgehub.message import Row

    Decode = Callable[[tuple[Any, ...]], Row]

READ_BYTES_MAX: Final = 1024 * 1024


def read_ranges(
    number: int,
    ranges: list[tuple[int, int]],
    now_ms: int,
    rows_max: int,
    decode: Decode,
    connection: sqlite3.Connection,
) -> tuple[list[Row], bool]:
    """Read rows of some ranges of offsets that are neither expired nor stale.

    Returns:
        The rows, and whether nothing of the ranges is left to read.
    """
    sql = (
        f"{_select(number)} WHERE q.offset BETWEEN ? AND ?"
        " AND (q.expires_ms IS NULL OR q.expires_ms > ?)"
        " AND (q.fresh_until_ms IS NULL OR q.fresh_until_ms > ?) ORDER BY q.offset"
    )
    rows: list[Row] = []
    for low, high in ranges:
        cursor = connection.execute(sql, (low, high, now_ms, now_ms))
        if not _collect(cursor, rows, rows_max, decode):
            return rows, False
    return rows, True


def read_rows(
    number: int, where: str, chosen: Sequence[Any], decode: Decode, connection: sqlite3.Connection
) -> tuple[list[Row], bool]:
    """Read the rows that a condition in columns of `q` chooses; the same."""
    rows: list[Row] = []
    cursor = connection.execute(f"{_select(number)} WHERE {where}", chosen)
    return rows, _collect(cursor, rows, NEVER_MS, decode)


def read_offsets(
    number: int, offsets: list[int], decode: Decode, connection: sqlite3.Connection
) -> tuple[list[Row], bool]:
    """Read rows by their offsets; the same."""
    where = "q.offset IN (SELECT value FROM json_each(?)) ORDER BY q.offset"
    return read_rows(number, where, (json_list(offsets),), decode, connection)


def _collect(cursor: sqlite3.Cursor, rows: list[Row], rows_max: int, decode: Decode) -> bool:
    """Decode records until the bounds are met; returns False when some may be left."""
    size = sum([row.size for row in rows])
    for record in cursor:
        row = decode(record)
        rows.append(row)
        size += row.size
        if len(rows) >= rows_max or size >= READ_BYTES_MAX:
            cursor.close()
            return False
    return True


def _select(number: int) -> str:
    return f"SELECT {SELECT_COLUMNS} FROM q_{number} q LEFT JOIN body b ON b.id = q.body_id"  # noqa: S608 - our names
