"""The header Date of responses."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgehub.clock import Clock


class DateHeader:
    """The header line with the time of day, written once a second.

    Args:
        clock: Knows it.
    """

    __slots__ = ("_clock", "_line", "_second")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """Return the line with its end."""
        second = self._clock.wall_ms() // 1000
        if second != self._second:
            self._second = second
            self._line = f"Date: {formatdate(second, usegmt=True)}\r\n".encode("ascii")
        return self._line
