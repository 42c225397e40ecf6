"""Ageing: off by default, one batch for a due queue, the bound of docs/explanation/pump.md."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.clock import ManualClock
from edgehub.endpoints.backoff import Backoff
from edgehub.message import FailureKind, Priority, SendResult
from edgehub.pump.options import PumpOptions
from edgehub.pump.pumped_queue import PumpedQueue
from edgehub.pump.scheduler import Scheduler
from tests.support.endpoints import StalledEndpoint, ThinLinkEndpoint
from tests.support.memory_queue import MemoryQueue, a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Row
    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]


async def test_without_ageing_the_best_queue_is_always_next(start: Start) -> None:
    """The strict order of the seed holds by default, however long the others wait."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=1)
    best, last = bench.queue(0), bench.queue(9)
    last.put(a_row(1))
    best.put(*(a_row(offset) for offset in range(10, 20)))
    await bench.settle()
    for _ in range(9):
        await bench.clock.advance(3600)
        endpoint.settle_all()
    await bench.settle()
    assert endpoint.received == list(range(10, 20))


async def test_a_due_queue_gets_one_batch_and_then_the_best_goes_on(start: Start) -> None:
    """Ageing costs better rows one batch, not their place."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=1, aging_s=60)
    best, last = bench.queue(0), bench.queue(9)
    best.put(*(a_row(offset) for offset in range(10, 30)))
    await bench.settle()
    last.put(*(a_row(offset) for offset in range(1, 5)))
    await bench.clock.advance(59)
    endpoint.settle_all()
    await bench.clock.advance(1)
    for _ in range(4):
        endpoint.settle_all()
        await bench.settle()
    assert endpoint.received == [10, 11, 1, 12, 13, 14]
    await bench.clock.advance(61)
    for _ in range(2):
        endpoint.settle_all()
        await bench.settle()
    assert endpoint.received[-2:] == [15, 2]


async def test_ageing_can_be_switched_on_while_the_pump_runs(start: Start) -> None:
    """A reload that sets aging_s takes effect at the next choice."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=1)
    bench.queue(9).put(a_row(1))
    bench.queue(0).put(*(a_row(offset) for offset in range(10, 20)))
    await bench.settle()
    await bench.clock.advance(100)
    endpoint.settle_all()
    bench.pump.adjust(PumpOptions(rows_in_flight_max=1, aging_s=10))
    for _ in range(3):
        await bench.clock.advance(10)
        endpoint.settle_all()
    await bench.settle()
    assert 1 in endpoint.received


async def test_time_since_the_last_batch_is_known(start: Start) -> None:
    """Each queue says since when nothing of it was handed over; None before the first time."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=1)
    bench.queue(9).put(a_row(1))
    bench.queue(3)
    await bench.settle()
    await bench.clock.advance(7)
    now = bench.clock.monotonic()
    served, waits = bench.pump.pumped(bench.queue(9).id), bench.pump.pumped(bench.queue(3).id)
    assert served is not None
    assert waits is not None
    assert (served.unserved_s(now), waits.unserved_s(now)) == (7, None)


@pytest.mark.parametrize("aging_s", [5, 60])
async def test_no_queue_waits_longer_than_the_bound_on_a_saturated_link(
    start: Start, aging_s: int
) -> None:
    """On a full 64 kbit/s link each of four queues is served every aging_s + 2 n T."""
    clock = ManualClock()
    served: dict[str, list[float]] = {}

    def arrived(row: Row) -> None:
        served.setdefault(row.message.device_id, []).append(clock.monotonic())

    endpoint = ThinLinkEndpoint(clock, rate_bytes_s=8000, delay_s=0.2, on_arrival=arrived)
    bench = start(endpoint, clock=clock, aging_s=aging_s)
    began = clock.monotonic()
    for priority in (0, 3, 6, 9):
        queue = bench.queue(priority)
        rows = 4000 if priority == 0 else 200
        queue.put(*(a_row(priority * 10_000 + at, device=f"p{priority}") for at in range(rows)))
    await clock.advance(130)
    # One batch: head_of_line_ms, the round trip, and a message of 264 bytes under way and chosen.
    batch_s = 0.5 + 0.2 + 2 * 264 / 8000
    bound_s = aging_s + 2 * 4 * batch_s
    for device in ("p3", "p6", "p9"):
        times = [began, *served[device], clock.monotonic()]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        # Arrival is half a window after the choice, so two ends of a gap differ by a batch.
        assert max(gaps) <= bound_s + batch_s
    share = len(served["p0"]) / sum(len(times) for times in served.values())
    assert share > (0.9 if aging_s == 60 else 0.4)


@given(st.data())
def test_a_queue_with_rows_is_passed_by_at_most_2n_batches(data: st.DataObject) -> None:
    """The bound holds for any arrivals, pauses of queues excepted: B = aging_s + 2 n T."""
    count = data.draw(st.integers(2, 6), "queues")
    aging_s = data.draw(st.integers(1, 50), "aging_s")
    batch_s = data.draw(st.floats(0.1, 20), "longest batch")
    pumped_queues = [
        PumpedQueue(
            MemoryQueue("upstream", Priority(at)), Backoff(_no_jitter()), lambda _row, _why: None
        )
        for at in range(count)
    ]
    queues = [pumped.queue for pumped in pumped_queues]
    scheduler = Scheduler(PumpOptions(aging_s=aging_s))
    now = 0.0
    offset = 0
    at = 0
    waits_since: dict[int, float] = {}
    for _ in range(data.draw(st.integers(1, 80), "batches")):
        for place in data.draw(st.sets(st.integers(0, count - 1)), "arrivals") | {0}:
            offset += 1
            queue = queues[place]
            assert isinstance(queue, MemoryQueue)
            queue.put(a_row(offset))
            pumped_queues[place].waits_since = min(pumped_queues[place].waits_since, now)
            waits_since.setdefault(place, now)
        pumped, _ = scheduler.next(pumped_queues, now, ())
        assert pumped is not None
        before, at = at, pumped_queues.index(pumped)
        assert 0 in (before, at)  # the best queue, which always has rows, has every second batch
        queue = queues[at]
        assert isinstance(queue, MemoryQueue)
        queue.rows.pop(0)
        scheduler.sent(pumped, now)
        del waits_since[at]
        if queue.rows:
            waits_since[at] = now
        now += data.draw(st.floats(0.001, 1), "share of the longest batch") * batch_s
        assert all(now - since <= aging_s + 2 * count * batch_s for since in waits_since.values())


async def test_a_throttled_queue_is_not_due_before_its_pause_ends(start: Start) -> None:
    """Ageing never sends what the peer has asked to keep back."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=1, aging_s=1)
    last = bench.queue(9)
    last.put(a_row(1))
    await bench.settle()
    endpoint.settle(1, SendResult(FailureKind.THROTTLED, "slow down", retry_after_s=100))
    bench.queue(0).put(*(a_row(offset) for offset in range(10, 40)))
    for _ in range(9):
        await bench.clock.advance(10)
        endpoint.settle_all()
    assert endpoint.received.count(1) == 1


def _no_jitter() -> random.Random:
    return random.Random(1)
