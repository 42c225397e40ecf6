"""Rows of one queue that create entities: they are never evicted.

Invariant: a row is in here from its append, also in an open group, until it has left its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Creations:
    """Offsets and sizes; usually none."""

    __slots__ = ("_sizes", "bytes")

    def __init__(self, stored: Iterable[tuple[int, int]] = ()) -> None:
        """Start with those in the file: offset and size of each."""
        self._sizes = dict(stored)
        self.bytes = sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, offset: int, size: int) -> None:
        """Add a row."""
        self._sizes[offset] = size
        self.bytes += size

    def discard(self, offsets: Iterable[int]) -> None:
        """Remove rows that have left; others may be among them."""
        for offset in offsets:
            self.bytes -= self._sizes.pop(offset, 0)

    def offsets(self) -> Iterable[int]:
        """Return their offsets."""
        return self._sizes.keys()

    def __contains__(self, offset: int) -> bool:
        """Return whether a row is one of them."""
        return offset in self._sizes

    def idle(self, in_flight: Iterable[int]) -> tuple[int, int]:
        """Return rows and bytes of those that are not in flight."""
        flying = [self._sizes[offset] for offset in in_flight if offset in self._sizes]
        return len(self._sizes) - len(flying), self.bytes - sum(flying)
