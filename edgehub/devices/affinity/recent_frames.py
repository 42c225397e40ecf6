"""RecentFrames of one transmission that several stations of one hub hear.

Owns the memory of what was heard a moment ago. Invariant: a transmission is remembered for a minute
after its last copy, and never more than `FRAMES_MAX` of them.
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
    """What a received frame is to this hub."""

    FIRST = "first"
    SAME_STATION = "same_station"  # the device repeats it
    OTHER_STATION = "other_station"  # the same transmission, heard a second time


class RecentFrames:
    """See the module; one per device."""

    __slots__ = ("_clock", "_heard")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: OrderedDict[Hashable, tuple[str, float]] = OrderedDict()

    def classify(self, key: Hashable, station: str) -> Reception:
        """Return what a frame is, and remember it."""
        now = self._clock.monotonic()
        while self._heard and next(iter(self._heard.values()))[1] <= now - REMEMBERED_S:
            self._heard.popitem(last=False)
        before = self._heard.get(key)
        if before is None and len(self._heard) >= FRAMES_MAX:
            self._heard.popitem(last=False)
        self._heard[key] = (station if before is None else before[0], now)
        self._heard.move_to_end(key)
        if before is None:
            return Reception.FIRST
        return Reception.SAME_STATION if before[0] == station else Reception.OTHER_STATION

    def forget(self, key: Hashable) -> None:
        """Forget one that came to nothing, so that the next copy is tried."""
        self._heard.pop(key, None)

    def clear(self) -> None:
        """Forget all: the device has started again, or has other keys."""
        self._heard.clear()
