"""The SQL of one group commit: a plain function on the connection, run as one job.

Owns every statement that writes rows, zones, checkpoints, bodies and dead letters. It sees values
only, never live objects, because it runs on the connection's thread. Invariant: all or nothing;
the outcome is applied to memory only after COMMIT has returned.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.message import NEVER_MS
from edgehub.store.database import Fault, classify
from edgehub.store.encoding import FULL_COLUMNS, PLAIN_COLUMNS
from edgehub.store.migrations import read_sql
from edgehub.store.zones import ZONE_OFFSETS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from edgehub.store.encoding import Params
    from edgehub.store.event_log import Depth, EventBatch
    from edgehub.store.zones import ZoneValues

ROWS_PER_STATEMENT: Final = 32
"""Rows of one INSERT. The interpreter lock is dropped and taken at each statement, and on a busy
loop each taking may wait for a switch interval; 32 rows also cost a sixth less than one by one."""

ZONES_PER_RANGE: Final = 100
QUEUE_TABLE: Final = read_sql("queue_table.sql")


class QueueWrite(Struct):
    """What one transaction writes for one queue."""

    number: int
    registration: Params | None = None
    plain: list[Params] = []
    full: list[Params] = []
    attempts: list[tuple[int, int]] = []
    deletes: Sequence[int] = ()
    zones: list[ZoneValues] = []


class Outcome(Struct):
    """The result of one transaction.

    Attributes:
        changes: Rows of other tables that operations have written or deleted.
        lowest: By queue number, offset and enqueue time of the lowest row left, None = empty.
        operations: Result and error of each.
        evicted: Evicted dead letters: endpoint, priority, rows, bytes.
    """

    changes: int = 0
    lowest: dict[int, tuple[int, int] | None] = {}
    operations: list[tuple[Any, Exception | None]] = []
    evicted: list[Depth] = []


class Transaction(Struct, kw_only=True):
    """Everything that one group commit writes.

    Attributes:
        evict: Rows and bytes by which the dead letters exceed their bounds once these are in.
    """

    boot: Params
    empty_checkpoint: int
    queues: list[QueueWrite] = []
    labels: list[tuple[int, str]] = []
    bodies: list[Params] = []
    dead_letters: list[Params] = []
    evict: tuple[int, int] = (0, 0)
    operations: list[Callable[[sqlite3.Connection], Any]] = []
    events: EventBatch | None = None

    def run(self, connection: sqlite3.Connection) -> Outcome:
        """Write it; the caller begins and commits."""
        outcome = Outcome()
        if self.labels:
            connection.executemany("INSERT INTO label (id, text) VALUES (?, ?)", self.labels)
        # First, so that new rows use the pages of deleted ones: the disk may have no others.
        for write in self.queues:
            delete_rows(connection, write)
        if self.bodies:
            connection.executemany(
                "INSERT INTO body (id, refs, header, body) VALUES (?, ?, ?, ?)", self.bodies
            )
        for write in self.queues:
            write_queue(connection, write, outcome, self.empty_checkpoint)
        if self.dead_letters:
            self._write_dead_letters(connection, outcome)
        if self.events is not None:
            self.events.write(connection)
        if self.operations:
            before = connection.total_changes
            for operation in self.operations:
                outcome.operations.append(_isolated(connection, operation))
            outcome.changes = connection.total_changes - before
        write_boot(connection, self.boot)
        return outcome

    def _write_dead_letters(self, connection: sqlite3.Connection, outcome: Outcome) -> None:
        connection.executemany(_DEAD_LETTER, self.dead_letters)
        rows, size = self.evict
        if rows > 0 or size > 0:
            outcome.evicted = evict_dead_letters(connection, rows, size)
            if self.events is not None:
                self.events.dead_letters_left(outcome.evicted, "bounds")


def write_boot(connection: sqlite3.Connection, boot: Params) -> None:
    """Store hub time and its relation to UTC, as of now."""
    connection.execute(_BOOT, boot)


def delete_rows(connection: sqlite3.Connection, write: QueueWrite) -> None:
    """Delete the rows of one queue that leave."""
    if not write.deletes:
        return
    leaving = sorted(write.deletes)
    where = "offset BETWEEN ? AND ?"
    chosen: tuple[int, int] | tuple[str] = (leaving[0], leaving[-1])
    # A row that is named twice must not pass for one in between.
    if leaving[-1] - leaving[0] >= len(set(leaving)):
        # Rows of other queues, or rows that stay, are in between.
        where, chosen = "offset IN (SELECT value FROM json_each(?))", (json_list(leaving),)
    deleted = connection.execute(
        f"DELETE FROM q_{write.number} WHERE {where}",  # noqa: S608 - our number and words
        chosen,
    ).rowcount
    assert deleted == len(write.deletes), (write.number, deleted, len(write.deletes))


def write_queue(
    connection: sqlite3.Connection, write: QueueWrite, outcome: Outcome, empty_checkpoint: int
) -> None:
    """Write one queue's rows, attempts, zones and checkpoint; what leaves is deleted already."""
    number = write.number
    if write.registration is not None:
        register_queue(connection, write.registration)
    _insert(connection, number, PLAIN_COLUMNS, write.plain)
    _insert(connection, number, FULL_COLUMNS, write.full)
    if write.attempts:
        connection.executemany(
            f"UPDATE q_{number} SET attempts = ? WHERE offset = ?",  # noqa: S608 - our number
            write.attempts,
        )
    write_zones(connection, number, write.zones)
    if write.deletes:
        outcome.lowest[number] = write_checkpoint(connection, number, empty_checkpoint)


def register_queue(connection: sqlite3.Connection, registration: Params) -> None:
    """Insert a queue and create its table, inside the running transaction."""
    connection.execute(_REGISTER, registration)
    number = registration[0]
    assert isinstance(number, int)
    create_queue_table(connection, number)


def create_queue_table(connection: sqlite3.Connection, number: int) -> None:
    """Create the table of one queue, inside the running transaction."""
    # executescript would commit; the statements are separated by blank lines.
    for statement in QUEUE_TABLE.format(number=number).split("\n\n"):
        connection.execute(statement)


def write_zones(connection: sqlite3.Connection, number: int, zones: list[ZoneValues]) -> None:
    """Store zone entries; those without rows are deleted."""
    kept = [(number, *values) for values in zones if values[4]]
    removed = [(number, values[0]) for values in zones if not values[4]]
    if kept:
        connection.executemany(_ZONE, kept)
    if removed:
        connection.executemany("DELETE FROM zone WHERE queue = ? AND zone = ?", removed)


def rebuild_zones(connection: sqlite3.Connection, number: int) -> list[ZoneValues]:
    """Rebuild the zone rows of one queue from its rows, inside the running transaction."""
    connection.execute("DELETE FROM zone WHERE queue = ?", (number,))
    values: list[ZoneValues] = []
    for offsets in offset_ranges(connection, number):
        values += connection.execute(
            f"SELECT offset / {ZONE_OFFSETS}, min(coalesce(expires_ms, {NEVER_MS})),"  # noqa: S608 - our numbers
            f" max(coalesce(expires_ms, {NEVER_MS})), max(coalesce(fresh_until_ms, {NEVER_MS})),"
            f" count(*), sum(size), min(coalesce(fresh_until_ms, {NEVER_MS}))"
            f" FROM q_{number} WHERE offset BETWEEN ? AND ? GROUP BY 1 ORDER BY 1",
            offsets,
        ).fetchall()
    write_zones(connection, number, values)
    return values


def offset_ranges(connection: sqlite3.Connection, number: int) -> Iterator[tuple[int, int]]:
    """Split the rows of one queue at zone borders; return first and last offset of each part.

    SQLite sorts a part in memory, so it must not be a whole backlog.
    """
    lowest = f"SELECT min(offset) FROM q_{number} WHERE offset >= ?"  # noqa: S608 - our number
    low: int | None = connection.execute(lowest, (0,)).fetchone()[0]
    while low is not None:
        next_low = (low // ZONE_OFFSETS + ZONES_PER_RANGE) * ZONE_OFFSETS
        yield low, next_low - 1
        low = connection.execute(lowest, (next_low,)).fetchone()[0]


def write_checkpoint(
    connection: sqlite3.Connection, number: int, empty_checkpoint: int
) -> tuple[int, int] | None:
    """Store the checkpoint that the rows left give, and return the lowest of them."""
    lowest: tuple[int, int] | None = lowest_row(connection, number)
    connection.execute(
        "UPDATE queue SET checkpoint = ? WHERE number = ?",
        (empty_checkpoint if lowest is None else lowest[0] - 1, number),
    )
    return lowest


def lowest_row(connection: sqlite3.Connection, number: int) -> tuple[int, int] | None:
    """Return offset and enqueue time of the lowest row of a queue, None = it is empty."""
    row: tuple[int, int] | None = connection.execute(
        f"SELECT offset, enqueued_ms FROM q_{number} ORDER BY offset LIMIT 1"  # noqa: S608 - our number
    ).fetchone()
    return row


def evict_dead_letters(
    connection: sqlite3.Connection, rows: int, size: int, *, older_than_ms: int = 0
) -> list[Depth]:
    """Delete the oldest dead letters: at least `rows` rows, `size` bytes, and all that are older.

    Returns:
        Endpoint, priority, rows and bytes of those deleted, by queue.
    """
    last_id = removed_bytes = 0
    removed: dict[tuple[str, int], tuple[int, int]] = {}
    cursor = connection.execute(
        "SELECT id, size, dead_ms, endpoint_id, priority FROM dead_letter ORDER BY id"
    )
    for removed_rows, (letter_id, letter_bytes, dead_ms, *queue) in enumerate(cursor):
        if removed_rows >= rows and removed_bytes >= size and dead_ms >= older_than_ms:
            break
        last_id = letter_id
        removed_bytes += letter_bytes
        key = (queue[0], queue[1])
        before = removed.get(key, (0, 0))
        removed[key] = (before[0] + 1, before[1] + letter_bytes)
    cursor.close()
    if removed:
        connection.execute("DELETE FROM dead_letter WHERE id <= ?", (last_id,))
    return [(*queue, *sums) for queue, sums in removed.items()]


def json_list(offsets: Sequence[int]) -> str:
    """Write offsets for `json_each`: one statement for any number of them."""
    return orjson.dumps(sorted(offsets)).decode()


def _isolated(
    connection: sqlite3.Connection, operation: Callable[[sqlite3.Connection], Any]
) -> tuple[Any, Exception | None]:
    # An error of one caller must not fail the commit of others; errors of the disk concern all.
    connection.execute("SAVEPOINT operation")
    try:
        result = operation(connection)
    except Exception as exc:
        if classify(exc) in (Fault.RETRY, Fault.DAMAGE):
            raise
        connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
        return None, exc
    connection.execute("RELEASE operation")
    return result, None


def _insert(
    connection: sqlite3.Connection, number: int, columns: tuple[str, ...], rows: list[Params]
) -> None:
    start, size = 0, ROWS_PER_STATEMENT
    while start < len(rows):
        # Halves for the rest: a few statements, and few that have to be prepared.
        while size > len(rows) - start:
            size //= 2
        connection.execute(_insert_sql(number, columns, size), _bound(rows[start : start + size]))
        start += size


def _bound(rows: Sequence[Params]) -> list[object]:
    """Return the values of rows as they are bound.

    `sqlite3` looks for adapters of all types but int, float, str and bytearray, which takes three
    times as long as the binding itself.
    """
    return [
        bytearray(value) if value.__class__ is bytes else value for row in rows for value in row
    ]


@cache  # a handful per queue; building the text costs more than a row
def _insert_sql(number: int, columns: tuple[str, ...], rows: int) -> str:
    places = ", ".join(["(" + ", ".join("?" * len(columns)) + ")"] * rows)
    return f"INSERT INTO q_{number} ({', '.join(columns)}) VALUES {places}"  # noqa: S608 - our names


_REGISTER: Final = (
    "INSERT INTO queue (number, name, endpoint_id, priority, checkpoint) VALUES (?, ?, ?, ?, ?)"
)
_ZONE: Final = (
    "INSERT OR REPLACE INTO zone (queue, zone, min_expires_ms, max_expires_ms, fresh_until_ms,"
    " rows, bytes, stale_from_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_DEAD_LETTER: Final = (
    "INSERT INTO dead_letter (size, dead_ms, endpoint_id, priority, kind, reason, offset,"
    " enqueued_ms, expires_ms, attempts, message_id, predecessor, creation, routes, header, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_BOOT: Final = (
    "INSERT INTO boot (seq, boot_id, first_hub_ms, first_wall_ms, boottime_ms, hub_ms, wall_ms,"
    " high_water, wall_trusted, first_offset) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (seq) DO UPDATE SET boottime_ms = excluded.boottime_ms, hub_ms = excluded.hub_ms,"
    " wall_ms = excluded.wall_ms, high_water = excluded.high_water,"
    " wall_trusted = excluded.wall_trusted"
)
