"""The machine's clocks at a multiple of their pace, so that waits of seconds take a fraction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import TimerHandle


class QuickClock(SystemClock):
    """For tests of what comes after a back-off; what the loop itself times keeps its length."""

    def __init__(self, pace: float = 10.0) -> None:
        super().__init__()
        self._pace = pace
        self._started_s = super().monotonic()
        self._wall_ms = super().wall_ms()
        self._boottime_ms = super().boottime_ms()

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._started_s + self._passed_s()

    def boottime_ms(self) -> int:
        """See `Clock`."""
        return self._boottime_ms + round(self._passed_s() * 1000)

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._wall_ms + round(self._passed_s() * 1000)

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await super().sleep(seconds / self._pace)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """See `Clock`."""
        return super().call_later(seconds / self._pace, callback)

    def _passed_s(self) -> float:
        return (super().monotonic() - self._started_s) * self._pace
