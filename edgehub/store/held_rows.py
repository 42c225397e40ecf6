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

    __slots__ = ("_count", "_skipped", "recall")

    def __init__(self) -> None:
        self.recall = array("q")
        self._skipped: dict[str | int, array[int]] = {}
        """Offsets that were skipped, by the sender or row that is held."""
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._skipped)

    @property
    def is_full(self) -> bool:
        """Return whether no more may be skipped: the offsets take memory."""
        return self._count >= HELD_ROWS_MAX

    def hold(self, who: str | int) -> None:
        """Skip the rows of a sender, or the one row of an offset, from now on."""
        self._skipped.setdefault(who, array("q"))

    def release(self, who: str | int) -> None:
        """End `hold`; the skipped rows are read next."""
        skipped = self._skipped.pop(who, None)
        if skipped:
            self._count -= len(skipped)
            self.remember(skipped)

    def holds(self, row: Row) -> bool:
        """Return whether a row or its sender is held."""
        return row.offset in self._skipped or row.message.sender in self._skipped

    def skip(self, row: Row) -> None:
        """Record a row of the file that was skipped."""
        who = row.offset if row.offset in self._skipped else row.message.sender
        self._skipped[who].append(row.offset)
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
        for who, skipped in self._skipped.items():
            kept = array("q", filter(stays, skipped))
            self._count -= len(skipped) - len(kept)
            self._skipped[who] = kept
