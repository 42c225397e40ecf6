"""Messages to devices and modules on disk.

Owns the table `device_message`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.device_bound.message import DeviceMessage, Origin, size_of
from edgehub.message import Priority
from edgehub.store.row_changes import RowChanges

if TYPE_CHECKING:
    import asyncio
    import sqlite3

    from edgehub.store.store import Store

_ADD: Final = "INSERT OR REPLACE INTO device_message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE: Final = "UPDATE device_message SET deliveries = ?2, dead = ?3 WHERE number = ?1"
_REMOVE: Final = "DELETE FROM device_message WHERE number = ?"


class DeviceMessageTable:
    """The table of messages to devices."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = RowChanges(store.writer, "device_bound.change_not_stored")

    async def load(self) -> list[DeviceMessage]:
        """Read all messages in order of arrival, dead letters without their bodies."""
        rows = await self._store.database.run(_read)
        return [_decoded(row) for row in rows]

    def add(self, message: DeviceMessage) -> asyncio.Future[None]:
        """Store a message; done once it is durable."""
        values = (
            message.number,
            message.target,
            message.priority,
            message.origin.value,
            message.enqueued_ms,
            message.expires_ms,
            message.deliveries,
            message.dead,
            message.header(),
            message.body,
        )
        return self._changes.add(message.number, (_ADD, values))

    def update(self, message: DeviceMessage) -> None:
        """Store how often a message was delivered, and whether it is a dead letter."""
        values = (message.number, message.deliveries, message.dead)
        self._changes.add(_later(message), (_UPDATE, values), later=True)

    def remove(self, message: DeviceMessage) -> asyncio.Future[None]:
        """Remove a message within 50 ms, as rows that are sent; done once that is durable."""
        return self._changes.add(_later(message), (_REMOVE, (message.number,)), later=True)


def _later(message: DeviceMessage) -> int:
    """Return the key of what follows in the transaction that may have stored a message too."""
    return -message.number


def _read(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT number, target, priority, origin, enqueued_ms, expires_ms, deliveries, dead,"
        " header, CASE WHEN dead IS NULL THEN body ELSE x'' END FROM device_message ORDER BY number"
    ).fetchall()


def _decoded(row: tuple[Any, ...]) -> DeviceMessage:
    number, target, priority, origin, enqueued_ms, expires_ms, deliveries, dead, header, body = row
    message_id, properties, system = orjson.loads(header)
    return DeviceMessage(
        target=target,
        message_id=message_id,
        properties=properties,
        system=system,
        body=body,
        priority=Priority(priority),
        origin=Origin(origin),
        enqueued_ms=enqueued_ms,
        expires_ms=expires_ms,
        number=number,
        deliveries=deliveries,
        dead=dead,
        size=size_of(properties, system, body),
    )
