"""A clock that is faster than the machine's: tests wait less for intervals of the hub."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgehub.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import TimerHandle

VARIABLE = "TEST_CLOCK"
"""Set for a forked hub; see `setting`."""


class FastClock(SystemClock):
    """The time of the machine, several times as fast.

    Args:
        rate: How many times.
        boot_ms: Boot time from which on it is fast, None = now.
        wall_ms: Wall clock at that moment.
    """

    __slots__ = ("_boot_ms", "_boottime_ms", "_monotonic", "_rate", "_wall_ms")

    def __init__(self, rate: int, boot_ms: int | None = None, wall_ms: int | None = None) -> None:
        super().__init__()
        self._rate = rate
        # Bound here, since a process may put the methods of this clock in the place of these.
        self._monotonic = super().monotonic
        self._boottime_ms = super().boottime_ms
        self._boot_ms = super().boottime_ms() if boot_ms is None else boot_ms
        self._wall_ms = super().wall_ms() if wall_ms is None else wall_ms

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._monotonic() * self._rate

    def boottime_ms(self) -> int:
        """Return milliseconds since the boot."""
        return self._boot_ms + self._passed_ms()

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self._wall_ms + self._passed_ms()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds / self._rate)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after some seconds."""
        return asyncio.get_running_loop().call_later(seconds / self._rate, callback)

    def _passed_ms(self) -> int:
        return (self._boottime_ms() - self._boot_ms) * self._rate


def setting(rate: int) -> str:
    """Return what hubs need to have one time that passes `rate` times as fast, from now on."""
    clock = SystemClock()
    return f"{rate} {clock.boottime_ms()} {clock.wall_ms()}"


def use(setting: str) -> None:
    """Let that time pass in this process."""
    clock = FastClock(*map(int, setting.split()))
    for name in ("monotonic", "boottime_ms", "wall_ms", "sleep", "call_later"):
        method = getattr(clock, name)
        setattr(SystemClock, name, lambda _clock, *args, method=method: method(*args))
