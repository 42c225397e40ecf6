"""When the pump takes its next turn: because something has happened, or because a time has come.

Owns the event and the one timer. Invariant: a time that was asked for since the last turn is never
passed by more than the clock's own grain.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgehub.clock import Clock, TimerHandle


class WakeUp:
    """See the module."""

    __slots__ = ("_clock", "_due", "_event", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self._timer: TimerHandle | None = None
        self._due = math.inf

    def now(self) -> None:
        """Have the turn come as soon as possible."""
        self._event.set()

    def at(self, due: float) -> None:
        """Have the turn come at this monotonic time at the latest; infinite asks for nothing."""
        self._due = min(self._due, due)

    async def wait(self) -> None:
        """Wait for the turn; times are asked for anew in each."""
        self._start_timer()
        await self._event.wait()
        self._event.clear()
        self._due = math.inf

    def stop(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self.stop()
        if self._due < math.inf:
            wait_s = max(0.0, self._due - self._clock.monotonic())
            self._timer = self._clock.call_later(wait_s, self._event.set)
