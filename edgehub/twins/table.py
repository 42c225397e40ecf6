"""Twins on disk: one row for each client that has one.

Owns the table `client_twin`, and the changes that wait for the open transaction. Invariant: changes
made inside one `Writer.together` are in one transaction with the rows that were appended there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edgehub.store.failure import refusal_of
from edgehub.twins.document import ClientTwin

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Callable

    from edgehub.message import Refusal
    from edgehub.store.store import Store

    Settle = Callable[[int, Refusal | None], None]


class TwinTable:
    """The table of twins.

    Args:
        store: Has it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._transaction: object = None
        self._changes: dict[str, bytes | None] = {}
        self._waiters: list[Settle] = []

    async def load(self) -> dict[str, ClientTwin]:
        """Read all twins, at the start."""

        def read(connection: sqlite3.Connection) -> dict[str, ClientTwin]:
            rows = connection.execute("SELECT client_id, document FROM client_twin").fetchall()
            return {client_id: twin for client_id, text in rows if (twin := _restored(text))}

        return await self._store.database.run(read)

    def save(self, client_id: str, document: bytes | None, settle: Settle) -> None:
        """Write a twin, or remove it with None; `settle(0, None)` follows once that is durable."""
        with self._store.writer.together() as transaction:
            if self._transaction is not transaction:
                self._transaction = transaction
                self._changes = {}
                self._waiters = []
                write = partial(_write, self._changes)
                future = self._store.writer.transact(write, commit_now=False)
                future.add_done_callback(partial(_settle_all, self._waiters))
            self._changes[client_id] = document
            self._waiters.append(settle)


def _write(changes: dict[str, bytes | None], connection: sqlite3.Connection) -> None:
    # May run again when its transaction has to be repeated.
    connection.executemany(
        "INSERT OR REPLACE INTO client_twin (client_id, document) VALUES (?, ?)",
        [(client_id, document) for client_id, document in changes.items() if document is not None],
    )
    connection.executemany(
        "DELETE FROM client_twin WHERE client_id = ?",
        [(client_id,) for client_id, document in changes.items() if document is None],
    )


def _settle_all(waiters: list[Settle], future: asyncio.Future[None]) -> None:
    refusal = refusal_of(future, "twins.change_not_stored")
    for settle in waiters:
        settle(0, refusal)


def _restored(text: bytes) -> ClientTwin | None:
    # A file that was damaged and salvaged may hold anything.
    try:
        return ClientTwin.restored(text)
    except (ValueError, TypeError):
        return None
