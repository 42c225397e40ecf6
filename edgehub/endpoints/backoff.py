"""Back-off: how long to wait before the next try, and the wait itself.

Owns the growth and the jitter; waits count monotonic time of the clock passed in. It lies beside
the endpoints because they wait with it too and may not import the pump.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

    from edgehub.clock import Clock, TimerHandle

FIRST_S: Final = 1.0
MAX_S: Final = 60.0
JITTER: Final = 0.2

# 2**6 seconds is already over the maximum; a larger exponent only risks an overflow.
_EXPONENT_MAX: Final = 6


def delay_s(attempt: int, rng: random.Random) -> float:
    """Give the wait after failure number `attempt` (0 = the first one), in seconds.

    Doubles from `FIRST_S` to `MAX_S`. The jitter keeps many hubs that lost the same peer at the
    same moment from coming back at the same moment.
    """
    assert attempt >= 0, attempt
    grown = FIRST_S * 2.0 ** min(attempt, _EXPONENT_MAX)
    return min(MAX_S, grown * rng.uniform(1.0 - JITTER, 1.0 + JITTER))


class Backoff:
    """A run of failures; knows how many there were in a row."""

    __slots__ = ("_failures", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def next_s(self) -> float:
        """Count one more failure and give the wait after it."""
        wait_s = delay_s(self._failures, self._rng)
        self._failures += 1
        return wait_s

    def reset(self) -> None:
        """Forget the failures: it worked."""
        self._failures = 0


class RetryWait:
    """The wait between two tries of one link, which others may cut short."""

    __slots__ = ("_clock", "_due", "_over", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over = asyncio.Event()
        self._timer: TimerHandle | None = None
        self._due = 0.0

    async def wait(self, seconds: float) -> None:
        """Wait `seconds` of monotonic time, or less if told so meanwhile."""
        self._over.clear()
        self._arm(seconds)
        try:
            await self._over.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def end(self) -> None:
        """End a running wait now; harmless when none runs."""
        self._over.set()

    def cut(self, seconds: float) -> None:
        """Let a running wait end within `seconds`; harmless when none runs."""
        if self._timer is not None and self._due > self._clock.monotonic() + seconds:
            self._timer.cancel()
            self._arm(seconds)

    def _arm(self, seconds: float) -> None:
        self._due = self._clock.monotonic() + seconds
        self._timer = self._clock.call_later(seconds, self._over.set)
