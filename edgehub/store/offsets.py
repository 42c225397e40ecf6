"""The hub-wide counter of offsets and its stored high-water mark.

Invariant: no offset is used twice, also after a crash. Offsets that were not visible outside before
their commit may be reused after a crash; where rows are read before their commit, the mark is
stored ahead of them.
"""

from __future__ import annotations

from typing import Final

RESERVE: Final = 65_536
"""Offsets reserved ahead by one commit where rows are read before their own."""


class Offsets:
    """The counter."""

    def __init__(self, high_water: int, *, ahead: bool) -> None:
        """Start above `high_water`; `ahead` = reserve offsets before they are used."""
        self.next = high_water + 1
        self.committed = high_water
        """No row up to it is still to be committed; the checkpoint of an empty queue."""
        self.ahead = ahead
        self.reserved = high_water

    def high_water(self) -> int:
        """Return the mark for the next commit: no offset above it has been handed out."""
        if not self.ahead:
            return self.next - 1
        return max(self.reserved, self.next - 1 + RESERVE)

    def stored(self, high_water: int, committed: int) -> None:
        """Record the mark in the file, and the highest offset that is committed or refused."""
        self.reserved = high_water
        self.committed = committed

    def scarce(self) -> bool:
        """Return whether the mark should be stored soon, although nothing else is to be written."""
        return self.ahead and self.next > self.reserved - RESERVE // 2
