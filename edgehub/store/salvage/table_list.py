"""A copy of the list of tables next to the database, for the case that the file loses its own.

Owns `<file>.tables`: the first page of each table and index, the queue of each table, and the id of
the store. Written when the file is opened, and before a checkpoint of a changed list (a new queue),
so it is never older than the file. Blocking code. Invariant: the copy is complete or ignored, and
only used as a hint.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Self

import msgspec
import structlog
from msgspec import Struct

from edgehub.storage.durable_files import replace_file

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

log = structlog.get_logger(__name__)

SUFFIX: Final = ".tables"
BYTES_MAX: Final = 16 * 1024 * 1024


class TableList(Struct, frozen=True, kw_only=True):
    """The contents of the copy.

    Attributes:
        version: Of the schema.
        store_id: Of the file.
        roots: First page by name of table or index.
        queues: Number, endpoint and priority.
    """

    version: int
    store_id: str
    roots: dict[str, int]
    queues: list[tuple[int, str, int]]

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> Self:
        """Read it from an open database."""
        stored = connection.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        return cls(
            version=connection.execute("PRAGMA user_version").fetchone()[0],
            store_id="" if stored is None else str(stored[0]),
            roots=dict(
                connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0")
            ),
            queues=connection.execute(
                "SELECT number, endpoint_id, priority FROM queue ORDER BY number"
            ).fetchall(),
        )

    def written(self) -> bytes:
        """Return the content of the file: a line of JSON, and one with its checksum."""
        document = msgspec.json.encode(self)
        return b"%s\n%08x\n" % (document, zlib.crc32(document))


class TableListKeeper:
    """Keeps the copy of one open file up to date."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = -1
        self._failing = False

    def keep(self, connection: sqlite3.Connection) -> None:
        """Write the copy if the list has changed since; on the connection's thread.

        A disk that does not take it costs nothing but the copy: it is tried again the next time.
        """
        version: int = connection.execute("PRAGMA schema_version").fetchone()[0]
        if version == self._version:
            return
        content = TableList.of(connection).written()
        path = list_path(self._path)
        try:
            if not path.exists() or path.read_bytes() != content:
                replace_file(path, content)
        except OSError as exc:
            if not self._failing:
                self._failing = True
                log.warning("store.table_list_not_written", path=str(path), error=str(exc))
            return
        self._failing = False
        self._version = version


def list_path(database: Path) -> Path:
    """Return the name of the copy."""
    return database.with_name(f"{database.name}{SUFFIX}")


def read_table_list(database: Path) -> TableList | None:
    """Read the copy of a database, None = there is none, or it is damaged."""
    try:
        with list_path(database).open("rb") as file:
            document, _, checksum = file.read(BYTES_MAX).rpartition(b"\n")[0].rpartition(b"\n")
        if checksum != b"%08x" % zlib.crc32(document):
            return None
        return msgspec.json.decode(document, type=TableList)
    except (OSError, msgspec.DecodeError):
        return None
