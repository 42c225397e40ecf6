"""The cap on an endpoint's rate, as the pump keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.endpoints import RevivableEndpoint
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.pump.conftest import Bench

ROW_BYTES = a_row(0).size


async def test_sixty_rows_a_minute_whatever_the_date_does(start: Callable[..., Bench]) -> None:
    """W-07: the wall clock steps back by an hour in mid-drain: no pause and no burst."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint, rate_bytes_s_max=ROW_BYTES)
    bench.queue().put(*(a_row(number) for number in range(1000)))
    await endpoint.started.wait()
    endpoint.revive()
    await bench.clock.advance(10)
    for step_ms in (0, -3_600_000, 7_200_000):
        bench.clock.step_wall(step_ms)
        before = len(endpoint.received)
        for second in range(1, 61):
            await bench.clock.advance(1)
            assert len(endpoint.received) - before == pytest.approx(second, abs=1)


async def test_an_alarm_goes_first_under_a_cap(start: Callable[..., Bench]) -> None:
    """It waits for the bytes that were sent before it, not for those that wait."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint, rate_bytes_s_max=ROW_BYTES)
    bench.queue().put(*(a_row(number) for number in range(1000)))
    await endpoint.started.wait()
    endpoint.revive()
    await bench.clock.advance(30)
    bench.queue(0).put(a_row(5000))
    await bench.clock.advance(1.1)
    assert 5000 in endpoint.received


async def test_a_pump_that_waits_for_its_cap_does_not_stand_still(
    start: Callable[..., Bench],
) -> None:
    """A large row at a low cap is minutes of nothing, and no fault of the pump."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint, rate_bytes_s_max=100)
    bench.queue().put(a_row(1, body=b"x" * 50_000), a_row(2))
    await endpoint.started.wait()
    endpoint.revive()
    await bench.clock.advance(1)
    assert bench.pump.stalled_s() == 0
    await bench.clock.advance(300)
    assert endpoint.received == [1]
    assert bench.pump.stalled_s() == 0
    await bench.clock.advance(300)
    assert endpoint.received == [1, 2]
