"""A peer that takes nothing of one sender: its rows are kept back, those of the others flow."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from edgehub.message import DELIVERED, DeliveryRules, FailureKind, Order, SendResult
from edgehub.pump.refused_senders import FORGET_S, HOLD_S, SENDERS_MAX, RefusedSenders
from tests.support.endpoints import StalledEndpoint
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.endpoints.endpoint import Settle
    from edgehub.message import Row
    from tests.unit.pump.conftest import Bench

    Start = Callable[..., Bench]

CLOSED = SendResult(FailureKind.CLOSED, "closed by the peer")
FOREIGN = SendResult(FailureKind.NOT_AUTHORIZED, "refused with code 0x87")
RETRY_S = 1.0


class ChoosyEndpoint(StalledEndpoint):
    """Its peer takes rows in order, and refuses those of some devices: by closing, or in words.

    A peer that closes has not confirmed the rows before either, as one that commits in groups.
    """

    def __init__(self, refused: set[str], *, in_words: bool = False) -> None:
        super().__init__()
        self.refused = refused
        self.in_words = in_words
        self.taken: list[int] = []
        self.refusals = 0

    def send_batch(self, rows: Sequence[Row], settle: Settle) -> None:
        """See `Endpoint`."""
        super().send_batch(rows, settle)
        foreign = [
            offset
            for offset, (row, _) in self.pending.items()
            if row.message.device_id in self.refused
        ]
        self.refusals += bool(foreign)
        if foreign and not self.in_words:
            self.cut("closed by the peer", result=CLOSED)
            return
        for offset in list(self.pending):
            if offset not in foreign:
                self.taken.append(offset)
            self.settle(offset, FOREIGN if offset in foreign else DELIVERED)


async def passes(bench: Bench, endpoint: ChoosyEndpoint, seconds: int) -> None:
    """Advance the clock; the link is tried again each second."""
    for _ in range(seconds):
        await bench.clock.advance(RETRY_S)
        if not endpoint.link_is_up:
            endpoint.revive()
        await bench.settle()


async def speaks(bench: Bench, endpoint: ChoosyEndpoint, seconds: int, first: int) -> None:
    """Make a refused device and another one send a row a second each: even offsets are its."""
    for second in range(seconds):
        offset = first + 2 * second
        bench.queue().put(a_row(offset, device="other-9"), a_row(offset + 1, device="press-1"))
        await passes(bench, endpoint, 1)


async def test_rows_of_others_flow_while_a_sender_is_refused_by_closing(start: Start) -> None:
    """Each row of the other one is there within 20 s, and the link is closed ever less often."""
    endpoint = ChoosyEndpoint({"other-9"})
    bench = start(endpoint)
    await speaks(bench, endpoint, 20, 2)
    assert set(endpoint.taken) >= set(range(3, 42, 2)) - {41}
    await speaks(bench, endpoint, 580, 42)
    assert set(endpoint.taken) == set(range(3, 1202, 2)) - ({1201} - set(endpoint.taken))
    assert endpoint.refusals <= 22
    assert endpoint.taken == sorted(set(endpoint.taken), key=endpoint.taken.index)


async def test_its_rows_become_dead_letters_slowly(start: Start) -> None:
    """After three refusals each, the first for itself, the next ones for their sender."""
    endpoint = ChoosyEndpoint({"other-9"})
    bench = start(endpoint)
    await speaks(bench, endpoint, 400, 2)
    dead = bench.queue().dead
    assert [offset for offset, *_ in dead] == [2 * number for number in range(1, len(dead) + 1)]
    assert 2 <= len(dead) <= 5
    kinds = [kind for _, kind, _ in dead]
    assert kinds == [FailureKind.REJECTED] + [FailureKind.NOT_AUTHORIZED] * (len(dead) - 1)
    for _, _, reason in dead:
        assert "closed the connection over this message" in reason
        assert "other-9" in reason
        assert "on_behalf" in reason
        assert "too large" in reason


async def test_it_is_named_with_when_it_is_tried_again(start: Start) -> None:
    """From the first hold on, until the peer takes one of its rows."""
    endpoint = ChoosyEndpoint({"other-9"})
    bench = start(endpoint)
    assert bench.pump.statistics().refused_senders == ()
    await speaks(bench, endpoint, 60, 2)
    (found,) = bench.pump.statistics().refused_senders
    assert (found.sender, found.reason) == ("other-9", "closed by the peer")
    assert found.refusals == found.closes == endpoint.refusals
    assert 0 < found.retry_in_s <= 60
    endpoint.refused.clear()
    await passes(bench, endpoint, 61)
    assert bench.pump.statistics().refused_senders == ()


async def test_its_dead_letters_are_counted(start: Start) -> None:
    """Whatever made them so: closes, refusals in words, or `max_attempts`."""
    for in_words, attempts in ((False, None), (True, None), (True, 2)):
        endpoint = ChoosyEndpoint({"other-9"}, in_words=in_words)
        bench = start(endpoint)
        bench.rules = DeliveryRules(max_attempts=attempts)
        await speaks(bench, endpoint, 240, 2)
        (found,) = bench.pump.statistics().refused_senders
        assert found.dead_lettered == len(bench.queue().dead) > 0


def test_a_sender_of_which_nothing_is_tried_any_more_is_not_named_for_ever() -> None:
    """Even if the pump has nothing to do and does not forget it."""
    senders = RefusedSenders("upstream", random.Random(1))
    senders.note("other-9", 1, "closed by the peer", closed=True)
    senders.hold("other-9", 0.0)
    assert senders.statistics(HOLD_S + FORGET_S - 1)
    assert senders.statistics(HOLD_S + FORGET_S) == ()


async def test_once_the_peer_takes_them_they_flow_within_the_back_off(start: Start) -> None:
    """In their order, none missing but the dead letters; nobody has to do anything here."""
    endpoint = ChoosyEndpoint({"other-9"})
    bench = start(endpoint)
    await speaks(bench, endpoint, 200, 2)
    endpoint.refused.clear()
    await passes(bench, endpoint, 61)
    queue = bench.queue()
    own = [offset for offset in endpoint.taken if offset % 2 == 0]
    assert own == [2 * number for number in range(len(queue.dead) + 1, 201)]
    assert queue.waiting == []


async def test_an_operator_ends_the_hold(start: Start) -> None:
    """A reload tries the sender at once."""
    endpoint = ChoosyEndpoint({"other-9"})
    bench = start(endpoint)
    await speaks(bench, endpoint, 120, 2)
    endpoint.refused.clear()
    bench.pump.retry_now()
    await bench.settle()
    assert bench.queue().waiting == []
    assert bench.pump.statistics().refused_senders == ()


async def test_an_operator_need_not_wait_for_the_last_close(start: Start) -> None:
    """A moment after the peer has closed over the sender's row, a reload tries it all the same."""
    endpoint = ChoosyEndpoint({"other-9"})
    bench = start(endpoint)
    bench.queue().put(a_row(2, device="other-9"), a_row(3, device="press-1"))
    while not bench.pump.statistics().refused_senders:
        await passes(bench, endpoint, 1)
    endpoint.revive()
    await bench.settle()
    tried = endpoint.refusals
    assert endpoint.link_is_up
    bench.pump.retry_now()
    await bench.settle()
    assert endpoint.refusals == tried + 1


async def test_restarts_of_the_peer_make_no_dead_letters(start: Start) -> None:
    """One device fills the queue, and each close comes with its rows whole at the peer."""
    endpoint = StalledEndpoint()
    bench = start(endpoint)
    queue = bench.queue()
    queue.put(*(a_row(number, device="busy") for number in range(1, 50)))
    queue.put(*(a_row(number, device=f"d{number}") for number in range(50, 60)))
    for _ in range(3):
        await bench.settle()
        endpoint.cut(result=CLOSED)
        await bench.clock.advance(RETRY_S)
        endpoint.revive()
    for _ in range(100):
        await bench.settle()
        endpoint.settle_all()
    await bench.settle()
    assert queue.dead == []
    assert queue.confirmed == list(range(1, 60))


async def test_a_peer_that_takes_nothing_makes_no_dead_letters(start: Start) -> None:
    """By closing or in words: while nothing of any sender is taken, it is not about senders."""
    for in_words in (False, True):
        endpoint = ChoosyEndpoint({f"d{number}" for number in range(10)}, in_words=in_words)
        bench = start(endpoint)
        for number in range(1, 101):
            bench.queue().put(a_row(number, device=f"d{number % 10}"))
        await passes(bench, endpoint, 600)
        assert bench.queue().dead == []
        endpoint.refused.clear()
        await passes(bench, endpoint, 61)
        assert sorted(endpoint.taken) == list(range(1, 101))


async def test_many_refused_senders_leave_the_link_to_the_others(start: Start) -> None:
    """Tries of all of them together cost one connection in `HOLD_S` at most."""
    endpoint = ChoosyEndpoint({f"d{number}" for number in range(60)})
    bench = start(endpoint)
    for number in range(1, 601):
        bench.queue().put(a_row(number, device=f"d{number % 60}"))
    await passes(bench, endpoint, 200)
    found_out = endpoint.refusals
    bench.queue().put(*(a_row(number, device="press-1") for number in range(1000, 1600)))
    for second in range(600):
        bench.queue().put(a_row(2000 + second, device="press-1"))
        await passes(bench, endpoint, 1)
    assert endpoint.refusals - found_out <= 600 / HOLD_S + 60
    assert set(endpoint.taken) >= {*range(1000, 1600), *range(2000, 2580)}


async def test_a_sender_that_is_refused_in_words_is_held_in_all_queues(start: Start) -> None:
    """The connection lasts, others flow, and each try costs one row."""
    endpoint = ChoosyEndpoint({"other-9"}, in_words=True)
    bench = start(endpoint)
    for number in range(1, 51):
        bench.queue(number % 2).put(a_row(number, device="other-9"))
    for number in range(51, 101):
        bench.queue(1).put(a_row(number, device="press-1"))
    await passes(bench, endpoint, 60)
    assert endpoint.taken == list(range(51, 101))
    assert endpoint.link_is_up
    assert endpoint.refusals <= 8
    (found,) = bench.pump.statistics().refused_senders
    assert (found.closes, found.reason) == (0, "refused with code 0x87")
    bench.queue(1).put(*(a_row(number, device="press-1") for number in range(101, 200)))
    await passes(bench, endpoint, 600)
    dead = [*bench.queue(0).dead, *bench.queue(1).dead]
    assert {kind for _, kind, _ in dead} == {FailureKind.NOT_AUTHORIZED}
    assert {reason for *_, reason in dead} == {"refused with code 0x87"}
    assert 1 <= len(dead) <= 6


async def test_order_of_a_refused_sender_is_kept(start: Start) -> None:
    """What was behind a refused row, or in flight with it, leaves behind it."""
    for order in Order:
        endpoint = ChoosyEndpoint({"other-9"}, in_words=True)
        bench = start(endpoint)
        bench.rules = DeliveryRules(order=order)
        bench.queue().put(*(a_row(number, device="other-9") for number in range(1, 20)))
        await passes(bench, endpoint, 3)
        endpoint.refused.clear()
        await passes(bench, endpoint, 10)
        assert endpoint.taken == list(range(1, 20))


async def test_refusals_count_against_the_attempts_of_the_settings(start: Start) -> None:
    """`max_attempts` ends a row as after any other refusal."""
    endpoint = ChoosyEndpoint({"other-9"}, in_words=True)
    bench = start(endpoint)
    bench.rules = DeliveryRules(max_attempts=1)
    bench.queue().put(a_row(1, device="other-9"))
    await passes(bench, endpoint, 1)
    assert bench.queue().dead == [
        (1, FailureKind.NOT_AUTHORIZED, "max_attempts = 1 reached: refused with code 0x87")
    ]


async def test_refused_senders_are_bounded_and_forgotten(start: Start) -> None:
    """The ones refused longest ago go first, and all that have nothing to send any more."""
    endpoint = ChoosyEndpoint({f"d{number}" for number in range(SENDERS_MAX + 50)}, in_words=True)
    bench = start(endpoint)
    expires_ms = bench.clock.boottime_ms() + 20_000
    for number in range(SENDERS_MAX + 50):
        bench.queue().put(a_row(number + 1, device=f"d{number}", expires_ms=expires_ms))
    await passes(bench, endpoint, 3)
    assert len(bench.pump.statistics().refused_senders) == SENDERS_MAX
    await passes(bench, endpoint, 20)
    await bench.clock.advance(FORGET_S + HOLD_S * SENDERS_MAX)
    bench.queue().put(a_row(1000, device="press-1"))
    await passes(bench, endpoint, 1)
    assert bench.pump.statistics().refused_senders == ()


def test_a_hold_grows_only_while_others_get_through() -> None:
    """Rows of others that were confirmed once do not lengthen each later hold."""
    senders = RefusedSenders("upstream", random.Random(7))

    def refused() -> float:
        senders.note("other-9", 1, "closed by the peer", closed=True)
        senders.hold("other-9", 0.0)
        return senders.statistics(0.0)[0].retry_in_s

    assert refused() == HOLD_S
    senders.confirmed(["press-1"])
    assert refused() > HOLD_S
    assert [refused() for _ in range(3)] == [HOLD_S] * 3
