"""By when what waits must be committed: the earliest moment that anybody asked for.

Owns the timer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock, TimerHandle


class CommitTimer:
    """See the module.

    Args:
        clock: Timers.
        came: Called when the moment has come.

    Attributes:
        is_now: It has.
    """

    __slots__ = ("_at", "_came", "_clock", "_timer", "is_now")

    def __init__(self, clock: Clock, came: Callable[[], None]) -> None:
        self._clock = clock
        self._came = came
        self._at = math.inf
        self._timer: TimerHandle | None = None
        self.is_now = False

    def within(self, delay_s: float) -> None:
        """Let it be in so many seconds, if it is not earlier."""
        at = self._clock.monotonic() + delay_s
        if at < self._at:
            self._stop()
            self._at = at
            self._timer = self._clock.call_later(delay_s, self.at_once)

    def at_once(self) -> None:
        """Let it be now."""
        self.is_now = True
        self._came()

    def met(self) -> None:
        """Begin anew: what waited is taken."""
        self._stop()
        self.is_now = False

    def _stop(self) -> None:
        self._at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
