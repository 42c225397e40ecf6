"""When a backlog will be gone, from how fast it shrinks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.message import UPSTREAM
from edgehub.operations.forecast.drain import SAMPLE_S, SPAN_S, DrainForecast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from edgehub.message import EndpointId


class Bench:
    """A forecast on a manual clock, and the backlog it looks at."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.waiting: dict[EndpointId, int] = {UPSTREAM: 1_000_000}
        self.forecast = DrainForecast(self.clock, lambda: self.waiting)

    async def shrink(self, seconds: int, bytes_s: int) -> None:
        """Let the backlog shrink second by second."""
        for _ in range(seconds):
            await self.clock.advance(1)
            self.waiting[UPSTREAM] = max(0, self.waiting[UPSTREAM] - bytes_s)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Return a bench whose forecast runs."""
    bench = Bench()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(bench.forecast.run())
        await bench.clock.advance(0)
        yield bench
        task.cancel()


async def test_a_steady_drain_is_predicted(bench: Bench) -> None:
    """At every moment within 20 % of what it then takes (P-07)."""
    for left_s in range(970, 100, -30):
        await bench.shrink(30, 1000)
        assert bench.forecast.seconds()[UPSTREAM] == pytest.approx(left_s, rel=0.2)


async def test_a_link_that_became_slower_counts_after_a_minute(bench: Bench) -> None:
    """Only the last minute is looked at."""
    await bench.shrink(100, 5000)
    await bench.shrink(round(SPAN_S + SAMPLE_S), 500)
    left_s = bench.waiting[UPSTREAM] / 500
    assert bench.forecast.seconds()[UPSTREAM] == pytest.approx(left_s, rel=0.2)


async def test_nothing_is_said_before_it_was_measured(bench: Bench) -> None:
    """No figure in the first seconds, and none while the backlog grows."""
    await bench.shrink(2, 1000)
    assert bench.forecast.seconds() == {}
    await bench.shrink(60, -1000)
    assert bench.forecast.seconds() == {}


async def test_an_outage_is_not_in_the_figure(bench: Bench) -> None:
    """What was measured before the link went down is forgotten."""
    await bench.shrink(60, 1000)
    backlog = bench.waiting.pop(UPSTREAM)
    await bench.clock.advance(300)
    bench.waiting[UPSTREAM] = backlog + 300_000
    await bench.shrink(20, 2000)
    left_s = bench.waiting[UPSTREAM] / 2000
    assert bench.forecast.seconds()[UPSTREAM] == pytest.approx(left_s, rel=0.2)


async def test_nothing_waiting_is_gone_now(bench: Bench) -> None:
    """Zero seconds, not nothing."""
    bench.waiting[UPSTREAM] = 0
    assert bench.forecast.seconds() == {UPSTREAM: 0.0}
