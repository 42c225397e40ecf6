"""Received bytes that are not parsed yet.

Owns the bytes. Invariant: they are returned in order, in pieces so small that the requests of a
piece cost little, however many a client sends at once.
"""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 2_048
"""Bytes that are parsed at once, at most a hundred requests."""


class Unparsed:
    """Received bytes in pieces; false when empty."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        # Where the next piece begins.
        self._at = 0

    def __bool__(self) -> bool:
        """Return whether there is another piece."""
        return self._at < len(self._data)

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def take(self) -> bytes:
        """Remove and return the next piece."""
        piece = self._data[self._at : self._at + PIECE_BYTES]
        self._at += len(piece)
        if not self:
            self.clear()
        return piece

    def clear(self) -> None:
        """Drop all bytes."""
        self._data, self._at = b"", 0
