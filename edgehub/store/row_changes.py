"""Changes of the rows of one subsystem, one operation of each transaction for all of them.

Owns the changes that wait for the open transaction. Invariants: changes made inside one
`Writer.together` are in one transaction with what is appended there; nothing is added to changes of
a committed transaction; a later change of a row replaces an earlier one that is not written yet.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from edgehub.store.failure import refusal_of

if TYPE_CHECKING:
    import asyncio
    import sqlite3
    from collections.abc import Callable, Hashable

    from edgehub.message import Refusal
    from edgehub.store.writer import Writer

    Settle = Callable[[int, Refusal | None], None]
    Statement = tuple[str, tuple[object, ...]]


class RowChanges:
    """Changes of rows on their way to disk.

    Args:
        writer: Of the store.
        event: Logged for an error that is not of the store.
        commit_now: Whether the transaction does not wait for more rows.
    """

    def __init__(self, writer: Writer, event: str, *, commit_now: bool = True) -> None:
        self._writer = writer
        self._event = event
        self._commit_now = commit_now
        self._transaction: object = None
        self._statements: dict[Hashable, Statement] = {}
        self._waiters: list[Settle] = []
        self._written: asyncio.Future[None] | None = None

    def add(
        self,
        key: Hashable,
        statement: Statement,
        settle: Settle | None = None,
        *,
        later: bool = False,
    ) -> asyncio.Future[None]:
        """Write or delete a row with what was handed in last; done once that is durable.

        Args:
            key: Of the row; the statement replaces an earlier one of that key.
            statement: SQL and its values; it may run again when its transaction is repeated.
            settle: Called with 0 and why it is refused, None = it is on disk.
            later: Nothing waits for it; see `Writer.transact`.
        """
        writer, written = self._writer, self._written
        if written is None or written.done() or writer.group is not self._transaction:
            with writer.together() as self._transaction:
                self._statements = {}
                self._waiters = []
                write = partial(execute_all, self._statements)
                written = self._written = writer.transact(
                    write, commit_now=self._commit_now, later=later
                )
                written.add_done_callback(partial(_settle, self._event, self._waiters))
        elif self._commit_now and not later:
            writer.commit_now()
        self._statements[key] = statement
        if settle is not None:
            self._waiters.append(settle)
        return written

    def wait(self, settle: Settle) -> None:
        """Call `settle` once the last changes are on disk, at once if they are."""
        if self._written is None or self._written.done():
            settle(0, None)
        else:
            self._waiters.append(settle)


def execute_all(statements: dict[Hashable, Statement], connection: sqlite3.Connection) -> None:
    """Execute the statements of the rows inside the running transaction."""
    for sql, values in statements.values():
        connection.execute(sql, values)


def _settle(event: str, waiters: list[Settle], written: asyncio.Future[None]) -> None:
    refusal = refusal_of(written, event)
    for settle in waiters:
        settle(0, refusal)
