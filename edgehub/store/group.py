"""What one commit writes of new messages: rows by queue, and the callbacks of their senders.

Owns rows between `append` and their commit. Invariant: a message is in one group with all of its
rows; waiters are in the order of their messages.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.message import NEVER_MS
from edgehub.store.queue_rows import QueueRows, split_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.message import Refusal, Row
    from edgehub.store.encoding import Params
    from edgehub.store.queue import Queue

    Settle = Callable[[int, Refusal | None], None]
    Waiter = tuple[Settle, int]  # settle, token

GROUP_ROWS_MAX: Final = 1024
GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""One commit of large messages must not delay the small ones behind it for long."""

Operation = tuple[Callable[[sqlite3.Connection], Any], asyncio.Future[Any]]
"""Work that joins the transaction, and the future of its result."""


class Group(Struct, eq=False):
    """Messages that are committed together.

    Attributes:
        rows_of: The rows of each queue.
        rows: Their number over all queues.
        apart: Results of other rows do not join, so that an error is surely one of these rows'.
        commit_now: Some operation does not wait for more rows.
        freeing: Operations that only delete.
        waiters: By the offset of their message's first row.
        withdrawn_rows: Withdrawn rows that are still in memory.
        withdrawn_bytes: Sum of their sizes.
    """

    rows_of: dict[Queue, QueueRows] = {}
    bodies: list[Params] = []
    waiters: dict[int, Waiter] = {}
    operations: list[Operation] = []
    freeing: list[Operation] = []
    rows: int = 0
    bytes: int = 0
    apart: bool = False
    commit_now: bool = False
    withdrawn_rows: int = 0
    withdrawn_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.rows or self.operations or self.freeing)

    @property
    def only_frees(self) -> bool:
        """Return whether nothing of it needs space."""
        return not (self.rows or self.operations)

    def open_rows(self, queue: Queue) -> QueueRows:
        """Start the rows of a queue that has none in this group."""
        queue.reader.open_rows = self.rows_of[queue] = opened = QueueRows()
        return opened

    def withdraw(self, joined: QueueRows, rows: Sequence[Row], size: int) -> list[Waiter]:
        """Remove rows that are alone in their messages; return their waiters, to be notified.

        Args:
            joined: The rows of their queue.
            rows: The rows.
            size: Sum of their sizes.
        """
        offsets = [row.offset for row in rows]
        joined.withdrawn.update(offsets)
        joined.bytes -= size
        self.rows -= len(rows)
        self.bytes -= size
        self.withdrawn_rows += len(rows)
        self.withdrawn_bytes += size
        pop = self.waiters.pop
        settled = [pop(offset) for offset in offsets]
        # While commits take long, or fail, the group stays open.
        if self.withdrawn_rows >= GROUP_ROWS_MAX or self.withdrawn_bytes >= GROUP_BYTES_MAX:
            self.prune()
        return settled

    def needs_commit(self) -> bool:
        """Return whether rows of it cannot leave before their commit."""
        return any(joined.early_max < len(joined.rows) for joined in self.rows_of.values())

    def oldest_ms(self) -> int:
        """Remove withdrawn rows for good, and return when the oldest row left was appended.

        Returns:
            Hub time, `NEVER_MS` = no row is left.
        """
        self.prune()
        return min(
            [joined.rows[0].enqueued_ms for joined in self.rows_of.values()], default=NEVER_MS
        )

    def seal(self) -> None:
        """Close the group for further rows."""
        self.prune()
        for queue, joined in self.rows_of.items():
            queue.sealed_rows += len(joined.rows)
            queue.sealed_bytes += joined.bytes
            queue.reader.open_rows = None
            queue.reader.sealed.append(joined)

    def prune(self) -> None:
        """Remove withdrawn rows for good."""
        pruned = [(queue, joined) for queue, joined in self.rows_of.items() if joined.withdrawn]
        for queue, joined in pruned:
            joined.prune()
            if not joined.rows:
                queue.reader.remove(joined)
                del self.rows_of[queue]
        self.withdrawn_rows = self.withdrawn_bytes = 0

    def halves(self) -> tuple[Group, Group]:
        """Split a sealed group between two messages; operations go with the later half."""
        assert len(self.waiters) > 1
        offsets = list(self.waiters)
        offset = offsets[len(offsets) // 2]
        halves = low, high = Group(), Group()
        low.apart = high.apart = True
        for first, waiter in self.waiters.items():
            (low if first < offset else high).waiters[first] = waiter
        low.bodies, high.bodies = split_columns(self.bodies, offset)
        high.operations, high.freeing = self.operations, self.freeing
        for queue, joined in self.rows_of.items():
            parts = joined.split(offset)
            queue.reader.split(joined, [rest for rest in parts if rest.rows])
            for half, rest in zip(halves, parts, strict=True):
                if rest.rows:
                    half.rows_of[queue] = rest
                    half.rows += len(rest.rows)
                    half.bytes += rest.bytes
        return halves


def take_freeing(groups: Iterable[Group]) -> list[Operation]:
    """Remove and return the operations of some groups that only delete."""
    freeing: list[Operation] = []
    for group in groups:
        freeing += group.freeing
        group.freeing = []
    return freeing
