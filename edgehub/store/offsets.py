"""The hub-wide counter of offsets and its stored high-water mark.

Invariant: no offset is used twice, also after a crash: a start that follows no close skips more
offsets than rows may have been read before their commit.
"""

from __future__ import annotations

from typing import Final

OFFSETS_SKIPPED: Final = 1 << 24
"""Skipped above the stored mark by a start that follows no close: what was read before its commit,
and more rows than the log has events of, since it may have lost its end."""
UNSTORED_MAX: Final = 1 << 20
"""Offsets above the stored mark up to which rows may be read before their commit."""


class Offsets:
    """The counter."""

    def __init__(self, high_water: int, *, is_start_recorded: bool = True) -> None:
        """Start above `high_water`.

        Args:
            high_water: The stored mark.
            is_start_recorded: If not, the next start may not know that it has to skip offsets, so
                no row is read before its commit.
        """
        self._unstored_max = UNSTORED_MAX if is_start_recorded else 0
        self.next = high_water + 1
        self.committed = high_water
        """No row up to it is still to be committed; the checkpoint of an empty queue."""
        self.early_max = high_water + self._unstored_max
        """Rows up to it may be read before their commit."""

    def high_water(self) -> int:
        """Return the mark for the next commit: no offset above it has been handed out."""
        return self.next - 1

    def stored(self, high_water: int, committed: int) -> None:
        """Record the mark in the file, and the highest offset that is committed or refused."""
        self.early_max = high_water + self._unstored_max
        self.committed = committed

    def scarce(self) -> bool:
        """Return whether the mark should be stored soon, although nothing else is to be written."""
        left = self.early_max - self.next
        return bool(self._unstored_max) and left < self._unstored_max // 2
