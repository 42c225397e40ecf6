"""Entities, their twins, what is held for unregistered ones, and the mapper's own state on disk.

Owns the tables `entity`, `twin`, `pending` and `mapper_state`, but not the meaning of their
values.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.row_changes import Statement

Key = tuple[str | int, ...]
Value = tuple[str | int | bytes, ...]


class EntityTable(StrEnum):
    """Tables of entities and mapper."""

    ENTITY = "entity"
    TWIN = "twin"
    PENDING = "pending"
    STATE = "mapper_state"


class _Statements(NamedTuple):
    read: str
    write: str
    delete: str


_STATEMENTS: Final = {
    EntityTable.ENTITY: _Statements(
        "SELECT topic_id, document FROM entity",
        "INSERT OR REPLACE INTO entity (topic_id, document) VALUES (?, ?)",
        "DELETE FROM entity WHERE topic_id = ?",
    ),
    EntityTable.TWIN: _Statements(
        "SELECT topic_id, key, value FROM twin",
        "INSERT OR REPLACE INTO twin (topic_id, key, value) VALUES (?, ?, ?)",
        "DELETE FROM twin WHERE topic_id = ? AND key = ?",
    ),
    EntityTable.PENDING: _Statements(
        "SELECT seq, topic, payload, client_id, hub_ms, wall_ms FROM pending ORDER BY seq",
        "INSERT OR REPLACE INTO pending (seq, topic, payload, client_id, hub_ms, wall_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        "DELETE FROM pending WHERE seq = ?",
    ),
    EntityTable.STATE: _Statements(
        "SELECT key, value FROM mapper_state ORDER BY key",
        "INSERT OR REPLACE INTO mapper_state (key, value) VALUES (?, ?)",
        "DELETE FROM mapper_state WHERE key = ?",
    ),
}


class PendingRow(NamedTuple):
    """A message that is held for an entity that is not registered.

    Attributes:
        seq: Place in the order of arrival.
        topic: Its topic.
        payload: Its payload.
        client_id: Its sender.
        hub_ms: Hub time of its arrival.
        wall_ms: UTC of its arrival.
    """

    seq: int
    topic: str
    payload: bytes
    client_id: str
    hub_ms: int
    wall_ms: int


class EntityContents(Struct, frozen=True, kw_only=True):
    """What the file holds.

    Attributes:
        entities: Topic id and document of each entity.
        twins: Topic id, key and value of each twin value.
        pending: Held messages in the order of arrival.
        state: Further state of the mapper by key.
    """

    entities: tuple[tuple[str, bytes], ...] = ()
    twins: tuple[tuple[str, str, bytes], ...] = ()
    pending: tuple[PendingRow, ...] = ()
    state: tuple[tuple[str, bytes], ...] = ()


def load_entities(connection: sqlite3.Connection) -> EntityContents:
    """Read everything, at the start, before the first message."""
    rows = {table: connection.execute(_STATEMENTS[table].read).fetchall() for table in EntityTable}
    return EntityContents(
        entities=tuple(rows[EntityTable.ENTITY]),
        twins=tuple(rows[EntityTable.TWIN]),
        pending=tuple(PendingRow(*row) for row in rows[EntityTable.PENDING]),
        state=tuple(rows[EntityTable.STATE]),
    )


def statement_of(table: EntityTable, key: Key, value: Value | None) -> Statement:
    """Return what writes a row, or deletes it with None."""
    statements = _STATEMENTS[table]
    return (statements.delete, key) if value is None else (statements.write, (*key, *value))
