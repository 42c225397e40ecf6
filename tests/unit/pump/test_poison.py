"""A peer that refuses a message by closing the connection: which row it is, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.message import DELIVERED, FailureKind, SendResult
from edgehub.pump.poison import (
    CLOSES_MAX,
    KEPT_OUT_MAX,
    KEPT_OUT_S,
    SOON_CLOSES_MAX,
    SOON_ROWS_MAX,
    SUSPECTS_MAX,
    NextStep,
    Suspicion,
)
from edgehub.pump.pump import CULPRIT_RETRY_S
from edgehub.pump.refused_senders import HOLD_S, closed_text
from tests.support.endpoints import StalledEndpoint
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.endpoints.endpoint import Settle
    from edgehub.message import Row
    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]

CLOSED = SendResult(FailureKind.CLOSED, "closed by the peer")


class ClosingEndpoint(StalledEndpoint):
    """Delivers rows in order until it meets one that its peer closes the connection over."""

    def __init__(self, poison: set[int], *, before_commit: int = 0) -> None:
        super().__init__()
        self.poison = poison
        self.before_commit = before_commit
        self.delivered: list[int] = []
        self.closes = 0

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """See `Endpoint`."""
        super().send_batch(rows, settle)
        if self.poison.isdisjoint(self.pending):
            self.delivered.extend(self.pending)
            self.settle_all(DELIVERED)
            return
        # A peer that commits in groups has not confirmed what came right before either.
        for offset in list(self.pending):
            if offset in self.poison or self.before_commit:
                break
            self.delivered.append(offset)
            self.settle(offset)
        self.closes += 1
        self.cut("closed by the peer", result=CLOSED)


async def lives(bench: Bench, endpoint: ClosingEndpoint, connections: int) -> None:
    """Bring the link back so many times, each time after the first hold of a sender."""
    for _ in range(connections):
        await bench.clock.advance(HOLD_S)
        if not endpoint.link_is_up:
            endpoint.revive()
        await bench.settle()


async def test_the_culprit_becomes_a_dead_letter_and_the_others_flow(start: Start) -> None:
    """Three closes in company, then alone; a connection without it proves that it is the row."""
    endpoint = ClosingEndpoint({3}, before_commit=1)
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(number, device=f"d{number}") for number in range(1, 7)))
    await lives(bench, endpoint, 12)
    assert queue.dead == [(3, FailureKind.REJECTED, closed_text("d3", 4))]
    assert queue.confirmed == [1, 2, 4, 5, 6]
    assert 6 <= endpoint.closes <= 7


async def test_order_of_the_sender_is_kept_around_it(start: Start) -> None:
    """One device sent all of them: what comes behind the culprit waits, then leaves in order."""
    endpoint = ClosingEndpoint({3}, before_commit=1)
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(number) for number in range(1, 9)))
    await lives(bench, endpoint, 12)
    assert queue.dead == [(3, FailureKind.REJECTED, closed_text("dev-1", 4))]
    assert queue.confirmed == [1, 2, 4, 5, 6, 7, 8]


async def test_several_culprits_in_a_row(start: Start) -> None:
    """One behind the other: each is kept out in turn, and all end once a good one gets through."""
    endpoint = ClosingEndpoint({2, 3, 4}, before_commit=1)
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(number) for number in range(1, 8)))
    await lives(bench, endpoint, 24)
    assert [offset for offset, *_ in queue.dead] == [2, 3, 4]
    assert queue.confirmed == [1, 5, 6, 7]


async def test_a_peer_that_closes_on_everything_costs_nothing(start: Start) -> None:
    """No connection does better without a row, so none is a dead letter, however long it lasts."""
    rows = 2 * KEPT_OUT_MAX
    endpoint = ClosingEndpoint(set(range(rows)))
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(number) for number in range(rows)))
    await lives(bench, endpoint, 5 * rows)
    assert queue.dead == []
    endpoint.poison.clear()
    await lives(bench, endpoint, 3)
    assert len(queue.confirmed) + len(queue.dead) == rows
    assert len(queue.dead) <= KEPT_OUT_MAX


async def test_alone_it_ends_after_a_quiet_connection(start: Start) -> None:
    """Thirty seconds of connection without it prove as much; it is tried once more after them."""
    endpoint = ClosingEndpoint({1})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await lives(bench, endpoint, 3)
    assert queue.dead == []
    assert endpoint.link_is_up
    await bench.clock.advance(29.0)
    assert queue.dead == []
    assert endpoint.received == [1, 1, 1]
    await bench.clock.advance(1.5)
    assert queue.dead == [(1, FailureKind.REJECTED, closed_text("dev-1", 4))]
    assert endpoint.received == [1, 1, 1, 1]


async def test_a_link_that_is_lost_begins_the_quiet_time_again(start: Start) -> None:
    """Two connections of twenty seconds prove less than one of thirty, however soon it is back."""
    endpoint = ClosingEndpoint({1})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await lives(bench, endpoint, 3)
    await bench.clock.advance(20)
    endpoint.cut()
    endpoint.revive()
    await bench.clock.advance(20)
    assert (queue.dead, endpoint.received) == ([], [1, 1, 1])
    await bench.clock.advance(11)
    assert [offset for offset, *_ in queue.dead] == [1]


async def test_a_dead_letter_that_comes_again_goes_with_the_others(start: Start) -> None:
    """Nothing of its last try is held against a row that an operator brings back."""
    endpoint = ClosingEndpoint({1})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await lives(bench, endpoint, 3)
    await bench.clock.advance(30.5)
    assert [offset for offset, *_ in queue.dead] == [1]
    endpoint.poison.clear()
    await lives(bench, endpoint, 2)
    endpoint.batches.clear()
    bench.pump.retry_now()
    endpoint.cut()
    queue.put(a_row(1, device="d1"), a_row(2, device="d2"))
    endpoint.revive()
    await bench.settle()
    assert endpoint.batches == [[1, 2]]


async def test_what_was_kept_out_is_taken_after_all(start: Start) -> None:
    """Three restarts of the peer with one row alone in flight cost that row nothing."""
    endpoint = ClosingEndpoint({1})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await lives(bench, endpoint, 3)
    queue.put(a_row(2))
    endpoint.poison.clear()
    await lives(bench, endpoint, 2)
    assert queue.dead == []
    assert queue.confirmed == [2, 1]


async def test_what_was_kept_out_is_tried_again_in_time(start: Start) -> None:
    """The peer takes it by now, and nothing else has to be sent to find out."""
    endpoint = ClosingEndpoint({1, 2})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1), a_row(2))
    await lives(bench, endpoint, 10)
    assert endpoint.link_is_up
    assert queue.waiting == []
    assert bench.pump.kept_out_rows(queue.id) == 2
    assert bench.pump.kept_out_rows("other") == 0
    endpoint.poison.clear()
    await bench.clock.advance(KEPT_OUT_S)
    assert queue.confirmed == [1, 2]
    assert queue.dead == []


async def test_a_row_kept_out_waits_no_longer_because_of_later_ones(start: Start) -> None:
    """The time of the first ends its own wait; a row that is kept out later does not prolong it."""
    endpoint = ClosingEndpoint({1, 2})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await lives(bench, endpoint, 3)
    kept_out_at = bench.clock.monotonic()
    await bench.clock.advance(20)
    queue.put(a_row(2, device="d2"))
    await lives(bench, endpoint, 3)
    assert (queue.waiting, queue.confirmed) == ([], [])
    endpoint.poison.clear()
    await bench.clock.advance(kept_out_at + KEPT_OUT_S - bench.clock.monotonic() + 0.1)
    assert queue.confirmed[:1] == [1]


async def test_two_alone_wait_for_a_third_or_their_time_to_live(start: Start) -> None:
    """Each could be the reason for the other's closes; a row that is kept out still expires."""
    endpoint = ClosingEndpoint({1, 2})
    bench = start(endpoint)
    queue = bench.queue()
    brief = a_row(2, expires_ms=bench.clock.boottime_ms() + 60_000)
    queue.put(a_row(1), brief)
    await lives(bench, endpoint, 10)
    assert endpoint.link_is_up
    await bench.clock.advance(19.0)
    assert (queue.dead, queue.expired) == ([], [])
    await bench.clock.advance(2.0)
    assert queue.expired == [2]
    assert bench.pump.suspicion(brief) is None
    await lives(bench, endpoint, 16)
    assert [offset for offset, *_ in queue.dead] == [1]


@pytest.mark.parametrize("kind", [FailureKind.DISCONNECTED, FailureKind.TIMEOUT])
async def test_other_ends_of_a_connection_count_against_no_row(
    start: Start, kind: FailureKind
) -> None:
    """A lost link or a silent peer says nothing about the row, however often it happens."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    for _ in range(20):
        await bench.settle()
        if endpoint.link_is_up:
            endpoint.cut(result=SendResult(kind, "away"))
        await bench.clock.advance(61.0)
        if not endpoint.link_is_up:
            endpoint.revive()
    await bench.settle()
    assert queue.dead == []
    assert 1 in endpoint.pending


async def test_rows_leave_one_by_one_while_the_culprit_is_looked_for(start: Start) -> None:
    """After the third close as many rows as were in flight leave alone, then the link is full."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(number, device=f"d{number}") for number in range(1, 9)))
    await bench.settle()
    assert list(endpoint.pending) == [1, 2, 3, 4]
    for _ in range(3):
        assert len(endpoint.pending) == 4
        endpoint.cut(result=CLOSED)
        endpoint.revive()
        await bench.settle()
    for number in range(1, 5):
        assert list(endpoint.pending) == [number]
        endpoint.settle(number)
        await bench.settle()
    assert len(endpoint.pending) > 1
    while endpoint.pending:
        endpoint.settle_all()
        await bench.settle()
    assert queue.confirmed == [1, 2, 3, 4, 5, 6, 7, 8]
    assert queue.dead == []


async def test_a_row_that_was_kept_out_goes_back_when_the_pump_ends(start: Start) -> None:
    """A stop or another endpoint in its place finds the row where it was."""
    endpoint = ClosingEndpoint({1})
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await lives(bench, endpoint, 4)
    assert queue.waiting == []
    await bench.pump.drain(bench.clock.monotonic())
    assert queue.waiting == [1]


async def test_while_a_culprit_is_looked_for_the_link_is_tried_again_soon(start: Start) -> None:
    """Each close that tells of a row is followed up within seconds, not after a link's back-off."""
    endpoint = ClosingEndpoint({3, 4})
    bench = start(endpoint)
    bench.queue().put(*(a_row(number, device=f"d{number}") for number in range(1, 7)))
    await lives(bench, endpoint, 16)
    assert [offset for offset, *_ in bench.queue().dead] == [3, 4]
    assert endpoint.hints.count(CULPRIT_RETRY_S) == endpoint.closes


async def test_a_peer_that_closes_on_everything_has_its_back_off(start: Start) -> None:
    """A few rows are looked into; after that it is the peer that is at fault."""
    endpoint = ClosingEndpoint(set(range(100)))
    bench = start(endpoint)
    bench.queue().put(*(a_row(number, device=f"d{number}") for number in range(100)))
    await lives(bench, endpoint, 200)
    assert endpoint.closes >= 200
    assert 0 < endpoint.hints.count(CULPRIT_RETRY_S) <= SOON_ROWS_MAX * SOON_CLOSES_MAX


async def test_a_link_that_is_lost_is_not_hurried(start: Start) -> None:
    """Nothing was learnt of any row."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    bench.queue().put(a_row(1))
    await bench.settle()
    endpoint.cut("no way")
    await bench.settle()
    assert CULPRIT_RETRY_S not in endpoint.hints


async def test_what_speaks_against_a_row_is_reported_at_each_step(start: Start) -> None:
    """In company, held, alone, kept out: how often, how often more, and for how long."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1, device="d1"), a_row(2, device="d2"))

    def suspicion() -> Suspicion | None:
        return bench.pump.suspicion(a_row(1, device="d1"))

    async def closes() -> Suspicion | None:
        endpoint.cut(result=CLOSED)
        await bench.settle()
        endpoint.revive()
        await bench.settle()
        return suspicion()

    def told(
        step: NextStep, closes: int, alone: int, left: int | None, quiet_left_s: float | None = None
    ) -> Suspicion:
        return Suspicion(
            closes=closes,
            alone=alone,
            cleared=False,
            next=step,
            closes_left=left,
            quiet_left_s=quiet_left_s,
        )

    await bench.settle()
    assert suspicion() is None
    assert await closes() == told(NextStep.IN_COMPANY, 1, 0, 2)
    assert await closes() == told(NextStep.IN_COMPANY, 2, 0, 1)
    assert bench.pump.narrow_rows == 0
    assert await closes() == told(NextStep.ALONE, 3, 0, 3)
    assert bench.pump.narrow_rows == 2
    assert bench.pump.suspicion(a_row(2, device="d2")) is None
    assert await closes() == told(NextStep.HELD, 4, 1, 2)
    assert list(endpoint.pending) == [2]
    endpoint.settle(2, SendResult(FailureKind.REJECTED, "no"))
    await bench.clock.advance(HOLD_S)
    assert list(endpoint.pending) == [1]
    assert suspicion() == told(NextStep.ALONE, 4, 1, 2)
    assert await closes() == told(NextStep.HELD, 5, 2, 1)
    await bench.clock.advance(HOLD_S)
    assert await closes() == told(NextStep.KEPT_OUT, 6, 3, None, 30.0)
    await bench.clock.advance(10)
    found = suspicion()
    assert found is not None
    assert found.quiet_left_s == pytest.approx(20, abs=1)
    await bench.clock.advance(21)
    assert suspicion() == Suspicion(
        closes=6,
        alone=3,
        cleared=True,
        next=NextStep.ALONE,
        closes_left=1,
        quiet_left_s=None,
    )
    await closes()
    assert suspicion() is None
    assert [offset for offset, *_ in queue.dead] == [2, 1]


async def test_a_row_that_left_another_way_begins_again(start: Start) -> None:
    """Refused in words after two closes: should it come again, nothing speaks against it."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    await bench.settle()
    for _ in range(2):
        endpoint.cut(result=CLOSED)
        endpoint.revive()
        await bench.settle()
    endpoint.settle(1, SendResult(FailureKind.REJECTED, "no"))
    await bench.settle()
    assert [offset for offset, *_ in queue.dead] == [1]
    assert bench.pump.suspicion(a_row(1)) is None


async def test_suspects_are_bounded(start: Start) -> None:
    """A link that closes now and then while rows expire: the oldest are forgotten."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    last = SUSPECTS_MAX + 20
    for number in range(1, last + 1):
        queue.put(a_row(number, device=f"d{number}", expires_ms=bench.clock.boottime_ms() + 100))
        await bench.settle()
        endpoint.cut(result=CLOSED)
        await bench.clock.advance(1)
        endpoint.revive()
        await bench.settle()
    assert queue.dead == []
    told = [
        number for number in range(1, last + 1) if bench.pump.suspicion(a_row(number)) is not None
    ]
    assert told == list(range(21, last + 1))


async def test_a_row_that_is_kept_out_stays_a_suspect(start: Start) -> None:
    """However many others come: its counts are needed when it is tried again."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(a_row(1))
    for _ in range(CLOSES_MAX):
        await bench.clock.advance(HOLD_S)
        endpoint.cut(result=CLOSED)
        endpoint.revive()
        await bench.settle()
    kept_out = bench.pump.suspicion(a_row(1))
    assert kept_out is not None
    assert kept_out.next is NextStep.KEPT_OUT
    for number in range(2, SUSPECTS_MAX + 12):
        queue.put(a_row(number, device=f"d{number}", expires_ms=bench.clock.boottime_ms() + 50))
        await bench.settle()
        endpoint.cut(result=CLOSED)
        await bench.clock.advance(0.1)
        endpoint.revive()
        await bench.settle()
    assert bench.pump.suspicion(a_row(2, device="d2")) is None
    kept_out = bench.pump.suspicion(a_row(1))
    assert kept_out is not None
    assert (kept_out.next, kept_out.alone) == (NextStep.KEPT_OUT, CLOSES_MAX)
