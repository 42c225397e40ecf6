"""Stored MQTT sessions: which client subscribes to what while it is away.

Owns the table `session`. A change joins the next group commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from edgehub.store.store import Store


class SessionTable:
    """Subscriptions by client id."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> dict[str, dict[str, int]]:
        """Read all sessions: client id -> topic filter -> granted QoS."""
        records = await self._store.read(
            lambda connection: connection.execute(
                "SELECT client_id, subscriptions FROM session"
            ).fetchall()
        )
        return {client_id: orjson.loads(subscriptions) for client_id, subscriptions in records}

    async def save(self, client_id: str, subscriptions: Mapping[str, int]) -> None:
        """Store one session as given; returns once it is on disk."""
        packed = orjson.dumps(dict(subscriptions))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO session (client_id, subscriptions) VALUES (?, ?)",
                (client_id, packed),
            )

        await self._store.transact(write)

    async def delete(self, client_id: str) -> None:
        """Forget one session; returns once that is on disk."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM session WHERE client_id = ?", (client_id,))

        await self._store.transact(write)
