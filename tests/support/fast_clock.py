"""The clocks of a hub, faster than the machine's, so that tests wait less for its own intervals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgehub.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import TimerHandle

VARIABLE = "TEST_CLOCK_RATE"
"""Set for a forked hub: its seconds per second."""


def run_at(rate: float) -> None:
    """Let time pass `rate` times as fast for this process, from now on."""
    base = SystemClock()
    began_s, boot_ms, wall_ms = base.monotonic(), base.boottime_ms(), base.wall_ms()
    monotonic = SystemClock.monotonic

    def ahead_s(clock: SystemClock) -> float:
        return (monotonic(clock) - began_s) * rate

    async def sleep(_clock: SystemClock, seconds: float) -> None:
        await asyncio.sleep(seconds / rate)

    def call_later(
        _clock: SystemClock, seconds: float, callback: Callable[[], None]
    ) -> TimerHandle:
        return asyncio.get_running_loop().call_later(seconds / rate, callback)

    changed = {
        "monotonic": lambda clock: began_s + ahead_s(clock),
        "boottime_ms": lambda clock: boot_ms + round(ahead_s(clock) * 1000),
        "wall_ms": lambda clock: wall_ms + round(ahead_s(clock) * 1000),
        "sleep": sleep,
        "call_later": call_later,
    }
    for name, method in changed.items():
        setattr(SystemClock, name, method)
