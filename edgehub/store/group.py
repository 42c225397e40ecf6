"""What one commit will write of new messages: rows by queue, and who waits for them.

Owns rows between `append` and their commit. Invariant: a message is in one group with all of its
rows; waiters stand in the order of their messages.
"""

from __future__ import annotations

import asyncio
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from edgehub.message import Refusal, Row
    from edgehub.store.encoding import Params
    from edgehub.store.queue import Queue

    Settle = Callable[[int, Refusal | None], None]
    Waiter = tuple[Settle, int, int]  # settle, token, offset of the message's first row

GROUP_ROWS_MAX: Final = 1024
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""One commit of large messages must not keep the small ones behind it waiting for long."""

Operation = tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]
"""Work that joins the transaction, and who waits for its result."""


NO_BARRIER: Final = 2**31


class Part:
    """The rows of one group that go to one queue, in order of their offsets.

    Attributes:
        plain: Columns of the usual rows; `full` those of rows with recency or a shared body.
        recency: Some of its rows have it.
        bytes: Sum of the sizes of its rows.
        handed_out: So many of the first rows were read by the pump before the commit.
        early_max: Rows from this one on wait for their commit; a shared message is only read
            once all of its rows are stored.
        senders: Those of the plain rows, for the journal; none once rows were taken out.
        withdrawn: Offsets of rows that were confirmed before the commit.
    """

    __slots__ = (
        "bytes",
        "early_max",
        "full",
        "handed_out",
        "plain",
        "queue",
        "recency",
        "rows",
        "senders",
        "withdrawn",
    )

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.rows: list[Row] = []
        self.plain: list[Params] = []
        self.full: list[Params] = []
        self.senders: list[str] = []
        self.recency = False
        self.bytes = 0
        self.handed_out = 0
        self.early_max = NO_BARRIER
        self.withdrawn: set[int] = set()

    def prune(self) -> None:
        """Drop the rows that were withdrawn."""
        gone = self.withdrawn
        self.rows = [row for row in self.rows if row.offset not in gone]
        self.plain = [columns for columns in self.plain if columns[0] not in gone]
        self.full = [columns for columns in self.full if columns[0] not in gone]
        self.senders = []
        self.handed_out -= len(gone)
        if self.early_max != NO_BARRIER:
            self.early_max -= len(gone)
        self.withdrawn = set()

    def split(self, offset: int) -> tuple[Part, Part]:
        """Part the rows below `offset` from the others."""
        low, high = Part(self.queue), Part(self.queue)
        cut = bisect_left(self.rows, offset, key=lambda row: row.offset)
        low.rows, high.rows = self.rows[:cut], self.rows[cut:]
        low.plain, high.plain = _cut(self.plain, offset)
        low.full, high.full = _cut(self.full, offset)
        low.handed_out = min(self.handed_out, cut)
        high.handed_out = self.handed_out - low.handed_out
        low.recency = high.recency = self.recency
        low.bytes = sum([row.size for row in low.rows])
        high.bytes = self.bytes - low.bytes
        return low, high


class Group:
    """Messages that are committed together.

    Attributes:
        apart: Results of other rows do not join, so that an error is surely one of these rows'.
        commit_now: Some operation does not wait for more rows.
        freeing: Operations that only delete.
    """

    __slots__ = (
        "apart",
        "bodies",
        "bytes",
        "commit_now",
        "freeing",
        "operations",
        "parts",
        "rows",
        "waiters",
    )

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.bodies: list[Params] = []
        self.waiters: list[Waiter] = []
        self.operations: list[Operation] = []
        self.freeing: list[Operation] = []
        self.rows = 0
        self.bytes = 0
        self.apart = False
        self.commit_now = False

    def __bool__(self) -> bool:
        return bool(self.rows or self.operations or self.freeing)

    @property
    def only_frees(self) -> bool:
        """Return whether nothing of it needs space."""
        return not (self.rows or self.operations)

    def part(self, queue: Queue) -> Part:
        """Open the part of a queue that has none in this group."""
        part = Part(queue)
        self.parts.append(part)
        queue.reader.open_part = part
        return part

    def withdraw(self, part: Part, row: Row) -> None:
        """Take out a row that is alone in its message, and tell its waiter that all is well."""
        part.withdrawn.add(row.offset)
        part.bytes -= row.size
        self.rows -= 1
        self.bytes -= row.size
        index = bisect_left(self.waiters, row.offset, key=_offset_of)
        settle, token, offset = self.waiters[index]
        assert offset == row.offset, (offset, row.offset)
        self.waiters[index] = (_settled_before, token, row.offset)
        settle(token, None)

    def oldest_ms(self) -> int:
        """Forget the rows that were withdrawn; gives when the oldest one left has come in.

        Returns:
            Hub time, `NEVER_MS` = no row is left.
        """
        for part in self.parts:
            if part.withdrawn:
                part.prune()
                if not part.rows:
                    part.queue.reader.open_part = None
        self.parts = [part for part in self.parts if part.rows]
        self.waiters = [waiter for waiter in self.waiters if waiter[0] is not _settled_before]
        return min([part.rows[0].enqueued_ms for part in self.parts], default=NEVER_MS)

    def seal(self) -> None:
        """Let no more rows join."""
        pruned = False
        for part in self.parts:
            if part.withdrawn:
                part.prune()
                pruned = True
            part.queue.sealed_rows += len(part.rows)
            part.queue.sealed_bytes += part.bytes
            reader = part.queue.reader
            reader.open_part = None
            reader.sealed_rows += len(part.rows) - part.handed_out
        if pruned:
            self.parts = [part for part in self.parts if part.rows]
            self.waiters = [waiter for waiter in self.waiters if waiter[0] is not _settled_before]

    def halves(self) -> tuple[Group, Group]:
        """Split between two messages; what joins the transaction goes with the later half."""
        assert len(self.waiters) > 1
        middle = len(self.waiters) // 2
        offset = self.waiters[middle][2]
        halves = low, high = Group(), Group()
        low.apart = high.apart = True
        low.waiters, high.waiters = self.waiters[:middle], self.waiters[middle:]
        low.bodies, high.bodies = _cut(self.bodies, offset)
        high.operations, high.freeing = self.operations, self.freeing
        for part in self.parts:
            for half, rest in zip(halves, part.split(offset), strict=True):
                if rest.rows:
                    half.parts.append(rest)
                    half.rows += len(rest.rows)
                    half.bytes += rest.bytes
        return halves


def take_freeing(groups: Iterable[Group]) -> list[Operation]:
    """Take the operations that only delete out of some groups."""
    freeing: list[Operation] = []
    for group in groups:
        freeing += group.freeing
        group.freeing = []
    return freeing


def _offset_of(waiter: Waiter) -> int:
    return waiter[2]


def _settled_before(_token: int, _refusal: Refusal | None) -> None:
    """Stand in for a waiter that has its answer."""


def _first_column(columns: Params) -> int:
    offset = columns[0]
    assert isinstance(offset, int)
    return offset


def _cut(rows: list[Params], offset: int) -> tuple[list[Params], list[Params]]:
    cut = bisect_left(rows, offset, key=_first_column)
    return rows[:cut], rows[cut:]
