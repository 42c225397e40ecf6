"""What becomes of rows that were refused: order, back-off, pauses, dead letters."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.message import (
    DELIVERED,
    DeliveryRules,
    FailureKind,
    Order,
    SendResult,
)
from edgehub.pump.pump import FRESH_ROW_RETRY_S
from tests.support.endpoints import (
    DISCONNECTED,
    FlakyEndpoint,
    RejectingEndpoint,
    StalledEndpoint,
)
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]

LATER = SendResult(FailureKind.TRANSIENT, "later")
REFUSED = SendResult(FailureKind.REJECTED, "no such topic")


async def test_a_time_out_counts_an_attempt_and_pauses_the_endpoint(start: Start) -> None:
    """A row without an answer goes back, counted; the next try waits about a second."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await bench.settle()
    endpoint.settle(1, SendResult(FailureKind.TIMEOUT, "no answer"))
    await bench.settle()
    assert queue.rows[0].attempts == 1
    figures = bench.pump.statistics()
    assert figures.backoff_remaining_s == pytest.approx(1.0, abs=0.2)
    assert figures.reason == "no answer"
    await bench.clock.advance(0.7)
    assert endpoint.received == [1]
    await bench.clock.advance(0.6)
    assert endpoint.received == [1, 1]


async def test_a_row_on_trial_goes_alone_whatever_else_is_refused(start: Start) -> None:
    """The back-off of a later row of its sender, sent before, does not end the trial."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1), a_row(2))
    await bench.settle()
    endpoint.settle(1, LATER)
    await bench.clock.advance(1.3)
    assert endpoint.received == [1, 2, 1]
    endpoint.settle(2, LATER)
    await bench.clock.advance(70)
    assert endpoint.received == [1, 2, 1]
    endpoint.settle(1)
    await bench.settle()
    assert endpoint.received == [1, 2, 1, 2]
    endpoint.settle(2)
    await bench.settle()
    assert queue.confirmed == [1, 2]


async def test_a_hold_counts_from_the_last_refusal(start: Start) -> None:
    """A row refused on each trial keeps its sender back, but never longer than a minute at once."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await bench.settle()
    endpoint.settle(1, LATER)
    queue.put(a_row(2))
    for trial in range(2, 10):
        await bench.clock.advance(60.1)
        assert endpoint.received == [1] * trial
        endpoint.settle(1, LATER)
        await bench.settle()
    await bench.clock.advance(60.1)
    endpoint.settle(1)
    await bench.settle()
    assert endpoint.received == [*[1] * 10, 2]


async def test_strict_order_repeats_the_later_rows_of_the_sender(start: Start) -> None:
    """Later rows in flight follow the refused one again, even if delivered; others go on."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=4)
    queue = bench.queue()
    queue.put(a_row(5), a_row(6), a_row(7, device="other"), a_row(8))
    await bench.settle()
    endpoint.settle(6)
    endpoint.settle(5, LATER)
    endpoint.settle(7)
    await bench.settle()
    endpoint.settle(8)
    queue.put(a_row(9), a_row(10, device="other"))
    await bench.settle()
    assert endpoint.received == [5, 6, 7, 8, 10]
    assert queue.confirmed == [7]
    assert queue.waiting == [5, 6, 8, 9]
    endpoint.settle_all()
    await bench.clock.advance(1.3)
    assert endpoint.received[5:] == [5]
    endpoint.settle(5)
    await bench.settle()
    assert endpoint.received[6:] == [6, 8, 9]
    endpoint.settle_all()
    await bench.settle()
    assert queue.confirmed == [7, 10, 5, 6, 8, 9]


async def test_of_two_refused_rows_the_first_counts_for_the_order(start: Start) -> None:
    """Rows between two that are refused at once follow the first one again, though delivered."""
    endpoint = StalledEndpoint()
    bench = start(endpoint, rows_in_flight_max=4)
    queue = bench.queue()
    queue.put(a_row(5), a_row(6), a_row(7), a_row(8))
    await bench.settle()
    endpoint.settle(5, LATER)
    endpoint.settle(6)
    endpoint.settle(7, LATER)
    endpoint.settle(8)
    await bench.settle()
    assert queue.confirmed == []
    assert queue.waiting == [5, 6, 7, 8]
    for _ in range(8):
        await bench.clock.advance(1.3)
        endpoint.settle_all()
    await bench.settle()
    assert queue.confirmed == [5, 6, 7, 8]


async def test_a_refused_row_delays_only_its_sender_in_its_queue(start: Start) -> None:
    """Three refusals of row 5: strict keeps 5 ahead of 6..20; priority 0 never waits (P-03)."""
    endpoint = FlakyEndpoint({5: [LATER, LATER, LATER]})
    bench = start(endpoint)
    queue, best = bench.queue(7), bench.queue(0)
    best.put(a_row(100))
    queue.put(*(a_row(offset) for offset in range(5, 21)))
    await bench.settle()
    best.put(a_row(101))
    await bench.settle()
    assert best.confirmed == [100, 101]
    await bench.clock.advance(10)
    assert queue.confirmed == list(range(5, 21))
    assert endpoint.received.count(5) == 4
    assert endpoint.received.count(6) == 2


async def test_order_skip_lets_later_rows_pass(start: Start) -> None:
    """With skip 6..20 are delivered before 5, once each, also those that come later (P-03)."""
    endpoint = FlakyEndpoint({5: [LATER, LATER, LATER]})
    bench = start(endpoint)
    bench.rules = DeliveryRules(order=Order.SKIP)
    queue = bench.queue()
    queue.put(*(a_row(offset) for offset in range(5, 15)))
    await bench.settle()
    queue.put(*(a_row(offset) for offset in range(15, 21)))
    await bench.settle()
    assert queue.confirmed == [*range(6, 21)]
    await bench.clock.advance(12)
    assert queue.confirmed == [*range(6, 21), 5]
    assert endpoint.received.count(6) == 1


async def test_a_row_that_is_moved_while_it_is_kept_back_can_be_refused_again(start: Start) -> None:
    """With skip and recency: it has become stale meanwhile, and is kept back where it is now."""
    endpoint = FlakyEndpoint({5: [LATER, LATER]})
    bench = start(endpoint)
    bench.rules = DeliveryRules(order=Order.SKIP)
    fresh, stale = bench.queue(2), bench.queue(7)
    fresh.put(a_row(5))
    await bench.settle()
    stale.put(fresh.rows.pop())
    await bench.settle()
    assert endpoint.received == [5, 5]
    assert stale.waiting == [5]
    await bench.clock.advance(12)
    assert stale.confirmed == [5]
    assert bench.pump.statistics().holds == 0
    pumped_queues = [bench.pump.pumped(queue.id) for queue in (fresh, stale)]
    assert [pumped and pumped.holds for pumped in pumped_queues] == [0, 0]


async def test_the_back_off_of_a_row_doubles_with_its_attempts(start: Start) -> None:
    """Waits of about 1, 2, 4, 8 seconds, at most 60; attempts survive in the row."""
    endpoint = RejectingEndpoint("dev-1", LATER)
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    sent_at: list[float] = []
    for _ in range(3000):
        if len(endpoint.received) > len(sent_at):
            sent_at.append(bench.clock.monotonic())
        await bench.clock.advance(0.1)
    waits = [b - a for a, b in itertools.pairwise(sent_at)]
    for wait_s, expected in zip(waits, [1, 2, 4, 8, 16, 32], strict=False):
        assert wait_s == pytest.approx(expected, rel=0.25, abs=0.1)
    assert max(waits) < 60.2


async def test_back_off_ignores_a_wall_clock_that_steps(start: Start) -> None:
    """Setting the time back by two hours changes no retry (W-03)."""
    endpoint = FlakyEndpoint({1: [LATER]})
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    await bench.clock.advance(0.5)
    bench.clock.step_wall(-7_200_000)
    await bench.clock.advance(0.8)
    assert endpoint.received == [1, 1]


async def test_rejected_rows_are_dead_letters_and_block_nothing(start: Start) -> None:
    """33 is refused for good, 34 twice for now: 33 dead, 34 third time, 35 soon (P-09)."""
    endpoint = FlakyEndpoint({33: [REFUSED], 34: [LATER, LATER]})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(offset, device=f"dev-{offset}") for offset in range(33, 40)))
    await bench.settle()
    assert queue.dead == [(33, FailureKind.REJECTED, "no such topic")]
    assert queue.confirmed == [35, 36, 37, 38, 39]
    await bench.clock.advance(4)
    assert queue.confirmed[-1] == 34


async def test_attempts_and_age_end_in_dead_letters(start: Start) -> None:
    """After max_attempts tries, or a refusal beyond max_age_s, a row is set aside (P-11)."""
    endpoint = RejectingEndpoint("bad", LATER)
    bench = start(endpoint)
    bench.rules = DeliveryRules(max_attempts=4)
    queue = bench.queue(2)
    now = bench.clock.boottime_ms()
    queue.put(a_row(9, device="bad", enqueued_ms=now), a_row(10, device="bad", enqueued_ms=now))
    await bench.clock.advance(9)
    assert [entry[0] for entry in queue.dead] == [9]
    assert endpoint.received.count(9) == 4
    assert "max_attempts = 4" in queue.dead[0][2]
    bench.rules = DeliveryRules(max_age_s=15)
    await bench.clock.advance(30)
    assert [entry[0] for entry in queue.dead] == [9, 10]
    assert "max_age_s = 15" in queue.dead[1][2]


async def test_a_row_is_too_old_at_its_age_and_not_before(start: Start) -> None:
    """A refusal in the millisecond in which max_age_s is reached ends it; one before does not."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    bench.rules = DeliveryRules(max_age_s=15)
    queue = bench.queue(2)
    now = bench.clock.boottime_ms()
    queue.put(a_row(1, device="a", enqueued_ms=now + 1), a_row(2, device="b", enqueued_ms=now))
    await bench.clock.advance(15)
    assert bench.clock.boottime_ms() == now + 15_000
    endpoint.settle(1, LATER)
    endpoint.settle(2, LATER)
    await bench.settle()
    assert [entry[0] for entry in queue.dead] == [2]


async def test_throttling_delays_one_queue_only(start: Start) -> None:
    """A pause that the peer asks for holds for that queue; the better one goes on."""
    throttled = SendResult(FailureKind.THROTTLED, "slow down", retry_after_s=30)
    endpoint = FlakyEndpoint({1: [throttled], 2: [throttled]})
    bench = start(endpoint)
    low, high = bench.queue(9), bench.queue(1)
    low.put(a_row(1), a_row(2))
    await bench.settle()
    high.put(a_row(3))
    await bench.clock.advance(29)
    assert high.confirmed == [3]
    assert low.confirmed == []
    await bench.clock.advance(1.1)
    assert low.confirmed == [1, 2]


async def test_unauthorized_parks_the_endpoint_until_a_person_acts(start: Start) -> None:
    """Nothing is sent for a minute; an operator's word tries at once."""
    refused = SendResult(FailureKind.UNAUTHORIZED, "token expired")
    endpoint = FlakyEndpoint({1: [refused, refused]})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await bench.clock.advance(59)
    assert endpoint.received == [1]
    figures = bench.pump.statistics()
    assert (figures.state, figures.reason) == ("parked", "token expired")
    bench.pump.retry_now()
    await bench.settle()
    assert endpoint.received == [1, 1]
    await bench.clock.advance(61)
    assert queue.confirmed == [1]
    assert bench.pump.statistics().state == "up"


async def test_a_new_connection_ends_what_was_said_of_the_old_one(start: Start) -> None:
    """Parked for a refused token; with another connection the state is that of the link again."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    await bench.settle()
    endpoint.settle(1, SendResult(FailureKind.UNAUTHORIZED, "token expired"))
    await bench.settle()
    assert bench.pump.statistics().state == "parked"
    endpoint.cut()
    endpoint.revive()
    await bench.settle()
    figures = bench.pump.statistics()
    assert (figures.state, figures.reason) == ("up", "")
    assert list(endpoint.pending) == [1]


async def test_a_time_out_on_one_row_keeps_the_senders_order(start: Start) -> None:
    """A later row delivered beside a time-out follows the timed-out one again."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1), a_row(2))
    await bench.settle()
    endpoint.settle(2, DELIVERED)
    endpoint.settle(1, SendResult(FailureKind.TIMEOUT))
    await bench.clock.advance(1.3)
    assert endpoint.received == [1, 2, 1]
    endpoint.settle(1)
    await bench.settle()
    assert endpoint.received == [1, 2, 1, 2]


async def test_a_better_row_cuts_the_pause_after_time_outs(start: Start) -> None:
    """An alarm that comes while a silent peer is given a rest leaves within five seconds."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    bench.queue(7).put(a_row(1))
    await bench.settle()
    for _ in range(5):
        endpoint.settle(1, SendResult(FailureKind.TIMEOUT))
        await bench.clock.advance(60)
    endpoint.settle(1, SendResult(FailureKind.TIMEOUT))
    await bench.settle()
    assert bench.pump.statistics().backoff_remaining_s > FRESH_ROW_RETRY_S
    bench.queue(0).put(a_row(2))
    await bench.clock.advance(FRESH_ROW_RETRY_S)
    assert 2 in endpoint.received


async def test_an_endpoint_that_settles_while_its_link_is_gone_cannot_spin(start: Start) -> None:
    """Disconnected at once, without link_down: the pump waits instead of turning in circles."""
    endpoint = RejectingEndpoint("dev-1", DISCONNECTED)
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    await bench.clock.advance(10)
    assert 2 <= len(endpoint.received) <= 5


async def test_a_peer_that_refuses_everybody_holds_a_bounded_number(start: Start) -> None:
    """3 000 senders refused: holds stop at their bound and the queue waits."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(offset, device=f"d{offset}") for offset in range(3000)))
    await bench.settle()
    for _ in range(300):
        endpoint.settle_all(LATER)
        await bench.settle()
    assert bench.pump.statistics().holds == 1024
    assert len(endpoint.received) < 1500


async def test_throttling_without_a_time_backs_off(start: Start) -> None:
    """About 1 s, then about 2 s; a whole batch that is throttled counts once."""
    throttled = SendResult(FailureKind.THROTTLED, "slow down")
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1), a_row(2), a_row(3))
    await bench.settle()
    endpoint.settle_all(throttled)
    await bench.clock.advance(1.3)
    assert endpoint.received == [1, 2, 3, 1, 2, 3]
    endpoint.settle_all(throttled)
    await bench.clock.advance(1.5)
    assert len(endpoint.received) == 6
    await bench.clock.advance(1)
    assert len(endpoint.received) == 9
    assert queue.rows == []


async def test_a_refusal_of_an_earlier_row_lengthens_the_hold(start: Start) -> None:
    """Two refused rows of one sender: held until both waits are over, sent in order."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1), a_row(2))
    await bench.settle()
    endpoint.settle(2, LATER)
    await bench.clock.advance(0.6)
    endpoint.settle(1, LATER)
    await bench.clock.advance(0.7)
    assert endpoint.received == [1, 2]
    await bench.clock.advance(0.7)
    assert endpoint.received == [1, 2, 1]
    endpoint.settle(1)
    await bench.settle()
    endpoint.settle(2)
    await bench.settle()
    assert queue.confirmed == [1, 2]


async def test_a_peer_that_refuses_everything_does_not_fill_the_log(start: Start) -> None:
    """At most 20 lines a minute; rows that were left out are counted in the next one."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()

    async def refuse(numbers: range) -> None:
        for number in numbers:
            queue.put(a_row(number))
            await bench.settle()
            endpoint.settle(number, REFUSED)
            await bench.settle()

    with capture_logs() as logs:
        await refuse(range(1, 101))
        await bench.clock.advance(61)
        await refuse(range(101, 102))
    lines = [line for line in logs if line["event"] == "pump.rows_dead_lettered"]
    assert [line["rows"] for line in lines] == [1] * 20 + [81]
    assert {line["reason"] for line in lines} == {"no such topic"}
