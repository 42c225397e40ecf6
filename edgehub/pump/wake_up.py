"""Starts the pump's next turn: at an event, or about the earliest time that was asked for."""

from __future__ import annotations

import asyncio
import math

from edgehub.clock import Clock, Timer


class WakeUp:
    """One event and one timer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()
        self._timer = Timer(clock, self._event.set)
        self._due = self._timer_due = math.inf

    def now(self) -> None:
        """Start the turn as soon as possible."""
        self._event.set()

    def at(self, due: float) -> None:
        """Start the turn at this monotonic time at the latest; infinite = no need to."""
        self._due = min(self._due, due)

    async def wait(self) -> None:
        """Wait for the turn; forgets the times of the last one."""
        if not self._timer.is_running:
            self._timer_due = math.inf
        # One that fires earlier is left: a turn too many costs less than a timer for each.
        if self._due < self._timer_due:
            self._timer_due = self._due
            self._timer.restart(max(0.0, self._due - self._clock.monotonic()))
        await self._event.wait()
        self._event.clear()
        self._due = math.inf

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()
