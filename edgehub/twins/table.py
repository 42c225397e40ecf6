"""Twins on disk: one row for each client that has one.

Owns the table `client_twin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.store.row_changes import RowChanges
from edgehub.twins.document import ClientTwin

if TYPE_CHECKING:
    import sqlite3

    from edgehub.store.row_changes import Settle
    from edgehub.store.store import Store

_WRITE: Final = "INSERT OR REPLACE INTO client_twin (client_id, document) VALUES (?, ?)"
_DELETE: Final = "DELETE FROM client_twin WHERE client_id = ?"


class TwinTable:
    """The table of twins.

    Args:
        store: Has it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = RowChanges(store.writer, "twins.change_not_stored", commit_now=False)

    async def load(self) -> dict[str, ClientTwin]:
        """Read all twins, at the start."""

        def read(connection: sqlite3.Connection) -> dict[str, ClientTwin]:
            rows = connection.execute("SELECT client_id, document FROM client_twin").fetchall()
            return {client_id: twin for client_id, text in rows if (twin := _restored(text))}

        return await self._store.database.run(read)

    def save(self, client_id: str, document: bytes | None, settle: Settle) -> None:
        """Write a twin, or remove it with None; `settle(0, None)` follows once that is durable."""
        removed = document is None
        statement = (_DELETE, (client_id,)) if removed else (_WRITE, (client_id, document))
        self._changes.add(client_id, statement, settle)


def _restored(text: bytes) -> ClientTwin | None:
    # A file that was damaged and salvaged may hold anything.
    try:
        return ClientTwin.restored(text)
    except ValueError:
        return None
