"""Messages to devices and modules on disk.

Owns the table `device_message`. Changes of one turn of the loop join one operation of the open
group, so that a thousand of them cost one savepoint.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from edgehub.device_bound.message import DeviceMessage, Origin, size_of
from edgehub.message import Priority

if TYPE_CHECKING:
    import asyncio
    import sqlite3

    from edgehub.store.store import Store

    Change = tuple[str, tuple[object, ...]]

_ADD: Final = "INSERT OR REPLACE INTO device_message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COUNT: Final = "UPDATE device_message SET deliveries = ? WHERE number = ?"
_BURY: Final = "UPDATE device_message SET dead = ? WHERE number = ?"
_REMOVE: Final = "DELETE FROM device_message WHERE number = ?"


class DeviceMessageTable:
    """The table of messages to devices."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._group: object = None
        self._changes: list[Change] = []
        self._future: asyncio.Future[None] | None = None

    async def load(self) -> list[DeviceMessage]:
        """Read all messages in order of arrival, dead letters without their bodies."""
        rows = await self._store.database.run(_read)
        return [_decoded(row) for row in rows]

    def add(self, message: DeviceMessage) -> asyncio.Future[None]:
        """Store a message; done once it is durable."""
        return self._change(
            _ADD,
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

    def count(self, message: DeviceMessage) -> None:
        """Store how often a message was delivered."""
        self._change(_COUNT, message.deliveries, message.number)

    def bury(self, message: DeviceMessage) -> None:
        """Store that a message is a dead letter."""
        self._change(_BURY, message.dead, message.number)

    def remove(self, message: DeviceMessage) -> asyncio.Future[None]:
        """Remove a message; done once that is durable."""
        return self._change(_REMOVE, message.number)

    def _change(self, sql: str, *values: object) -> asyncio.Future[None]:
        writer = self._store.writer
        with writer.together() as group:
            if self._future is None or group is not self._group:
                self._group = group
                self._changes = []
                self._future = writer.transact(partial(_write, self._changes))
                # Most callers wait for nothing: what is lost with the hub is delivered again.
                self._future.add_done_callback(_ignore)
            self._changes.append((sql, values))
        return self._future


def _ignore(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _read(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT number, target, priority, origin, enqueued_ms, expires_ms, deliveries, dead,"
        " header, CASE WHEN dead IS NULL THEN body ELSE x'' END FROM device_message ORDER BY number"
    ).fetchall()


def _write(changes: list[Change], connection: sqlite3.Connection) -> None:
    for sql, values in changes:
        connection.execute(sql, values)


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
