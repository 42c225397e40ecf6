"""Back-off: how long to wait before the next try, and the wait itself.

Owns the growth and the jitter; waits count monotonic time of the clock passed in. It is part of
the endpoints because they use it too and may not import the pump.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from edgehub.clock import Clock, Timer

if TYPE_CHECKING:
    import random

FIRST_S: Final = 1.0
MAX_S: Final = 60.0
JITTER: Final = 0.2

# 2**6 seconds is already over the maximum; a larger exponent only risks an overflow.
_EXPONENT_MAX: Final = 6


def delay_s(attempt: int, rng: random.Random) -> float:
    """Return the wait after failure number `attempt` (0 = the first one), in seconds.

    Doubles from `FIRST_S` to `MAX_S`. The jitter keeps many hubs that lost the same peer at the
    same moment from coming back at the same moment.
    """
    assert attempt >= 0, attempt
    grown = FIRST_S * 2.0 ** min(attempt, _EXPONENT_MAX)
    return min(MAX_S, grown * rng.uniform(1.0 - JITTER, 1.0 + JITTER))


class Backoff:
    """The number of failures in a row, and the wait after each."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def next_s(self) -> float:
        """Count one more failure and return the wait after it."""
        wait_s = delay_s(self._failures, self._rng)
        self._failures += 1
        return wait_s

    def reset(self) -> None:
        """Reset the failures after a success."""
        self._failures = 0


class RetryWait:
    """The wait between two connection attempts of one link, which callers may shorten.

    Callers do not know whether a wait or an attempt is running: a request during an attempt counts
    for the wait after it, because the attempt may have begun before the change that they know of.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = asyncio.Event()
        self._timer = Timer(clock, self._over.set)
        self._due = 0.0
        self._ended = False
        self._cut_by = math.inf
        self._patient = False

    async def wait(self, seconds: float, *, patient: bool = False) -> None:
        """Wait `seconds` of monotonic time, or less if shortened now or in the last attempt.

        Args:
            seconds: The longest wait.
            patient: Only `end` counts, not `cut`: an operator must act.
        """
        due = self._clock.monotonic() + seconds
        if self._ended:
            due = 0.0
        elif not patient:
            due = min(due, self._cut_by)
        self.forget()
        self._patient = patient
        self._over.clear()
        self._arm(due)
        try:
            await self._over.wait()
        finally:
            self._timer.cancel()

    @property
    def remaining_s(self) -> float | None:
        """Return the seconds until the running wait ends by itself, None = none runs."""
        return max(0.0, self._due - self._clock.monotonic()) if self._timer.is_running else None

    def end(self) -> None:
        """Stop the running wait, or the next one as it begins."""
        if self._timer.is_running:
            self._over.set()
        else:
            self._ended = True

    def cut(self, seconds: float) -> None:
        """Shorten the running wait, or the next one, to `seconds` at most."""
        by = self._clock.monotonic() + seconds
        if not self._timer.is_running:
            self._cut_by = min(self._cut_by, by)
        elif by < self._due and not self._patient:
            self._arm(by)

    def forget(self) -> None:
        """Reset what was requested during the last attempt, which has succeeded."""
        self._ended = False
        self._cut_by = math.inf

    def _arm(self, due: float) -> None:
        self._due = due
        self._timer.restart(max(0.0, due - self._clock.monotonic()))
