"""An event loop on which time passes only when nothing is left to do.

Owns the loop. A timer of its `ManualClock` fires when every task waits for something, so what one
moment causes is complete before the next moment comes, and a run is the same each time. Invariant:
a run in which everything waits and no timer is left ends with an error instead of standing still.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

from edgehub.errors import EdgeHubError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from edgehub.clock import ManualClock

T = TypeVar("T")


class StandstillError(EdgeHubError):
    """Everything waits, and nothing will ever happen."""


class _IdleSelector(selectors.SelectSelector):
    """Is asked for readiness by the loop, and so knows when the loop has nothing else to do."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0 and not self._clock.fire_next():
            raise StandstillError("everything waits, and no timer is left")
        return ready


def run_on(clock: ManualClock, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end, on the time of `clock`.

    Raises:
        StandstillError: It would never end.
    """
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(_IdleSelector(clock))
    ) as runner:
        return runner.run(main)
