"""Error kinds: what an exception of the sqlite3 module asks for."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from edgehub.errors import StoreCorruptError
from edgehub.storage.sqlite_transaction import in_transaction
from edgehub.store.database import (
    Fault,
    StoreBusyError,
    StoreValueError,
    classify,
    translate,
)
from tests.support.stores import sqlite_error


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("SQLITE_FULL", Fault.RETRY),
        ("SQLITE_IOERR", Fault.RETRY),
        ("SQLITE_IOERR_FSYNC", Fault.RETRY),
        ("SQLITE_BUSY", Fault.RETRY),
        ("SQLITE_BUSY_SNAPSHOT", Fault.RETRY),
        ("SQLITE_LOCKED", Fault.RETRY),
        ("SQLITE_READONLY", Fault.RETRY),
        ("SQLITE_CANTOPEN", Fault.RETRY),
        ("SQLITE_NOMEM", Fault.RETRY),
        ("SQLITE_CORRUPT", Fault.DAMAGE),
        ("SQLITE_CORRUPT_VTAB", Fault.DAMAGE),
        ("SQLITE_NOTADB", Fault.DAMAGE),
        ("SQLITE_CONSTRAINT_PRIMARYKEY", Fault.VALUES),
        ("SQLITE_TOOBIG", Fault.VALUES),
        ("SQLITE_MISMATCH", Fault.VALUES),
        ("SQLITE_MISUSE", Fault.BUG),
        ("SQLITE_ERROR", Fault.BUG),
    ],
)
def test_codes(name: str, fault: Fault) -> None:
    """Extended codes count as their primary code."""
    assert classify(sqlite_error(name)) is fault


@pytest.mark.parametrize("value", [2**70, "\ud800", object()])
def test_values_that_cannot_be_bound(value: object) -> None:
    """Errors that the module raises before it asks SQLite are errors of the value."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the kinds are what is tested
        connection.execute("INSERT INTO t VALUES (?)", (value,))
    connection.close()
    assert classify(caught.value) is Fault.VALUES


def test_misuse_of_a_closed_connection_is_a_bug() -> None:
    """Not every error without a code is a value's fault."""
    connection = sqlite3.connect(":memory:")
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        connection.execute("SELECT 1")
    assert classify(caught.value) is Fault.BUG
    assert translate(caught.value) is caught.value
    assert classify(ValueError()) is Fault.BUG


def test_what_the_system_refuses_is_tried_again() -> None:
    """A job that finds no descriptor, or no file, stands behind the disk's errors, not ours."""
    busy = translate(OSError(errno.EMFILE, "Too many open files"))
    assert isinstance(busy, StoreBusyError)
    assert str(busy) == "EMFILE: [Errno 24] Too many open files"
    assert classify(FileNotFoundError()) is Fault.RETRY


def test_translation_keeps_code_and_words() -> None:
    """The store's own errors carry what a person needs."""
    busy = translate(sqlite_error("SQLITE_FULL"))
    assert isinstance(busy, StoreBusyError)
    assert busy.code == "SQLITE_FULL"
    assert isinstance(translate(MemoryError()), StoreBusyError)
    assert isinstance(translate(sqlite_error("SQLITE_CORRUPT")), StoreCorruptError)
    assert isinstance(translate(sqlite_error("SQLITE_TOOBIG")), StoreValueError)


def test_transaction_leaves_nothing_behind_on_any_error() -> None:
    """Rolled back, also where SQLite has done so by itself, and on cancellation."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY)")

    def fail(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute("INSERT OR ROLLBACK INTO t VALUES (1)")

    with pytest.raises(sqlite3.IntegrityError):
        in_transaction(connection, fail)

    def interrupt(conn: sqlite3.Connection) -> None:
        conn.execute("INSERT INTO t VALUES (1)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_transaction(connection, interrupt)
    assert not connection.in_transaction
    assert in_transaction(connection, lambda conn: conn.execute("SELECT * FROM t").fetchall()) == []
    connection.close()
