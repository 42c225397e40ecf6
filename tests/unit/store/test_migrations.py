"""Schema versions: forward only, each script whole."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from edgehub.errors import StartupError
from edgehub.store.migrations import SCRIPTS, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """Return an empty database."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def version(connection: sqlite3.Connection) -> int:
    """Read the schema version."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_new_file_gets_the_newest_schema_once(connection: sqlite3.Connection) -> None:
    """Running again changes nothing."""
    migrate(connection)
    migrate(connection)
    assert version(connection) == len(SCRIPTS)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    assert {"meta", "boot", "queue", "body", "zone", "dead_letter", "session"} <= tables


def test_failed_script_leaves_the_version_before(connection: sqlite3.Connection) -> None:
    """A script and its version number are one transaction."""
    migrate(connection)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, (*SCRIPTS, *SCRIPTS))
    assert version(connection) == len(SCRIPTS)
    assert not connection.in_transaction


def test_newer_file_is_refused(connection: sqlite3.Connection) -> None:
    """An older program does not touch what it does not know."""
    connection.execute("PRAGMA user_version = 7")
    with pytest.raises(StartupError, match="schema version 7"):
        migrate(connection)
