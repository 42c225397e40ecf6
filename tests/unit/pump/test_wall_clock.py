"""The pump's timers and rates while somebody plays with the wall clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from tests.support.endpoints import RevivableEndpoint, ThinLinkEndpoint
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]

HOUR_MS = 3_600_000


class RestlessClock(ManualClock):
    """A clock whose time of day steps whenever anybody asks for the time or sets a timer."""

    __slots__ = ("step_ms",)

    def __init__(self, step_ms: int) -> None:
        super().__init__()
        self.step_ms = step_ms

    def monotonic(self) -> float:
        """See `Clock`."""
        self.step_wall(self.step_ms)
        return super().monotonic()

    def call_later(self, seconds: float, callback: Callable[[], None]):
        """See `Clock`."""
        self.step_wall(self.step_ms)
        return super().call_later(seconds, callback)


async def arrivals(start: Start, clock: ManualClock) -> list[tuple[int, float]]:
    """Let the link come up after an outage and drain for a minute; gives offsets and times."""
    arrived: list[tuple[int, float]] = []
    began_s = clock.monotonic()
    link = ThinLinkEndpoint(
        clock,
        rate_bytes_s=8000,
        delay_s=0.05,
        on_arrival=lambda row: arrived.append((row.offset, clock.monotonic() - began_s)),
    )
    bench = start(link, clock=clock)
    bench.queue().put(*(a_row(offset) for offset in range(1500)))
    for number in range(60):
        await clock.advance(1)
        bench.queue(0).put(a_row(10_000 + number))
    return arrived


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_a_drain_does_not_depend_on_the_wall_clock(start: Start, step_ms: int) -> None:
    """W-02, W-07: steps between any two looks at the clock change no moment of arrival."""
    unstepped = await arrivals(start, ManualClock())
    assert len(unstepped) > 1000
    assert await arrivals(start, RestlessClock(step_ms)) == unstepped


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
async def test_a_link_that_comes_back_is_used_at_once(start: Start, step_ms: int) -> None:
    """W-02, W-03: an outage with steps of the wall clock ends like one without."""
    clock = RestlessClock(step_ms)
    endpoint = RevivableEndpoint()
    bench = start(endpoint, clock=clock)
    bench.queue().put(*(a_row(offset) for offset in range(10)))
    await clock.advance(100)
    clock.step_wall(-2 * HOUR_MS)
    endpoint.revive()
    await bench.settle()
    assert endpoint.received == list(range(10))
