"""The schema of queue.db and its versions.

Owns `user_version`. Scripts run forward only, each in its own transaction; a file that is newer
than this program is refused, because an older program would not keep what the newer one relies on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgehub.errors import StartupError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID: Final = 0x65644875  # "edHu"


def read_sql(name: str) -> str:
    """Return the text of one of the package's SQL files; for the import of a module only.

    While the hub runs its files may be replaced by those of another version, or no descriptor be
    free to read them.
    """
    return Path(__file__).with_name(name).read_text("utf-8")


SCRIPTS: Final = (
    read_sql("schema.sql"),
    read_sql("schema_2.sql"),
    read_sql("schema_3.sql"),
    read_sql("schema_4.sql"),
)
"""Script n brings a file from version n to version n + 1."""


def migrate(connection: sqlite3.Connection, scripts: tuple[str, ...] = SCRIPTS) -> None:
    """Bring the file to the newest schema.

    Raises:
        StartupError: The file is newer than this program.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(scripts):
        raise StartupError(
            f"the queue file has schema version {version}, this program knows {len(scripts)};"
            " start the newer program again, or move the file away to start empty"
        )
    for number, script in enumerate(scripts[version:], start=version + 1):
        # executescript would commit first; the version must change together with the schema.
        sql = f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;"
        try:
            connection.executescript(sql)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
