"""Copies of one transmission that several stations of one hub receive.

Owns the recent frames of a device. Invariant: a transmission is remembered for a minute after its
last copy, and never more than `FRAMES_MAX` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from edgehub.clock import Clock

FRAMES_MAX: Final = 32
REMEMBERED_S: Final = 60.0


class Reception(StrEnum):
    """Whether a received frame is new to this hub."""

    FIRST = "first"
    SAME_STATION = "same_station"  # the device repeats it
    OTHER_STATION = "other_station"  # the same transmission, received again


class RecentFrames:
    """The recent frames of one device."""

    __slots__ = ("_clock", "_frames")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._frames: OrderedDict[Hashable, tuple[str, float]] = OrderedDict()

    def classify(self, key: Hashable, station: str) -> Reception:
        """Return whether a frame is new, and remember it."""
        now = self._clock.monotonic()
        while self._frames and next(iter(self._frames.values()))[1] <= now - REMEMBERED_S:
            self._frames.popitem(last=False)
        before = self._frames.get(key)
        if before is None and len(self._frames) >= FRAMES_MAX:
            self._frames.popitem(last=False)
        self._frames[key] = (station if before is None else before[0], now)
        self._frames.move_to_end(key)
        if before is None:
            return Reception.FIRST
        return Reception.SAME_STATION if before[0] == station else Reception.OTHER_STATION

    def forget(self, key: Hashable) -> None:
        """Forget a frame that failed, so that the next copy is tried."""
        self._frames.pop(key, None)

    def clear(self) -> None:
        """Forget all frames: the device has restarted, or has other keys."""
        self._frames.clear()
