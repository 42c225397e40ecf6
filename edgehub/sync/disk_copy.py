"""The last table of a shared storage, kept in `state.db` for a start without that storage.

Owns the tables `route_copy` and `route_copy_of`. The copy follows at most once a second, and is
only used at start: the table of the storage, once it answers, replaces it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.storage.state_file import StateError
from edgehub.sync.sqlite import parse_row
from edgehub.sync.storage import Begun, Position, StoredRow

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from edgehub.clock import Clock
    from edgehub.routes.tenant import RouteKey
    from edgehub.storage.state_file import StateFile
    from edgehub.sync.reconciler import Reconciler
    from edgehub.sync.storage import Row

WRITE_S: Final = 1.0
"""Changes of so long go into one write."""

log = structlog.get_logger(__name__)


class DiskCopy:
    """The copy.

    Args:
        file: The open file.
        reconciler: Has the rows to copy.
        clock: For waits.
        table: Name of the shared table; the copy of another one is ignored.
    """

    def __init__(
        self, file: StateFile, reconciler: Reconciler, clock: Clock, *, table: str
    ) -> None:
        self._file = file
        self._reconciler = reconciler
        self._clock = clock
        self._table = table
        self._changed: set[RouteKey] = set()
        self._whole = True
        self._failing = False
        self._due = asyncio.Event()

    def changed(self, keys: Iterable[RouteKey]) -> None:
        """Schedule a copy of these rows."""
        self._changed.update(keys)
        if self._changed:
            self._due.set()

    async def load(self) -> tuple[Position, dict[RouteKey, Row]] | None:
        """Read the copy, None = there is none of this table."""

        def job(
            connection: sqlite3.Connection,
        ) -> tuple[dict[str, str], list[tuple[str, str, str | None]]]:
            of = dict(connection.execute("SELECT name, value FROM route_copy_of"))
            return of, connection.execute("SELECT key, raw, text FROM route_copy").fetchall()

        try:
            of, found = await self._file.run(job)
        except StateError as error:
            log.warning("sync.copy_unreadable", reason=str(error))
            return None
        if of.get("table") != self._table:
            return None
        rows = (parse_row(key, raw, text) for key, raw, text in found)
        try:
            begun = Begun(epoch=0, revision=0, first=0, root=int(of["root"]))
            position = Position(
                epoch=int(of["epoch"]),
                server=of["server"],
                revision=int(of["revision"]),
                begun=begun,
            )
        except (KeyError, ValueError) as error:
            # A file that was damaged and salvaged may lack any row.
            log.warning("sync.copy_unreadable", reason=f"{type(error).__name__}: {error}")
            return None
        return position, {row.key: row for row in rows}

    async def run(self) -> None:
        """Copy what changes, until cancelled."""
        while True:
            await self._due.wait()
            await self._clock.sleep(WRITE_S)
            self._due.clear()
            await self.write()

    async def write(self) -> None:
        """Copy what has changed; the first time all, since routes may have been deleted before.

        A table that was never read leaves the copy as it is.
        """
        position = self._reconciler.applied
        if not position.epoch:
            return
        whole, keys, self._changed = self._whole, self._changed, set()
        if whole:
            keys |= self._reconciler.rows.keys()
        self._whole = False
        deleted: list[tuple[str]] = []
        rows: list[tuple[str, str, str | None]] = []
        for key in keys:
            row = self._reconciler.rows.get(key)
            if row is None:
                deleted.append((str(key),))
            else:
                rows.append((str(key), row.raw, self._text(row)))

        def job(connection: sqlite3.Connection) -> None:
            if whole:
                connection.execute("DELETE FROM route_copy")
            connection.executemany("DELETE FROM route_copy WHERE key = ?", deleted)
            connection.executemany("INSERT OR REPLACE INTO route_copy VALUES (?, ?, ?)", rows)
            connection.executemany(
                "INSERT OR REPLACE INTO route_copy_of VALUES (?, ?)",
                (
                    ("table", self._table),
                    ("epoch", str(position.epoch)),
                    ("server", position.server),
                    ("revision", str(position.revision)),
                    ("root", str(position.root)),
                ),
            )

        try:
            await self._file.run(job)
        except StateError as error:
            if not self._failing:
                log.warning("sync.copy_failed", reason=str(error))
            self._failing = True
            self._whole |= whole
            self.changed(keys)
        else:
            self._failing = False

    def _text(self, row: Row) -> str | None:
        return self._reconciler.text(row) if isinstance(row, StoredRow) else None
