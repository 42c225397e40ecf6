"""From PUBLISH to PUBACK, on a manual clock, with a router that settles as the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.clock import ManualClock
from edgehub.heads.broker.ingress import (
    FIRST_RETRY_S,
    PAUSE_S_MAX,
    RETRY_S_MAX,
    SLICE,
    BrokerIngress,
    Load,
)
from edgehub.heads.broker.statistics import BrokerCounters, BrokerDrop
from edgehub.message import Refusal
from edgehub.mqtt.client_decoder import IncomingPublish
from edgehub.telemetry.log_limit import LogLimit

Settle = Callable[[int, Refusal | None], None]
BYTES_MAX = 100_000


class Parts:
    """An ingress, the connection it acknowledges on, and the place it hands messages to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.load = Load(lambda: None)
        self.counters = BrokerCounters()
        self.offers: list[tuple[int, Settle, int]] = []
        self.refusal: Refusal | None = None
        self.drop: BrokerDrop | None = None
        self.fits = True
        self.acknowledged: list[int] = []
        self.aborted: list[str] = []
        self.pauses = 0
        self.later: list[Callable[[], None]] | None = None
        self.told: list[BrokerDrop] = []
        self.connect()
        self.load.emptied = lambda: self.ingress.bring_back() and None

    # The connection.

    def acknowledge_all(self, messages: Iterable[IncomingPublish]) -> None:
        """See `Client`."""
        self.acknowledged += [message.packet_id for message in messages]

    def pause_reading(self) -> None:
        """See `Client`."""
        self.pauses += 1

    def resume_reading(self) -> None:
        """See `Client`."""
        assert self.pauses
        self.pauses -= 1

    @property
    def is_reading(self) -> bool:
        """Whether the socket is read."""
        return not self.pauses

    def abort(self, reason: str) -> None:
        """See `Client`."""
        self.aborted.append(reason)

    # The dispatcher.

    def offer(self, incoming: IncomingPublish, settle: Settle, token: int) -> BrokerDrop | None:
        """See `Dispatcher`."""
        if self.drop is not None:
            return self.drop
        if self.refusal is not None:
            settle(token, self.refusal)
            return None
        self.offers.append((incoming.packet_id, settle, token))
        return None

    def may_fit(self, _incoming: IncomingPublish) -> bool:
        """See `Dispatcher`."""
        return self.fits

    def refused(self, _incoming: IncomingPublish, reason: BrokerDrop) -> None:
        """See `Dispatcher`."""
        self.told.append(reason)

    def soon(self, call: Callable[[], None]) -> None:
        """See `Dispatcher`."""
        if self.later is None:
            call()
        else:
            self.later.append(call)

    # The test.

    def connect(self) -> None:
        """Begin a connection."""
        self.pauses = 0
        self.ingress = BrokerIngress(
            self,
            self,
            self.load,
            self.counters,
            clock=self.clock,
            log=LogLimit(self.clock),
            backlog_bytes_max=BYTES_MAX,
        )

    def go_on(self) -> None:
        """Run the turns in which something is left to do."""
        while self.later:
            self.later.pop(0)()

    def take(self, *mids: int, size: int = 100) -> None:
        """Let messages come."""
        self.ingress.take(
            [
                IncomingPublish(topic="t", body=b"", packet_id=mid, qos=1 if mid else 0, size=size)
                for mid in mids
            ]
        )

    def settle(self, mid: int, refusal: Refusal | None = None) -> None:
        """Settle a message that was offered."""
        place = next(i for i, offer in enumerate(self.offers) if offer[0] == mid)
        _, settle, token = self.offers.pop(place)
        settle(token, refusal)


class Trickle(Parts):
    """Parts with room for so many messages."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 0
        self.tries: list[int] = []

    def offer(self, incoming: IncomingPublish, settle: Settle, token: int) -> BrokerDrop | None:
        """See `Dispatcher`."""
        self.tries.append(incoming.packet_id)
        settle(token, None if self.room else Refusal.LIMIT)
        self.room = max(0, self.room - 1)
        return None


@given(st.permutations(range(1, 9)))
def test_pubacks_leave_in_the_order_of_their_publishes(order: list[int]) -> None:
    """However the commits come [MQTT-4.6.0-2]; nothing before its commit."""
    parts = Parts()
    parts.take(*range(1, 9))
    done: set[int] = set()
    for mid in order:
        parts.settle(mid)
        done.add(mid)
        whole = next((n for n in range(1, 9) if n not in done), 9)
        assert parts.acknowledged == list(range(1, whole))
    assert (parts.load.count, parts.load.bytes) == (0, 0)


async def test_a_limit_holds_all_behind_it_back_in_order() -> None:
    """Nothing behind a refused message is offered; then all go, with growing pauses till then."""
    parts = Parts()
    parts.refusal = Refusal.LIMIT
    parts.take(1, 2, 3)
    assert parts.ingress.is_holding
    await parts.clock.advance(10 * RETRY_S_MAX)
    assert parts.acknowledged == []
    parts.refusal = None
    await parts.clock.advance(RETRY_S_MAX)
    assert [mid for mid, _, _ in parts.offers] == [1, 2, 3]
    assert not parts.ingress.is_holding
    for mid in (2, 1, 3):
        parts.settle(mid)
    assert parts.acknowledged == [1, 2, 3]


async def test_each_try_in_vain_makes_the_pause_longer() -> None:
    """A limit that lasts costs a try in `RETRY_S_MAX`, not five a second."""
    parts = Trickle()
    parts.take(1)
    await parts.clock.advance(2 * RETRY_S_MAX)
    assert len(parts.tries) == 9
    await parts.clock.advance(10 * RETRY_S_MAX)
    assert len(parts.tries) == 19


async def test_progress_begins_the_pauses_again() -> None:
    """While each try has a message taken, the next one that has none is followed up soon."""
    parts = Trickle()
    parts.later = []
    parts.take(*range(1, 21))
    for _ in range(10):
        parts.room = 1
        await parts.clock.advance(1.05 * FIRST_RETRY_S)
        parts.go_on()
    assert parts.acknowledged == list(range(1, 11))
    parts.fits = False
    await parts.clock.advance(FIRST_RETRY_S)
    parts.fits = True
    parts.room = 1
    await parts.clock.advance(4 * FIRST_RETRY_S)
    parts.go_on()
    assert parts.acknowledged == list(range(1, 12))


async def test_what_is_refused_later_is_tried_again() -> None:
    """Also where the refusal comes after messages behind it were offered."""
    parts = Parts()
    parts.take(1, 2)
    parts.settle(1, Refusal.UNAVAILABLE)
    parts.settle(2)
    assert parts.acknowledged == []
    await parts.clock.advance(1)
    parts.settle(1)
    assert parts.acknowledged == [1, 2]


async def test_local_messages_are_not_tried_in_vain() -> None:
    """Each try would reach local clients again, so it waits until there may be room."""
    parts = Parts()
    parts.refusal, parts.fits = Refusal.LIMIT, False
    parts.take(1)
    parts.refusal = None
    await parts.clock.advance(3 * RETRY_S_MAX)
    assert parts.offers == []
    parts.fits = True
    await parts.clock.advance(RETRY_S_MAX)
    parts.settle(1)
    assert parts.acknowledged == [1]


def test_beyond_the_bound_messages_stay_at_the_broker() -> None:
    """Nothing more is taken, so order holds; once all is settled they are fetched again."""
    parts = Parts()
    parts.take(1, 2, 3, size=BYTES_MAX // 2 - 1000)
    assert [mid for mid, _, _ in parts.offers] == [1, 2]
    parts.take(4)
    assert parts.counters.put_off_total == 2
    parts.settle(2)
    assert parts.aborted == []
    parts.settle(1)
    assert parts.acknowledged == [1, 2]
    assert len(parts.aborted) == 1


def test_what_is_settled_is_acknowledged_before_the_connection_ends_for_the_rest() -> None:
    """Else it would come again with what was left at the broker."""
    parts = Parts()
    parts.later = []
    parts.load.emptied = lambda: parts.soon(parts.ingress.bring_back)
    parts.take(1, 2, 3, size=BYTES_MAX // 2 - 1000)
    parts.settle(2)
    parts.settle(1)
    while not parts.aborted:
        parts.later.pop(0)()
    assert parts.acknowledged == [1, 2]


def test_a_broker_that_is_too_fast_is_read_no_further() -> None:
    """From half of the bound on; again once a quarter is left."""
    parts = Parts()
    parts.take(1, 2, 3, size=BYTES_MAX // 5)
    assert not parts.is_reading
    parts.settle(1)
    assert not parts.is_reading
    parts.settle(2)
    assert parts.is_reading
    parts.take(4, 5, size=BYTES_MAX // 5)
    assert not parts.is_reading
    parts.ingress.leave()
    assert parts.is_reading


async def test_reading_pauses_for_a_few_seconds_only() -> None:
    """Answers to pings must be read; then the broker keeps what is too much."""
    parts = Parts()
    parts.take(1, 2, size=BYTES_MAX // 3)
    assert not parts.is_reading
    await parts.clock.advance(PAUSE_S_MAX)
    assert parts.is_reading
    parts.take(3, size=BYTES_MAX // 3)
    assert parts.is_reading
    assert parts.counters.put_off_total == 1
    parts.settle(1)
    parts.settle(2)
    assert len(parts.aborted) == 1


def test_a_limit_does_not_keep_the_hub_from_reading() -> None:
    """It may last for hours."""
    parts = Parts()
    parts.take(1, 2, size=BYTES_MAX // 3)
    assert not parts.is_reading
    parts.settle(1, Refusal.LIMIT)
    assert parts.is_reading


def test_others_have_their_turn_while_much_is_worked_off() -> None:
    """A slice at a time, and the socket is not read until all is taken; order holds."""
    parts = Parts()
    parts.later = []
    parts.take(*range(1, 151), size=1)
    assert len(parts.offers) == SLICE
    assert not parts.is_reading
    parts.go_on()
    assert [mid for mid, _, _ in parts.offers] == list(range(1, 151))
    assert parts.is_reading


def test_what_is_not_worked_off_stays_at_the_broker_when_the_connection_goes() -> None:
    """It is neither offered, counted nor acknowledged, and comes again with the next one."""
    parts = Parts()
    parts.later = []
    parts.take(*range(1, 151), size=1)
    parts.settle(1)
    parts.ingress.leave()
    parts.go_on()
    begun = list(range(2, SLICE + 1))
    assert [mid for mid, _, _ in parts.offers] == begun
    assert (parts.load.count, parts.counters.put_off_total) == (len(begun), 0)
    for mid in begun:
        parts.settle(mid)
    parts.go_on()
    assert (parts.load.count, parts.load.bytes, parts.acknowledged) == (0, 0, [])
    parts.connect()
    parts.take(*range(1, 151), size=1)
    parts.go_on()
    assert [mid for mid, _, _ in parts.offers] == list(range(1, 151))
    for mid in range(1, 151):
        parts.settle(mid)
    parts.go_on()
    assert parts.acknowledged == list(range(1, 151))


def test_one_large_message_is_taken_whatever_the_bound() -> None:
    """Else it would never pass."""
    parts = Parts()
    parts.take(1, size=10 * BYTES_MAX)
    parts.settle(1)
    assert parts.acknowledged == [1]


@pytest.mark.parametrize("refusal", [None, Refusal.LIMIT, Refusal.INVALID, Refusal.CLOSED])
def test_nothing_is_acknowledged_across_connections(refusal: Refusal | None) -> None:
    """A commit that comes after the connection went is counted, and no more."""
    parts = Parts()
    parts.take(1, 2)
    parts.ingress.leave()
    parts.settle(2, refusal)
    parts.settle(1, refusal)
    assert parts.acknowledged == []
    assert (parts.load.count, parts.load.bytes) == (0, 0)


async def test_held_messages_leave_with_the_connection() -> None:
    """They come again over the next one; no timer is left."""
    parts = Parts()
    parts.refusal = Refusal.LIMIT
    parts.take(1, 2)
    parts.ingress.leave()
    assert (parts.load.count, parts.load.bytes) == (0, 0)
    parts.refusal = None
    await parts.clock.advance(60)
    assert parts.offers == []


def test_what_can_never_be_stored_is_acknowledged_and_reported() -> None:
    """Invalid at once or later, or dropped for what it is; the next one passes."""
    parts = Parts()
    parts.take(1, 2)
    parts.settle(1, Refusal.INVALID)
    parts.settle(2)
    parts.drop = BrokerDrop.MALFORMED
    parts.take(3)
    assert parts.acknowledged == [1, 2, 3]
    assert parts.told == [BrokerDrop.INVALID, BrokerDrop.MALFORMED]


def test_a_hub_that_shuts_down_takes_nothing_more() -> None:
    """What comes stays at the broker; QoS 0 is dropped and counted."""
    parts = Parts()
    parts.take(1)
    parts.ingress.stop()
    parts.take(2, 0)
    parts.settle(1)
    assert parts.acknowledged == [1]
    assert parts.counters.dropped == {BrokerDrop.CLOSING: 1}


async def test_a_hub_that_shuts_down_does_not_wait_for_room() -> None:
    """What a limit holds back stays at the broker."""
    parts = Parts()
    parts.take(1)
    parts.refusal = Refusal.LIMIT
    parts.take(2)
    parts.ingress.stop()
    assert parts.load.count == 1
    parts.settle(1, Refusal.LIMIT)
    assert (parts.load.count, parts.acknowledged) == (0, [])
    await parts.clock.advance(60)
    assert parts.offers == []


async def test_qos_0_is_dropped_while_a_limit_holds() -> None:
    """Nobody would send it again."""
    parts = Parts()
    parts.take(0)
    assert parts.load.count == 1
    parts.settle(0)
    parts.refusal = Refusal.LIMIT
    parts.take(1, 0)
    assert parts.counters.dropped == {BrokerDrop.LIMIT: 1}
    assert parts.load.count == 1


def test_qos_0_that_is_refused_later_is_reported_like_any_other() -> None:
    """The journal has it, whether a limit refuses it at once or with its commit."""
    parts = Parts()
    parts.take(0)
    parts.settle(0, Refusal.LIMIT)
    assert (parts.told, parts.counters.dropped) == ([BrokerDrop.LIMIT], {BrokerDrop.LIMIT: 1})
