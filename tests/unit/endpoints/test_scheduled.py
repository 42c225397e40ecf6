"""Connection windows around an endpoint, on a manual clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.endpoints.schedule import ScheduleOptions
from edgehub.endpoints.scheduled import CLOSE_GRACE_S, POLL_S, URGENT_OPEN_S, ScheduledEndpoint
from edgehub.message import Priority
from tests.support.endpoints import StalledEndpoint
from tests.support.memory_queue import MemoryQueue, a_row
from tests.support.recording_listener import RecordingListener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR_S = 3600
OPEN_FOR_S = 600
NOON_MS = round(datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp() * 1000)


class Bench:
    """A scheduled endpoint that is open for ten minutes at each full hour."""

    def __init__(self, wall_ms: int) -> None:
        self.clock = ManualClock(wall_ms=wall_ms)
        self.inner = StalledEndpoint()
        self.listener = RecordingListener()
        self.trusted = True
        self.urgent = False
        self.endpoint = ScheduledEndpoint(
            self.inner,
            ScheduleOptions(open_at=["0 * * * *"], open_for_s=OPEN_FOR_S, urgent_priority=2),
            clock=self.clock,
            trusted=lambda: self.trusted,
            urgent_waits=lambda priority: self.urgent and priority == 2,
        )

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Run the endpoint in the group."""
        self.task = group.create_task(self.endpoint.run(self.listener))
        await self.clock.advance(0)

    def row_arrives(self, priority: int) -> None:
        """Say that a row of that priority was stored."""
        self.endpoint.rows_ready(MemoryQueue("upstream", Priority(priority)))


@pytest.fixture
async def closed() -> AsyncIterator[Bench]:
    """Return a bench at twenty minutes past noon, outside of the windows."""
    bench = Bench(NOON_MS + 20 * 60_000)
    async with asyncio.TaskGroup() as group:
        await bench.run(group)
        yield bench
        bench.task.cancel()


async def test_outside_of_its_windows_nothing_is_connected(closed: Bench) -> None:
    """The state says so, and when the next window begins."""
    assert not closed.inner.link_is_up
    assert closed.endpoint.state == "closed"
    assert closed.endpoint.retry_in_s == pytest.approx(40 * 60, abs=1)


async def test_a_window_opens_and_closes_on_time(closed: Bench) -> None:
    """Open at the full hour, closed ten minutes later, open again an hour after."""
    await closed.clock.advance(40 * 60 + 1)
    assert closed.endpoint.state == "up"
    await closed.clock.advance(OPEN_FOR_S - 5)
    assert closed.endpoint.state == "up"
    await closed.clock.advance(5)
    assert not closed.inner.link_is_up
    assert closed.endpoint.state == "closed"
    await closed.clock.advance(HOUR_S - OPEN_FOR_S)
    assert closed.endpoint.state == "up"


async def test_a_start_within_a_window_opens_for_the_rest() -> None:
    """A hub that starts five minutes past the hour has five minutes left."""
    bench = Bench(NOON_MS + 5 * 60_000)
    async with asyncio.TaskGroup() as group:
        await bench.run(group)
        assert bench.endpoint.state == "up"
        await bench.clock.advance(5 * 60 + 1)
        assert bench.endpoint.state == "closed"
        bench.task.cancel()


async def test_an_urgent_row_opens_the_link_until_it_has_left(closed: Bench) -> None:
    """Priority 2 is urgent here; the link stays a little longer, for what comes with it."""
    closed.urgent = True
    closed.row_arrives(2)
    await closed.clock.advance(1)
    assert closed.endpoint.state == "up"
    await closed.clock.advance(300)
    assert closed.endpoint.state == "up"
    closed.urgent = False
    await closed.clock.advance(URGENT_OPEN_S + POLL_S)
    assert closed.endpoint.state == "closed"


async def test_other_rows_wait_for_the_window(closed: Bench) -> None:
    """A row of priority 3 does not open the link."""
    closed.row_arrives(3)
    await closed.clock.advance(60)
    assert closed.endpoint.state == "closed"


async def test_rows_in_flight_may_settle_at_the_end_of_a_window(closed: Bench) -> None:
    """The listener hears of the end first; a confirmation within the grace counts."""
    await closed.clock.advance(40 * 60 + 1)
    closed.endpoint.send_batch([a_row(1), a_row(2)], closed.listener.settle)
    await closed.clock.advance(OPEN_FOR_S)
    assert closed.listener.links[-1] == "down: outside of its windows"
    assert closed.inner.link_is_up
    closed.inner.settle(1)
    await closed.clock.advance(CLOSE_GRACE_S)
    assert not closed.inner.link_is_up
    assert closed.listener.results[1].kind is None
    assert closed.listener.results[2].kind == "disconnected"
    assert closed.listener.links == ["up", "down: outside of its windows"]


async def test_a_stepped_clock_does_not_change_how_long_a_window_lasts(closed: Bench) -> None:
    """Back by four minutes in the middle: it ends in time, and is not given twice."""
    await closed.clock.advance(40 * 60 + 1)
    await closed.clock.advance(300)
    closed.clock.step_wall(-4 * 60_000)
    await closed.clock.advance(295)
    assert closed.endpoint.state == "up"
    await closed.clock.advance(10)
    assert closed.endpoint.state == "closed"
    await closed.clock.advance(60)
    assert closed.endpoint.state == "closed"


async def test_a_step_into_a_window_opens_it(closed: Bench) -> None:
    """Noticed within a minute."""
    closed.clock.step_wall(45 * 60_000)
    await closed.clock.advance(POLL_S)
    assert closed.endpoint.state == "up"


async def test_a_clock_that_is_not_trusted_keeps_the_link_open(closed: Bench) -> None:
    """Nobody knows the time: the link is open, and closes once the time is known."""
    assert closed.endpoint.keeps_windows
    closed.trusted = False
    with capture_logs() as lines:
        await closed.clock.advance(POLL_S)
        assert closed.endpoint.state == "up"
        assert not closed.endpoint.keeps_windows
        await closed.clock.advance(20 * 60)
        assert closed.endpoint.state == "up"
        closed.trusted = True
        assert closed.endpoint.keeps_windows
        await closed.clock.advance(2 * POLL_S)
    assert closed.endpoint.state == "closed"
    assert [line["event"] for line in lines] == [
        "endpoint.windows_not_kept",
        "endpoint.windows_kept",
        "endpoint.window_closed",
    ]


async def test_a_window_is_shown_where_the_clock_is_trusted(closed: Bench) -> None:
    """It begins and ends in the log."""
    with capture_logs() as lines:
        await closed.clock.advance(HOUR_S)
    assert [line["event"] for line in lines] == ["endpoint.window_opened", "endpoint.window_closed"]


async def test_every_part_of_the_contract_reaches_the_inner_endpoint(closed: Bench) -> None:
    """Sizes, hints and the end are its own matter."""
    assert closed.endpoint.wire_bytes([a_row(1)]) == closed.inner.wire_bytes([a_row(1)])
    assert closed.endpoint.unsent_bytes() == 0
    assert closed.endpoint.row_bytes_max is None
    closed.endpoint.retry_now()
    closed.endpoint.retry_within(5)
    assert (closed.inner.retries, closed.inner.hints) == (1, [5])
    await closed.endpoint.close()


async def test_the_end_of_a_window_leaves_an_urgent_time_whole(closed: Bench) -> None:
    """A window that the clock steps into has two seconds left; the urgent rows had ten."""
    closed.urgent = True
    closed.row_arrives(2)
    await closed.clock.advance(0)
    assert closed.inner.link_is_up
    closed.urgent = False
    closed.clock.step_wall(40 * 60_000 + (OPEN_FOR_S - 2) * 1000)
    closed.row_arrives(2)
    await closed.clock.advance(URGENT_OPEN_S - 1)
    assert closed.inner.link_is_up
    await closed.clock.advance(2)
    assert not closed.inner.link_is_up
