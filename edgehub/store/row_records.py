"""Records of rows for the journal that leave without having been read by the pump.

Invariant: the records are in the order of their offsets, and contain no bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgehub.message import NEVER_MS
from edgehub.store.encoding import decode_sender

if TYPE_CHECKING:
    import sqlite3

    from edgehub.journal.row_events import Record
    from edgehub.store.labels import Labels


def read_records(
    connection: sqlite3.Connection,
    number: int,
    where: str,
    chosen: tuple[Any, ...],
    labels: Labels,
) -> list[Record]:
    """Read the records of some rows of a queue.

    Args:
        connection: Of the file.
        number: Of the queue.
        where: Which rows, in columns of `q`.
        chosen: Its parameters.
        labels: Names of routes.
    """
    return [
        record_of(columns, labels)
        for columns in connection.execute(select_records(number, where), chosen)
    ]


def select_records(number: int, where: str) -> str:
    """Return the query for the columns of some rows, of which `record_of` makes records."""
    return (
        f"SELECT q.offset, q.enqueued_ms, coalesce(q.expires_ms, {NEVER_MS}), q.size, q.attempts,"  # noqa: S608 - our numbers and words
        " q.routes, coalesce(q.message_id, q.body_id, 0), coalesce(q.header, b.header)"
        f" FROM q_{number} q LEFT JOIN body b ON b.id = q.body_id WHERE {where}"
        " ORDER BY q.offset"
    )


def record_of(columns: tuple[Any, ...], labels: Labels) -> Record:
    """Build the record of a row."""
    *numbers, routes, key, header = columns
    return (*numbers, labels.routes(routes), key, decode_sender(header))
