"""When the results that wait must be committed: at the earliest time that was asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgehub.clock import Clock, Timer

if TYPE_CHECKING:
    from collections.abc import Callable


class CommitTimer:
    """One timer.

    Args:
        clock: Timers.
        expired: Called when the time has come.

    Attributes:
        is_now: The time has come.
    """

    def __init__(self, clock: Clock, expired: Callable[[], None]) -> None:
        self._clock = clock
        self._expired = expired
        self._at = math.inf
        self._timer = Timer(clock, self.at_once)
        self.is_now = False

    def within(self, delay_s: float) -> None:
        """Set the time to so many seconds from now, if it is not earlier."""
        at = self._clock.monotonic() + delay_s
        if at < self._at:
            self._stop()
            self._at = at
            self._timer.start(delay_s)

    def at_once(self) -> None:
        """Set the time to now."""
        self.is_now = True
        self._expired()

    def reset(self) -> None:
        """Clear the time: what waited is taken."""
        self._stop()
        self.is_now = False

    def _stop(self) -> None:
        self._at = math.inf
        self._timer.cancel()
