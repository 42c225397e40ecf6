"""When a pump stands still, and when it only waits for somebody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgehub.message import FailureKind, SendResult
from edgehub.pump.stall_detector import StallDetector
from tests.support.endpoints import RevivableEndpoint, StalledEndpoint
from tests.support.memory_queue import MemoryQueue, a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Row
    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]

HOUR_S = 3600.0


class HangingQueue(MemoryQueue):
    """A queue whose reads end only when it is let go."""

    def __init__(self, queue: MemoryQueue) -> None:
        super().__init__(queue.endpoint_id, queue.priority)
        self.wake = queue.wake
        self.let_go = asyncio.Event()

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `PumpQueue`."""
        await self.let_go.wait()
        return await super().read_batch(rows_max, bytes_max)


async def _stalled_after(bench: Bench, seconds: float) -> float:
    bench.pump.stalled_s()
    await bench.clock.advance(seconds)
    return bench.pump.stalled_s()


def test_time_counts_from_the_look_that_found_work():
    """Hours without work are no stall of the first row after them."""
    progress = StallDetector()
    assert progress.stalled_s(10.0, is_busy=False) == 0
    assert progress.stalled_s(5000.0, is_busy=True) == 0
    assert progress.stalled_s(5030.0, is_busy=True) == 30


def test_a_step_or_no_work_begins_again():
    """Only unbroken work without a step adds up."""
    progress = StallDetector()
    progress.stalled_s(0.0, is_busy=True)
    progress.steps += 1
    assert progress.stalled_s(10.0, is_busy=True) == 0
    assert progress.stalled_s(20.0, is_busy=False) == 0
    assert progress.stalled_s(30.0, is_busy=True) == 0
    assert progress.stalled_s(31.0, is_busy=True) == 1


async def test_a_pump_without_rows_does_not_stand_still(start: Start) -> None:
    """Idle is no fault."""
    bench = start(RevivableEndpoint())
    bench.queue()
    await bench.settle()
    assert await _stalled_after(bench, HOUR_S) == 0


async def test_an_endpoint_that_is_down_is_no_fault(start: Start) -> None:
    """Rows wait for a link, however long."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    await bench.settle()
    endpoint.cut()
    assert await _stalled_after(bench, HOUR_S) == 0


async def test_a_peer_that_does_not_confirm_is_no_fault(start: Start) -> None:
    """Rows in flight have the endpoint's own time-outs."""
    bench = start(StalledEndpoint(), rows_in_flight_max=1)
    bench.queue().put(a_row(1), a_row(2))
    await bench.settle()
    assert await _stalled_after(bench, HOUR_S) == 0


async def test_a_back_off_is_no_fault(start: Start) -> None:
    """A peer that lets nobody in pauses the pump."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    await bench.settle()
    endpoint.settle(1, SendResult(FailureKind.UNAUTHORIZED, "who are you"))
    await bench.settle()
    assert await _stalled_after(bench, 50) == 0


async def test_a_read_that_hangs_is_found_and_its_end_too(start: Start) -> None:
    """Ready rows, a link, nothing in flight: the pump owes a step."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    queue = HangingQueue(bench.queue())
    bench.queues[queue.priority] = queue
    await bench.settle()
    endpoint.revive()
    queue.put(a_row(1))
    await bench.settle()
    assert await _stalled_after(bench, 60) == 60
    queue.let_go.set()
    await bench.settle()
    assert bench.pump.stalled_s() == 0
    assert queue.confirmed == [1]


async def test_confirmations_that_are_not_taken_are_found(start: Start) -> None:
    """A pump that hangs in a read takes no results either."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    quick = bench.queue(0)
    quick.put(a_row(1))
    await bench.settle()
    slow = HangingQueue(bench.queue(1))
    bench.queues[1] = slow
    bench.pump.rows_ready(slow)
    slow.put(a_row(2))
    await bench.settle()
    endpoint.settle(1)
    await bench.settle()
    assert await _stalled_after(bench, 60) == 60
