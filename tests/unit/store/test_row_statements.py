"""Rows of one commit: how many statements write and delete them, and that none is left out."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from edgehub.store.migrations import migrate
from edgehub.store.transaction import (
    Outcome,
    QueueWrite,
    create_queue_table,
    delete_rows,
    write_queue,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.store.encoding import Params


@contextmanager
def _a_queue() -> Iterator[tuple[sqlite3.Connection, list[str]]]:
    """Return a connection with the table of queue 1, and the statements that it executes."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection)
        create_queue_table(connection, 1)
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        yield connection, statements


def _plain(offset: int) -> Params:
    return (offset, 5, None, 90, 1, b"[%d]" % offset, b"body-%d" % offset)


@pytest.mark.parametrize(
    ("rows", "statements"), [(1, 1), (32, 1), (33, 2), (63, 6), (100, 4), (0, 0)]
)
def test_the_rest_of_a_group_is_halved(rows: int, statements: int) -> None:
    """Each statement hands the interpreter over, so a rest must not be written row by row."""
    written = [_plain(offset) for offset in range(1, rows + 1)]
    with _a_queue() as (connection, executed):
        write_queue(connection, QueueWrite(1, plain=written), Outcome(), 0)
        assert sum(sql.startswith("INSERT INTO q_1") for sql in executed) == statements
        stored = connection.execute(
            "SELECT offset, enqueued_ms, expires_ms, size, routes, header, body FROM q_1"
            " ORDER BY offset"
        ).fetchall()
    assert stored == written


@pytest.mark.parametrize("leaving", [[3, 4, 5], [4, 3, 5], [3, 5], [1, 6]])
def test_exactly_the_rows_that_leave_are_deleted(leaving: list[int]) -> None:
    """Rows without others in between, in any order, and rows around others that stay."""
    with _a_queue() as (connection, _):
        write = QueueWrite(1, plain=[_plain(offset) for offset in range(1, 7)])
        write_queue(connection, write, Outcome(), 0)
        delete_rows(connection, QueueWrite(1, deletes=leaving))
        left = [offset for (offset,) in connection.execute("SELECT offset FROM q_1")]
    assert left == [offset for offset in range(1, 7) if offset not in leaving]


def test_a_row_that_is_named_twice_takes_no_other_along() -> None:
    """The number of deleted rows would be right, and the row in between lost."""
    with _a_queue() as (connection, _):
        write = QueueWrite(1, plain=[_plain(offset) for offset in range(1, 7)])
        write_queue(connection, write, Outcome(), 0)
        with pytest.raises(AssertionError):
            delete_rows(connection, QueueWrite(1, deletes=[3, 3, 5]))
        assert connection.execute("SELECT 1 FROM q_1 WHERE offset = 4").fetchall() == [(1,)]
