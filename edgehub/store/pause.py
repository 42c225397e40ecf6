"""A wait that ends by time, on the hub's clock, or by a call."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.clock import Clock


class Pause:
    """One task waits; any code on the loop can end the wait."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, clock: Clock, delay_s: float | None) -> None:
        """Wait for `delay_s` seconds, None = until cut."""
        assert self._waiter is None
        self._waiter = asyncio.get_running_loop().create_future()
        timer = None if delay_s is None else clock.call_later(delay_s, self.cut)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def wait_period(self, clock: Clock, period_s: Callable[[], float]) -> None:
        """Wait for a period, infinite = until cut, which is asked for again after each cut."""
        begin_s = clock.monotonic()
        while (left_s := begin_s + period_s() - clock.monotonic()) > 0:
            await self.wait(clock, left_s if left_s < math.inf else None)

    def cut(self) -> None:
        """End the wait that runs now, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
