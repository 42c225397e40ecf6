"""One transaction of SQLite, by the connection's own thread.

Invariant: a failed transaction is rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

T = TypeVar("T")


def in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` between BEGIN IMMEDIATE and COMMIT; on any error nothing of it stays."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself on some errors (disk full, for one).
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result
