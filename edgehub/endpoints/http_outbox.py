"""Rows that wait for a request, and which of them are next.

Owns the rows that are in no request, and the busy senders, which have one in flight. Invariant:
rows of one sender are taken in the order in which they were put, and none while it is busy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.endpoints.endpoint import Settle
    from edgehub.message import Row

SKIPPED_MAX: Final = 256
"""Rows of busy senders are passed over; to look at more would be slow."""


class OutboxRow(Struct, eq=False):
    """A row with its record.

    Attributes:
        path: Hubs that it has passed, for a peer that is a hub; rows of one request share it.
        size: Bytes in a request: record and comma.
    """

    row: Row
    record: bytes
    settle: Settle
    path: str | None = None
    size: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.record) + 1


class Outbox:
    """The rows that wait for a request.

    Attributes:
        ready_bytes: Bytes of rows that wait for a connection or the link, not for their sender.
    """

    __slots__ = ("_busy", "_bytes_of", "_pending", "ready_bytes")

    def __init__(self) -> None:
        self._pending: deque[OutboxRow] = deque()
        self._busy: set[str] = set()
        self._bytes_of: dict[str, int] = {}
        self.ready_bytes = 0

    def put(self, entry: OutboxRow) -> None:
        """Append a row."""
        sender = entry.row.message.sender
        self._pending.append(entry)
        self._bytes_of[sender] = self._bytes_of.get(sender, 0) + entry.size
        if sender not in self._busy:
            self.ready_bytes += entry.size

    def take(self, rows_max: int, bytes_max: int) -> list[OutboxRow]:
        """Remove and return the rows of one request, in their order; their senders become busy."""
        pending, busy = self._pending, self._busy
        entries: list[OutboxRow] = []
        passed: list[OutboxRow] = []
        size = 0
        while pending and len(entries) < rows_max and len(passed) < SKIPPED_MAX:
            entry = pending[0]
            if entry.row.message.sender in busy:
                passed.append(pending.popleft())
                continue
            if entries and (size + entry.size > bytes_max or entry.path != entries[0].path):
                break
            size += entry.size
            entries.append(pending.popleft())
        pending.extendleft(reversed(passed))
        self._leave(entries)
        return entries

    def done(self, entries: Iterable[OutboxRow]) -> None:
        """Record that a request is over: its senders' next rows may leave."""
        for sender in {entry.row.message.sender for entry in entries} & self._busy:
            self._busy.remove(sender)
            self.ready_bytes += self._bytes_of.get(sender, 0)

    def all_done(self) -> None:
        """Record that no request is in flight."""
        self._busy.clear()
        self.ready_bytes = sum(self._bytes_of.values())

    def clear(self) -> list[OutboxRow]:
        """Remove and return all rows; busy senders stay busy."""
        entries = list(self._pending)
        self._pending.clear()
        self._bytes_of.clear()
        self.ready_bytes = 0
        return entries

    def _leave(self, entries: list[OutboxRow]) -> None:
        for entry in entries:
            sender = entry.row.message.sender
            self.ready_bytes -= entry.size
            left = self._bytes_of[sender] - entry.size
            if left:
                self._bytes_of[sender] = left
            else:
                del self._bytes_of[sender]
        for sender in {entry.row.message.sender for entry in entries}:
            self._busy.add(sender)
            # The rest of its rows waits for this request now.
            self.ready_bytes -= self._bytes_of.get(sender, 0)
