"""Stored MQTT sessions: which client subscribes to what while it is away, and until when.

Owns the table `session`. A change joins the next group commit. Invariant: the table has the time at
which the client of a session left plus `expiry_s`, that is its end where it has one; a session
without that time had its client connected, or was left by a hub that stopped, and its time begins
at the next start. (Of a session without an end the time stays when its client comes back.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from edgehub.store.store import Store

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """One session.

    Attributes:
        subscriptions: Subscription options by topic filter; the granted QoS in the lowest bits.
        expiry_s: Seconds that it lasts while its client is away, None = for ever.
        absent_s: Seconds since its client left, None = it was connected when the hub stopped.
    """

    subscriptions: Mapping[str, int]
    expiry_s: int | None = None
    absent_s: float | None = None


class SessionTable:
    """Sessions by client id."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> dict[str, StoredSession]:
        """Read all sessions at the start, also those whose time is over by now."""
        now_ms = self._store.hub_time.now_ms()
        records = await self._store.read(
            lambda connection: connection.execute(
                "SELECT client_id, subscriptions, expiry_s, expires_ms FROM session"
            ).fetchall()
        )
        return {
            client_id: StoredSession(
                subscriptions=orjson.loads(subscriptions),
                expiry_s=expiry_s,
                absent_s=_absent_s(now_ms, expiry_s, expires_ms),
            )
            for client_id, subscriptions, expiry_s, expires_ms in records
        }

    async def save(
        self,
        client_id: str,
        subscriptions: Mapping[str, int],
        *,
        expiry_s: int | None = None,
        is_away: bool = False,
    ) -> None:
        """Store one session as given; returns once it is on disk.

        Args:
            client_id: Its client.
            subscriptions: Subscription options by topic filter.
            expiry_s: Seconds that it lasts while its client is away, None = for ever.
            is_away: Whether that time runs from now on.
        """
        packed = orjson.dumps(dict(subscriptions))
        expires_ms = None
        if is_away:
            expires_ms = self._store.hub_time.now_ms() + (expiry_s or 0) * _MS_PER_S

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO session (client_id, subscriptions, expiry_s, expires_ms)"
                " VALUES (?, ?, ?, ?)",
                (client_id, packed, expiry_s, expires_ms),
            )

        await self._store.transact(write)

    async def delete(self, client_id: str) -> None:
        """Forget one session; returns once that is on disk."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM session WHERE client_id = ?", (client_id,))

        await self._store.transact(write)


def _absent_s(now_ms: int, expiry_s: int | None, expires_ms: int | None) -> float | None:
    if expires_ms is None:
        return None
    return (now_ms - expires_ms) / _MS_PER_S + (expiry_s or 0)
