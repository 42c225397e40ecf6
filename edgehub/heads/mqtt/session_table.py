"""Stored MQTT sessions: subscriptions of clients, and when the sessions end.

Owns the tables `session` and `received`. A change joins the next group commit, with the newest
state of the session, so that a client that keeps changing its subscriptions costs one write per
commit; a packet id received with QoS 2 joins that of its message. Invariants: a row of `received`
belongs to the session with its number; `session.expires_ms` is the time at which the client left
plus `expiry_s`, the end of the session if it has one; without that time the client was connected
when the hub stopped, and the session expires from the next start on. (A session without an end
keeps that time when its client comes back.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.store.row_changes import RowChanges

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from edgehub.store.store import Store

_MS_PER_S = 1000


class StoredSession(Struct, frozen=True, kw_only=True):
    """One session.

    Attributes:
        subscriptions: Subscription options by topic filter; the granted QoS in the lowest bits.
        expiry_s: Seconds that it outlives the connection, None = for ever.
        absent_s: Seconds since its client left, None = it was connected when the hub stopped.
        number: Of the session; its client's next one has another.
        received: Packet ids received with QoS 2 and not released.
    """

    subscriptions: Mapping[str, int]
    expiry_s: int | None = None
    absent_s: float | None = None
    number: int = 0
    received: tuple[int, ...] = ()


class SessionTable:
    """Sessions by client id."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = RowChanges(store.writer, "mqtt.session_not_stored")

    async def load(self) -> dict[str, StoredSession]:
        """Load all sessions at the start, also those that have expired."""
        now_ms = self._store.hub_time.now_ms()
        records, packet_ids = await self._store.database.run(_read)
        received: dict[int, list[int]] = {number: [] for number, *_ in records}
        orphaned = {number for number, _ in packet_ids if number not in received}
        for number, packet_id in packet_ids:
            if number not in orphaned:
                received[number].append(packet_id)
        for number in orphaned:
            # Left by sessions that began or ended when the hub was killed.
            self.forget(number)
        return {
            client_id: StoredSession(
                subscriptions=orjson.loads(subscriptions),
                expiry_s=expiry_s,
                absent_s=_absent_s(now_ms, expiry_s, expires_ms),
                number=number,
                received=tuple(received[number]),
            )
            for number, client_id, subscriptions, expiry_s, expires_ms in records
        }

    def save(
        self,
        client_id: str,
        subscriptions: Mapping[str, int],
        *,
        number: int = 0,
        expiry_s: int | None = None,
        is_away: bool = False,
    ) -> asyncio.Future[None]:
        """Store one session; done once it is durable.

        Args:
            client_id: Its client.
            subscriptions: Subscription options by topic filter.
            number: Of the session.
            expiry_s: Seconds that it outlives the connection, None = for ever.
            is_away: Whether that time runs from now on.
        """
        packed = orjson.dumps(dict(subscriptions))
        expires_ms = None
        if is_away:
            expires_ms = self._store.hub_time.now_ms() + (expiry_s or 0) * _MS_PER_S
        values = (client_id, number, packed, expiry_s, expires_ms)
        return self._changes.add(client_id, (_SAVE, values))

    def delete(self, client_id: str) -> asyncio.Future[None]:
        """Delete one session; done once that is durable."""
        return self._changes.add(client_id, (_DELETE, (client_id,)))

    def together(self) -> AbstractContextManager[object]:
        """Put all that is submitted in this context into one transaction, without an await."""
        return self._store.writer.together()

    def receive(self, session: int, packet_id: int) -> asyncio.Future[None]:
        """Store a packet id with the messages that were handed in last; done once it is durable."""
        return self._changes.add((session, packet_id), (RECEIVE, (session, packet_id)))

    def release(self, session: int, packet_id: int) -> asyncio.Future[None]:
        """Remove a packet id; done once that is durable."""
        return self._changes.add((session, packet_id), (_RELEASE, (session, packet_id)))

    def forget(self, session: int) -> None:
        """Remove all packet ids of a session that is over."""
        self._changes.add(session, (_REMOVE_ALL, (session,)))


def _read(
    connection: sqlite3.Connection,
) -> tuple[list[tuple[Any, ...]], list[tuple[int, int]]]:
    sessions = connection.execute(
        "SELECT number, client_id, subscriptions, expiry_s, expires_ms FROM session"
    ).fetchall()
    return sessions, connection.execute("SELECT session, packet_id FROM received").fetchall()


RECEIVE: Final = "INSERT OR REPLACE INTO received (session, packet_id) VALUES (?, ?)"
_RELEASE: Final = "DELETE FROM received WHERE session = ? AND packet_id = ?"
_REMOVE_ALL: Final = "DELETE FROM received WHERE session = ?"
_SAVE: Final = (
    "INSERT OR REPLACE INTO session (client_id, number, subscriptions, expiry_s, expires_ms)"
    " VALUES (?, ?, ?, ?, ?)"
)
_DELETE: Final = "DELETE FROM session WHERE client_id = ?"


def _absent_s(now_ms: int, expiry_s: int | None, expires_ms: int | None) -> float | None:
    if expires_ms is None:
        return None
    return (now_ms - expires_ms) / _MS_PER_S + (expiry_s or 0)
