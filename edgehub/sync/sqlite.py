"""The table of one hub in `state.db`, or in temporary tables of that connection.

Owns the tables `route_row`, `route_content` and `route_table`. A write is one transaction, synced
before it is answered. There are no other writers, so no log is kept; a hub that starts reads
everything anyway.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgehub.routes.tenant import RouteKey
from edgehub.storage.state_file import StateError
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.plan import check_table, plan_write
from edgehub.sync.storage import BrokenRow, Digest, Position, Row, StoredRow, WriteResult

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import TypeVar

    from edgehub.clock import Clock
    from edgehub.storage.state_file import StateFile
    from edgehub.sync.storage import Change, LogEntry, Report

    T = TypeVar("T")

SCRIPT: Final = Path(__file__).with_name("rows.sql").read_text("utf-8")
"""Makes the tables; handed to `StateFile.add`."""

TEMPORARY: Final = SCRIPT.replace("CREATE TABLE", "CREATE TEMP TABLE")
"""Makes them for a hub that forgets its routes at a stop; they hide those of the file."""

PAGE: Final = 100
"""Rows of one page."""


class SqliteStorage:
    """The access of the one hub to its table in `state.db`.

    Args:
        file: The open file, with the tables of `SCRIPT` or `TEMPORARY`.
        clock: Times of rows.
        kind: Name in the settings.
    """

    def __init__(self, file: StateFile, clock: Clock, *, kind: str = "sqlite") -> None:
        self.kind = kind
        self._file = file
        self._clock = clock
        self._report: Report | None = None

    async def position(self) -> Position:
        """Return the position of the table."""
        return await self._run(_position)

    async def read(self, keys: Sequence[RouteKey]) -> list[Row | None]:
        """Read rows with their contents, each as it is now; None = there is none."""

        def job(connection: sqlite3.Connection) -> list[Row | None]:
            return [_row(connection, key) for key in keys]

        return await self._run(job)

    async def scan(self) -> AsyncIterator[list[Row]]:
        """Read all rows without contents, page by page; a row may come twice."""
        last = ""
        while True:

            def job(connection: sqlite3.Connection, after: str = last) -> list[tuple[str, str]]:
                query = "SELECT key, raw FROM route_row WHERE key > ? ORDER BY key LIMIT ?"
                return connection.execute(query, (after, PAGE)).fetchall()

            page = await self._run(job)
            if not page:
                return
            last = page[-1][0]
            yield [parse_row(key, raw) for key, raw in page]

    async def digest(self) -> Digest:
        """Return the sum over all rows, computed where they are."""
        return await self._run(
            lambda connection: Digest.of(connection.execute("SELECT key, raw FROM route_row"))
        )

    async def write(
        self, changes: Sequence[Change], *, session: str, expected: int | None = None
    ) -> WriteResult:
        """Apply all changes or none."""
        del session
        now_ms = self._clock.wall_ms()
        return await self._run(lambda connection: _write(connection, changes, expected, now_ms))

    async def restore(
        self,
        rows: Sequence[StoredRow],
        deleted: Sequence[RouteKey],
        *,
        at: Position,
        version: Position,
    ) -> bool:
        """Refuse: rows and epoch are in one file of this hub alone, so none is ever lost."""
        del rows, deleted, at, version
        return False

    async def asked_since(self, begun: Position) -> set[RouteKey] | None:
        """Return None: there is no log."""
        del begun
        return None

    def knows(self, epoch: int) -> None:
        """Do nothing: there is one writer."""

    async def follow(self, after: Position, wait_s: float) -> list[LogEntry]:
        """Wait in vain: there are no other writers."""
        del after
        await self._clock.sleep(wait_s)
        return []

    async def report(self, report: Report, *, expires_s: float) -> str:
        """Store this hub's report in place of its last one; it expires."""
        del expires_s
        self._report = report
        return ""

    async def reports(self) -> list[Report]:
        """Read the reports that have not expired."""
        return [] if self._report is None else [self._report]

    async def leave(self, hub_id: str) -> None:
        """Delete this hub's report: it stops."""
        del hub_id
        self._report = None

    async def close(self) -> None:
        """Close connections; the file belongs to the hub."""

    async def _run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.run(job)
        except StateError as exc:
            raise StorageUnavailableError(str(exc)) from exc


def parse_row(key: str, raw: str, text: str | None = None) -> Row:
    """Parse a row; a broken one becomes a `BrokenRow`."""
    try:
        parsed = RouteKey.parse(key)
    except ValueError:
        return BrokenRow(key=RouteKey.parse(f"default/default/{key or '?'}"), raw=raw, reason="key")
    try:
        return StoredRow.parse(parsed, raw, text)
    except ValueError as exc:
        return BrokenRow(key=parsed, raw=raw, reason=str(exc))


def _position(connection: sqlite3.Connection) -> Position:
    values = dict(connection.execute("SELECT name, value FROM route_table"))
    (rows,) = connection.execute("SELECT count(*) FROM route_row").fetchone()
    return Position(epoch=values.get("epoch", 0), revision=values.get("revision", 0), rows=rows)


def _row(connection: sqlite3.Connection, key: RouteKey) -> Row | None:
    found = connection.execute(
        "SELECT r.raw, c.text FROM route_row r LEFT JOIN route_content c ON c.hash = r.hash "
        "WHERE r.key = ?",
        (str(key),),
    ).fetchone()
    return None if found is None else parse_row(str(key), *found)


def _write(
    connection: sqlite3.Connection, changes: Sequence[Change], expected: int | None, now_ms: int
) -> WriteResult:
    position = _position(connection)
    check_table(expected, position.revision)
    rows = {change.key: _row(connection, change.key) for change in changes}
    present = {key: row for key, row in rows.items() if row is not None}
    counts = {
        tenant: connection.execute(
            "SELECT count(*) FROM route_row WHERE tenant = ?", (str(tenant),)
        ).fetchone()[0]
        for tenant in {change.key.tenant for change in changes}
    }
    revision, stored = plan_write(
        changes, present, counts, revision=position.revision, now_ms=now_ms
    )
    epoch = position.epoch or max(now_ms, 1)
    for change, outcome in zip(changes, stored, strict=True):
        row = outcome.row
        if not outcome.changed:
            continue
        if row is None:
            connection.execute("DELETE FROM route_row WHERE key = ?", (str(change.key),))
            continue
        connection.execute(
            "INSERT INTO route_row VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "raw = excluded.raw, hash = excluded.hash",
            (str(change.key), str(change.key.tenant), row.raw, row.hash),
        )
        if change.hash:
            connection.execute(
                "INSERT INTO route_content VALUES (?, ?) ON CONFLICT DO UPDATE SET "
                "text = excluded.text",
                (change.hash, change.text),
            )
    if revision != position.revision:
        before = {row.hash for row in present.values() if isinstance(row, StoredRow)}
        connection.executemany(
            "DELETE FROM route_content WHERE hash = :hash "
            "AND NOT EXISTS (SELECT 1 FROM route_row WHERE hash = :hash)",
            [{"hash": each} for each in before],
        )
        connection.executemany(
            "INSERT INTO route_table VALUES (?, ?) ON CONFLICT DO UPDATE SET "
            "value = excluded.value",
            (("epoch", epoch), ("revision", revision)),
        )
    return WriteResult(
        epoch=epoch if revision else position.epoch, revision=revision, stored=tuple(stored)
    )
