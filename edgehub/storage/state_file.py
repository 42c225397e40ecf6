"""`state.db`: state of a hub that could be learned again, unlike the queues.

Owns the only connection to that file; nothing else opens it. Each owner of tables brings a script
that makes them. A damaged file is set aside, and what can be read of it goes into a new one.
Invariants: a job is one transaction, so a crash leaves all of it or nothing; a start that is cut
off while it replaces the file is completed by the next one.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import quote

import structlog

from edgehub.errors import StartupError, StoreError
from edgehub.storage.damaged_database import (
    damaged_files,
    put_in_place,
    remove_database,
    sibling,
)
from edgehub.storage.durable_files import make_private_file
from edgehub.storage.file_presence import FilePresence
from edgehub.storage.sqlite_log import damaged_logs, find_log_damage, replace_log
from edgehub.storage.sqlite_thread import SqliteThread
from edgehub.storage.sqlite_transaction import in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

T = TypeVar("T")

STATE_NAME: Final = "state.db"
APPLICATION_ID: Final = 0x65687374
"""Marks the file as ours, "ehst"."""
CHECKED_BYTES_MAX: Final = 256 * 2**20
"""Larger files are not read whole at the start; damage of theirs shows when it is met."""

log = structlog.get_logger(__name__)


class StateError(StoreError):
    """The file cannot be read or written now."""


class StateFile:
    """The file `state.db` of a hub.

    Attributes:
        path: The file.
        damaged: Names of damaged files that were set aside and are still there, the newest last.
        damaged_logs: Names of damaged logs of it, likewise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: list[str] = []
        self.damaged_logs: list[str] = []
        self._thread = SqliteThread(path)
        self._presence = FilePresence([])

    @classmethod
    async def open(cls, path: Path, scripts: Iterable[str] = ()) -> Self:
        """Open the file, make it if need be.

        Args:
            path: The file; its folder exists.
            scripts: SQL that makes the tables where they are missing.

        Raises:
            StartupError: It cannot be opened or, where it is damaged, not be replaced; or it is
                another program's.
        """
        await asyncio.to_thread(_repair, path)
        with suppress(OSError):  # SQLite reports why the file cannot be had
            await asyncio.to_thread(make_private_file, path)
        file = await cls._open(path, scripts)
        file.damaged = [each.name for each in await asyncio.to_thread(damaged_files, path)]
        file.damaged_logs = await asyncio.to_thread(damaged_logs, path)
        return file

    @classmethod
    async def _open(cls, path: Path, scripts: Iterable[str]) -> Self:
        file = cls(path)
        try:
            await file._thread.open()
            await file._job(_configure)
            for script in scripts:
                await file.add(script)
            await asyncio.to_thread(file._note_files)
        except (sqlite3.Error, StateError) as exc:
            await file.close()
            raise StartupError(
                f"{path} cannot be opened ({exc}); check disk space and rights of its folder, or "
                "move it away: devices and tables are learned again"
            ) from exc
        except BaseException:
            await file.close()
            raise
        return file

    def _note_files(self) -> None:
        self._presence = FilePresence([self.path, sibling(self.path, "-wal")])

    def warnings(self) -> list[str]:
        """Return the warnings for the operator."""
        found = []
        if self.damaged:
            found.append(
                f"{self.path.name} was damaged, and what could not be read of it is lost: devices"
                " are learnt again, routes that came by API or command line may be missing (edgehub"
                f" route list); {', '.join(self.damaged)} has what was there, delete or move it and"
                " restart to end this warning"
            )
        if self.damaged_logs:
            found.append(
                f"the write-ahead log of {self.path.name} was damaged, what could be restored of it"
                f" is in use; {', '.join(self.damaged_logs)} holds the old log: look at the disk,"
                " delete or move it and restart to end this warning"
            )
        return found

    async def add(self, script: str) -> None:
        """Make further tables where they are missing: statements parted by blank lines."""

        def make(connection: sqlite3.Connection) -> None:
            for statement in script.split("\n\n"):
                connection.execute(statement)

        await self.run(make)

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job in one transaction on the connection's thread.

        Raises:
            StateError: The disk prevents it, or a value cannot be stored; nothing was done.
                Or the file is not there any more, and no start would find what was done.
        """

        def checked(connection: sqlite3.Connection) -> T:
            result = in_transaction(connection, job)
            fault = self._presence.fault()
            if fault is not None:
                raise StateError(f"{fault}; restart the hub")
            return result

        return await self._job(checked)

    async def close(self) -> None:
        """Close the file after the jobs handed in before."""
        await self._thread.close()

    async def _job(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._thread.submit(job)
        except (sqlite3.Error, OverflowError) as exc:
            raise StateError(f"{self.path}: {exc}") from exc


def _configure(connection: sqlite3.Connection) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    fresh = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if not fresh and application_id != APPLICATION_ID:
        raise StartupError("state.db is a database of another program; set another data_dir")
    if fresh:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    # A session that was acknowledged to a device must survive a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -2048")
    connection.execute("PRAGMA temp_store = MEMORY")


def _repair(path: Path) -> None:
    """Replace the file where it is damaged, or go on where a start was cut off doing so."""
    salvaged = sibling(path, ".salvaged")
    if not salvaged.exists():
        reason = _restored_log(path) or _damage(path)
        if not reason:
            return
        partial = sibling(path, ".salvage")
        remove_database(partial)
        try:
            make_private_file(partial)
            rows = _salvage(path, partial)
            partial.rename(salvaged)
        except (OSError, sqlite3.Error) as exc:
            raise StartupError(
                f"{path} is damaged ({reason}), and what can be read of it cannot be copied"
                f" ({exc}); check disk space and rights of its folder"
            ) from exc
        log.error("state.damage_found", path=str(path), reason=reason, salvaged_rows=rows)
    put_in_place(path, salvaged, sibling(path, f".damaged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"))


def _restored_log(path: Path) -> str:
    """Put a whole log in the place of a damaged one; return what is wrong where that lost pages."""
    try:
        damage = find_log_damage(path) if path.exists() else None
        if damage is None:
            return ""
        aside = replace_log(path, damage, datetime.now(UTC))
    except OSError as exc:
        raise StartupError(
            f"the write-ahead log of {path} cannot be checked for damage, or not be replaced"
            f" ({exc}); check disk space and rights of its folder"
        ) from exc
    log.error("state.log_damaged", reason=damage.reason, file=aside, lost_pages=len(damage.lost))
    return "" if damage.is_restored else damage.reason


def _damage(path: Path) -> str:
    """Return what is wrong with the file, empty = nothing, or nothing that a copy would repair."""
    if not path.exists() or path.stat().st_size == 0:
        return ""
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if path.stat().st_size <= CHECKED_BYTES_MAX:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                return "" if found == "ok" else str(found)
    except sqlite3.Error as exc:
        if (exc.sqlite_errorcode & 0xFF) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return str(exc)
    except UnicodeDecodeError as exc:
        # SQLite quotes a text of the file that is none.
        return str(exc)
    return ""


def _salvage(source: Path, target: Path) -> int:
    """Copy what can be read to a new file; return the number of rows."""
    rows = 0
    with (
        closing(sqlite3.connect(target, isolation_level=None)) as into,
        closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)) as damaged,
    ):
        _configure(into)
        into.execute("BEGIN")
        with suppress(sqlite3.DatabaseError):
            # Lets SQLite read on where the schema has holes.
            damaged.execute("PRAGMA writable_schema = ON")
        schema, _ = _readable(
            damaged, "SELECT type, name, sql FROM sqlite_schema WHERE sql NOT NULL"
        )
        for kind in ("table", "index"):
            for name, sql in [(str(each[1]), str(each[2])) for each in schema if each[0] == kind]:
                with suppress(sqlite3.DatabaseError):
                    into.execute(sql)
                    rows += _copy(damaged, into, name) if kind == "table" else 0
        into.execute("COMMIT")
        into.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return rows


def _copy(damaged: sqlite3.Connection, into: sqlite3.Connection, table: str) -> int:
    columns = [row[1] for row in into.execute(f'PRAGMA table_info("{table}")')]
    select = f'SELECT * FROM "{table}"'  # noqa: S608 - names from the file's own schema
    rows, is_whole = _readable(damaged, select)
    if not is_whole:
        # From the other end, too, up to what cannot be read.
        rows += _readable(damaged, f'{select} ORDER BY "{columns[0]}" DESC')[0]
        rows = list(dict.fromkeys(rows))
    insert = f'INSERT OR IGNORE INTO "{table}" VALUES ({", ".join("?" * len(columns))})'  # noqa: S608 - likewise
    count = 0
    for row in rows:
        with suppress(sqlite3.IntegrityError):
            count += into.execute(insert, row).rowcount
    return count


def _readable(connection: sqlite3.Connection, sql: str) -> tuple[list[tuple[object, ...]], bool]:
    """Return the rows before the first that cannot be read, and whether these are all."""
    found: list[tuple[object, ...]] = []
    try:
        found.extend(connection.execute(sql))
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return found, False
    return found, True
