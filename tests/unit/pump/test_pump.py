"""The pump against fakes: choice, links, reads, drain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgehub.clock import ManualClock
from edgehub.errors import StoreError
from edgehub.message import (
    DEFAULT_PRIORITY,
    FailureKind,
    Priority,
    SendResult,
)
from tests.support.endpoints import (
    RevivableEndpoint,
    StalledEndpoint,
    ThinLinkEndpoint,
)
from tests.support.memory_queue import MemoryQueue, a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import Row
    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]

LATER = SendResult(FailureKind.TRANSIENT, "later")
REFUSED = SendResult(FailureKind.REJECTED, "no such topic")


async def test_rows_are_delivered_in_order_and_confirmed(start: Start) -> None:
    """What an endpoint takes leaves the queue, oldest first."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    await bench.settle()
    endpoint.revive()
    queue.put(*(a_row(offset) for offset in range(1, 101)))
    await bench.settle()
    assert endpoint.received == list(range(1, 101))
    assert queue.confirmed == list(range(1, 101))
    assert bench.pump.statistics().sent_total == 100


async def test_link_up_alone_starts_the_drain(start: Start) -> None:
    """Rows that wait go out when the link comes, without a new row (L-04)."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(offset) for offset in range(10)))
    await bench.clock.advance(3600)
    assert endpoint.received == []
    endpoint.revive()
    await bench.settle()
    assert queue.confirmed == list(range(10))


async def test_a_batch_holds_one_priority_and_the_best_comes_first(start: Start) -> None:
    """Each batch comes from the best queue that has rows at that moment."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=4, batch_rows_max=2)
    low, high = bench.queue(DEFAULT_PRIORITY), bench.queue(0)
    low.put(*(a_row(offset) for offset in range(10, 20)))
    await bench.settle()
    high.put(a_row(100), a_row(101), a_row(102))
    endpoint.settle(10)
    endpoint.settle(11)
    await bench.settle()
    assert endpoint.batches == [[10, 11], [12, 13], [100, 101]]
    endpoint.settle_all()
    await bench.settle()
    assert endpoint.batches[3:] == [[102], [14, 15], [16]]


async def test_expired_rows_are_never_sent(start: Start) -> None:
    """Time to live is checked before each send, also for rows that waited in memory."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    now = bench.clock.boottime_ms()
    queue.put(a_row(1, expires_ms=now + 5000), a_row(2))
    await bench.clock.advance(5)
    endpoint.revive()
    await bench.settle()
    assert endpoint.received == [2]
    assert queue.expired == [1]


async def test_a_row_in_flight_expires_only_when_its_send_fails(start: Start) -> None:
    """Delivered late is delivered; failed late is expired."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    expires = bench.clock.boottime_ms() + 1000
    queue.put(a_row(1, expires_ms=expires), a_row(2, expires_ms=expires))
    await bench.clock.advance(2)
    endpoint.settle(1)
    endpoint.settle(2, LATER)
    await bench.settle()
    assert queue.confirmed == [1]
    assert queue.expired == [2]
    assert bench.pump.statistics().holds == 0


async def test_a_lost_link_returns_rows_to_their_own_place(start: Start) -> None:
    """What was in flight is ahead of what waited, in its own queue, uncounted (R-12)."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=3)
    queue, other = bench.queue(3), bench.queue(5)
    queue.put(*(a_row(offset) for offset in range(1, 6)))
    other.put(a_row(50))
    await bench.settle()
    assert endpoint.received == [1, 2, 3]
    endpoint.cut()
    await bench.settle()
    assert queue.waiting == [1, 2, 3, 4, 5]
    assert [row.attempts for row in queue.rows] == [0] * 5
    endpoint.revive()
    await bench.settle()
    assert endpoint.received == [1, 2, 3, 1, 2, 3]


async def test_the_peers_receive_maximum_is_respected(start: Start) -> None:
    """200 rows through a peer that allows 10: never more, one connection (L-07)."""
    endpoint = StalledEndpoint(rows_max=10)
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(offset) for offset in range(200)))
    await bench.settle()
    while endpoint.pending:
        endpoint.settle_all()
        await bench.settle()
    assert queue.confirmed == list(range(200))
    assert endpoint.in_flight_most == 10


async def test_a_better_row_cuts_the_link_back_off(start: Start) -> None:
    """Only a row better than any that waits asks the endpoint to hurry."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    low, high = bench.queue(7), bench.queue(0)
    low.put(a_row(1))
    await bench.settle()
    low.put(a_row(2))
    assert endpoint.hints == [5.0]
    high.put(a_row(3))
    assert endpoint.hints == [5.0, 5.0]
    high.put(a_row(4))
    low.put(a_row(5))
    assert endpoint.hints == [5.0, 5.0]
    endpoint.revive()
    await bench.settle()
    endpoint.cut()
    high.put(a_row(6))
    assert endpoint.hints == [5.0, 5.0, 5.0]


async def test_drain_waits_for_what_is_in_flight(start: Start) -> None:
    """No new batch; the drain ends with the last settlement."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=2)
    queue = bench.queue()
    queue.put(*(a_row(offset) for offset in range(4)))
    await bench.settle()
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(bench.pump.drain(bench.clock.monotonic() + 20))
        await bench.settle()
        assert not drain.done()
        endpoint.settle_all()
        await bench.settle()
        assert drain.done()
    assert queue.confirmed == [0, 1]
    assert queue.waiting == [2, 3]
    assert bench.pump.statistics().state == "draining"


async def test_drain_gives_back_at_its_deadline(start: Start) -> None:
    """Rows without an answer return to their place; a late answer changes nothing."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(0), a_row(1))
    await bench.settle()
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.pump.drain(bench.clock.monotonic() + 20))
        await bench.clock.advance(20)
    assert queue.waiting == [0, 1]
    endpoint.settle_all()
    await bench.settle()
    assert queue.confirmed == []


async def test_a_cancelled_pump_leaves_no_row_in_flight(start: Start) -> None:
    """Rows of a pump that ends are back in their queues, and no sender is held."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=2)
    queue = bench.queue()
    queue.put(a_row(0), a_row(1, device="b"))
    await bench.settle()
    endpoint.settle(0, LATER)
    await bench.settle()
    assert queue.held_senders == {"dev-1"}
    bench.task.cancel()
    await bench.settle()
    assert queue.waiting == [0, 1]
    assert queue.held_senders == frozenset()


async def test_equal_payloads_are_distinct_rows(start: Start) -> None:
    """Four equal bodies are four deliveries (D-02)."""
    endpoint = RevivableEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(offset, body=b"00") for offset in range(4)))
    await bench.settle()
    endpoint.revive()
    await bench.settle()
    assert queue.confirmed == [0, 1, 2, 3]


async def test_slow_confirmations_cause_no_repeats(start: Start) -> None:
    """10 000 rows, confirmed out of step with the producer: each goes out once (D-01)."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, batch_rows_max=10)
    queue = bench.queue()
    for block in range(100):
        queue.put(*(a_row(block * 100 + index) for index in range(100)))
        await bench.clock.advance(0.01 * (block % 4))
        for offset in list(endpoint.pending)[: 30 + block]:
            endpoint.settle(offset)
    while endpoint.pending:
        endpoint.settle_all()
        await bench.settle()
    assert endpoint.received == list(range(10_000))
    assert sorted(queue.confirmed) == list(range(10_000))


async def test_an_alarm_overtakes_the_backlog_of_a_thin_link(start: Start) -> None:
    """64 kbit/s, 3 000 bulk rows: alarms wait half a second beyond the bare time, link full."""
    arrived: dict[int, float] = {}
    published: dict[int, float] = {}
    clock = ManualClock()
    link = ThinLinkEndpoint(
        clock,
        rate_bytes_s=8000,
        delay_s=0.05,
        on_arrival=lambda row: arrived.update({row.offset: clock.monotonic()}),
    )
    bench = start(link, clock=clock)
    bulk, alarms = bench.queue(), bench.queue(0)
    bulk.put(*(a_row(offset) for offset in range(3000)))
    await clock.advance(5)
    for number in range(50):
        offset = 10_000 + number
        published[offset] = clock.monotonic()
        alarms.put(a_row(offset))
        await clock.advance(0.73)
    busy = link.busy_s
    await clock.advance(20)
    assert link.busy_s - busy > 0.9 * 20
    bare_s = 264 / 8000 + 0.05
    waits = sorted(arrived[offset] - at - bare_s for offset, at in published.items())
    assert len(waits) == 50
    assert waits[-1] < 0.6


class OddQueue(MemoryQueue):
    """A queue whose next read fails, gives nothing, or begins or ends late, as the test says."""

    def __init__(self, priority: Priority = DEFAULT_PRIORITY) -> None:
        super().__init__("upstream", priority)
        self.faults: list[str] = []
        self.reads = 0
        self.go_on = asyncio.Event()

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `PumpQueue`."""
        self.reads += 1
        match self.faults.pop(0) if self.faults else "":
            case "error":
                raise StoreError("disk is busy")
            case "empty":
                return []
            case "slow":
                await self.go_on.wait()
            case "late":
                rows = await super().read_batch(rows_max, bytes_max)
                await self.go_on.wait()
                return rows
        return await super().read_batch(rows_max, bytes_max)


def with_odd_queue(bench: Bench, *faults: str) -> OddQueue:
    """Return a bench an odd queue with one row."""
    queue = OddQueue()
    queue.wake = bench.pump.rows_ready
    queue.faults = list(faults)
    bench.queues[DEFAULT_PRIORITY] = queue
    queue.put(a_row(1))
    return queue


async def test_a_read_that_fails_is_tried_again(start: Start) -> None:
    """The store's trouble delays that queue with back-off and ends nothing."""
    bench = start(RevivableEndpoint())
    queue = with_odd_queue(bench, "error", "error")
    await bench.settle()
    bench.pump.endpoint.revive()
    await bench.clock.advance(0.5)
    assert queue.reads == 1
    await bench.clock.advance(4)
    assert queue.confirmed == [1]


async def test_a_queue_that_gives_nothing_is_asked_again_later(start: Start) -> None:
    """Ready by its word and empty when read: neither a spin nor a hang."""
    bench = start(RevivableEndpoint())
    queue = with_odd_queue(bench, "empty", "empty", "empty")
    await bench.settle()
    bench.pump.endpoint.revive()
    await bench.settle()
    assert queue.reads == 1
    await bench.clock.advance(1)
    assert queue.confirmed == [1]


async def test_rows_read_while_the_link_went_down_go_back(start: Start) -> None:
    """A slow read that ends after the link has is not sent and not lost."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = with_odd_queue(bench, "slow")
    await bench.settle()
    endpoint.cut()
    queue.go_on.set()
    await bench.settle()
    assert endpoint.received == []
    assert queue.waiting == [1]


async def test_a_row_that_comes_after_an_empty_read_goes_first(start: Start) -> None:
    """A better queue that gave nothing a moment ago is asked again before a worse one."""
    endpoint = StalledEndpoint()
    endpoint.up_at_start = False
    bench = start(endpoint, batch_rows_max=1)
    bulk = with_odd_queue(bench, "late")
    bulk.put(a_row(2))
    alarms = OddQueue(Priority(0))
    alarms.wake = bench.pump.rows_ready
    alarms.faults = ["empty"]
    bench.queues[0] = alarms
    alarms.put(a_row(3))
    await bench.settle()
    endpoint.revive()
    await bench.settle()
    assert (alarms.reads, bulk.reads) == (1, 1)
    alarms.put(a_row(4))
    bulk.go_on.set()
    await bench.settle()
    assert endpoint.received == [1, 3, 4, 2]


async def test_rows_that_come_back_during_a_read_go_first(start: Start) -> None:
    """A link that is lost and back while the disk is slow does not turn the order round."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = with_odd_queue(bench, "", "late")
    await bench.settle()
    queue.put(a_row(2))
    await bench.settle()
    endpoint.cut()
    endpoint.revive()
    queue.go_on.set()
    await bench.settle()
    assert endpoint.received == [1, 1, 2]
    assert queue.waiting == []


async def test_a_parked_link_says_why(start: Start) -> None:
    """Status shows the endpoint's reason until the link is back."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    await bench.settle()
    endpoint.cut("refused: Not authorized", parked=True)
    assert bench.pump.statistics().reason == "refused: Not authorized"
    endpoint.revive()
    assert bench.pump.statistics().reason == ""


async def test_latency_is_measured_per_priority(start: Start) -> None:
    """From enqueue to confirmation; nothing to show before the first row."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue(3)
    queue.put(a_row(1, enqueued_ms=bench.clock.boottime_ms()))
    await bench.clock.advance(2)
    assert bench.pump.statistics().latency == {}
    endpoint.settle_all()
    await bench.settle()
    latency = bench.pump.statistics().latency[3]
    assert (latency.p50_s, latency.p99_s, latency.count) == (2.0, 2.0, 1)
