"""Rows of one queue that are held back until they are released, and those released since.

Owns the holds, of senders and of single rows, and the offsets to be read again: both of rows in the
file. Invariant: a skipped row is counted once, under its own hold or its sender's.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgehub.message import Row

HELD_ROWS_MAX: Final = 1_000_000


class HeldRows:
    """The held rows of one reader.

    Attributes:
        recall: Offsets below the read position that are read next from the file, in order.
    """

    __slots__ = ("_count", "_rows", "_senders", "recall")

    def __init__(self) -> None:
        self.recall = array("q")
        self._senders: dict[str, array[int]] = {}
        self._rows: dict[int, bool] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._senders or self._rows)

    @property
    def is_full(self) -> bool:
        """Return whether no more may be skipped: the offsets take memory."""
        return self._count >= HELD_ROWS_MAX

    def hold_sender(self, sender: str) -> None:
        """Skip the rows of `sender` from now on."""
        self._senders.setdefault(sender, array("q"))

    def release_sender(self, sender: str) -> None:
        """End `hold_sender`; the skipped rows are read next."""
        skipped = self._senders.pop(sender, None)
        if skipped:
            self._count -= len(skipped)
            self.remember(skipped)

    def hold_row(self, offset: int) -> None:
        """Skip one row from now on."""
        self._rows.setdefault(offset, False)

    def release_row(self, offset: int) -> None:
        """End `hold_row`."""
        if self._rows.pop(offset, False):
            self._count -= 1
            self.remember([offset])

    def holds(self, row: Row) -> bool:
        """Return whether a row or its sender is held."""
        return row.offset in self._rows or row.message.sender in self._senders

    def skip(self, row: Row) -> None:
        """Record a row of the file that was skipped."""
        offset = row.offset
        if offset in self._rows:
            self._rows[offset] = True
        else:
            self._senders[row.message.sender].append(offset)
        self._count += 1

    def remember(self, offsets: Iterable[int]) -> None:
        """Read rows of the file again, ahead of the read position."""
        self.recall = array("q", sorted([*self.recall, *offsets]))

    def recalled(self, offsets: set[int]) -> None:
        """Record that rows were read again."""
        self._keep_recall(lambda offset: offset not in offsets)

    def go_back(self, lowest: int) -> None:
        """Forget what was skipped from `lowest` on: it is read again."""
        self._keep_recall(lambda offset: offset < lowest)
        self._keep_skipped(lambda offset: offset < lowest)

    def evict(self, offsets: set[int]) -> None:
        """Forget skipped rows that are evicted."""
        self._keep_recall(lambda offset: offset not in offsets)
        self._keep_skipped(lambda offset: offset not in offsets)

    def _keep_recall(self, stays: Callable[[int], bool]) -> None:
        if self.recall:
            self.recall = array("q", filter(stays, self.recall))

    def _keep_skipped(self, stays: Callable[[int], bool]) -> None:
        for sender, skipped in self._senders.items():
            kept = array("q", filter(stays, skipped))
            self._count -= len(skipped) - len(kept)
            self._senders[sender] = kept
        for offset, was_skipped in self._rows.items():
            if was_skipped and not stays(offset):
                self._rows[offset] = False
                self._count -= 1
