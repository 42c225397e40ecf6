"""Predecessors: what has to be confirmed leaves first, one level at a time, others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.entities.announcements import Announcements, Subject
from edgehub.message import UPSTREAM, DeliveryRules, FailureKind, Order, SendResult
from tests.support.endpoints import StalledEndpoint
from tests.support.memory_queue import a_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.message import EndpointId, Row

LATER = SendResult(FailureKind.TRANSIENT, "later")
NO = SendResult(FailureKind.REJECTED, "no")


class Account(Announcements):
    """Announcements as the pump's `DependencyTracker`; notes what is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.buried: list[int] = []

    @property
    def is_busy(self) -> bool:
        """See `DependencyTracker`."""
        return len(self) > 0

    def must_wait(self, endpoint_id: EndpointId, predecessor: int) -> bool:
        """See `DependencyTracker`."""
        return self.is_open(predecessor, endpoint_id)

    def next_of(self, predecessor: int) -> object:
        """See `DependencyTracker`."""
        return self.stand_in(predecessor)

    def confirmed(self, row: Row | int) -> list[int]:
        """See `DependencyTracker`."""
        return super().confirmed(row if isinstance(row, int) else row.offset)

    def dead(self, row: Row, _reason: str) -> None:
        """See `DependencyTracker`."""
        self.buried.append(row.offset)
        self.refused(row.offset)


def creation(account: Account, offset: int, name: str, needs: int | None = None) -> Row:
    """Build the row that creates an entity."""
    row = a_row(offset, device=name)
    row.creation = True
    row.predecessor = needs
    account.came(offset, Subject(UPSTREAM, name, name), needs, offset)
    return row


def data(offset: int, name: str, predecessor: int | None = None) -> Row:
    """Build a row about an entity."""
    row = a_row(offset, device=name)
    row.predecessor = predecessor
    return row


class World:
    """A pump with two queues, and the account of creations."""

    def __init__(self, start: Callable[..., object]) -> None:
        self.endpoint = StalledEndpoint()
        self.account = Account()
        self.bench = start(self.endpoint, dependency_tracker=self.account)
        self.low = self.bench.queue(7)
        self.high = self.bench.queue(1)

    async def settle(self, *offsets: int, result: SendResult | None = None) -> None:
        """Answer for rows, and let the pump take the turn."""
        for offset in offsets:
            if result is None:
                self.endpoint.settle(offset)
            else:
                self.endpoint.settle(offset, result)
        await self.bench.settle()


@pytest.fixture
async def world(start: Callable[..., object]) -> World:
    """Return a world whose link is up."""
    made = World(start)
    await made.bench.settle()
    return made


async def test_one_level_of_creations_is_one_batch(world: World) -> None:
    """From a worse queue, each level once the one above is confirmed, then the data."""
    account = world.account
    world.endpoint.cut()
    await world.bench.settle()
    world.low.put(
        creation(account, 1, "a"),
        creation(account, 2, "b"),
        creation(account, 3, "c", 1),
        creation(account, 4, "d", 2),
    )
    world.high.put(data(10, "c", 3), data(11, "d", 4), data(12, "main"))
    world.endpoint.revive()
    await world.bench.settle()
    batches = world.endpoint.batches
    assert batches == [[12], [1, 2]]
    await world.settle(1, 2)
    assert batches[2:] == [[3, 4]]
    await world.settle(3)
    await world.settle(4)
    assert batches[3:] == [[10], [11]]


async def test_a_creation_that_backs_off_by_itself_is_not_hurried_by_others(world: World) -> None:
    """With skip it is kept back alone; the end of another creation does not end its wait."""
    world.bench.rules = DeliveryRules(order=Order.SKIP)
    world.low.put(creation(world.account, 1, "a"), creation(world.account, 2, "b"))
    world.high.put(data(10, "a", 1), data(11, "b", 2))
    await world.bench.settle()
    await world.settle(1, result=LATER)
    await world.settle(2, result=NO)
    assert world.endpoint.received == [1, 2]
    await world.bench.clock.advance(1.3)
    assert world.endpoint.received == [1, 2, 1]


async def test_a_row_that_needs_nothing_does_not_overtake_one_that_waits(world: World) -> None:
    """Read in the same batch as an older row of its sender, whose predecessor is open."""
    world.low.put(creation(world.account, 1, "a"))
    world.high.put(data(2, "a", 1), data(3, "a"))
    await world.bench.settle()
    assert set(world.endpoint.pending) == {1}
    await world.settle(1)
    assert world.endpoint.received == [1, 2, 3]


async def test_a_creation_that_is_refused_for_now_holds_its_rows_only(world: World) -> None:
    """It backs off, is tried again from its place in front, and then its rows leave in order."""
    account = world.account
    world.low.put(creation(account, 1, "a"))
    world.high.put(data(2, "a", 1), data(3, "b"), data(4, "a", 1))
    await world.bench.settle()
    assert set(world.endpoint.pending) == {1, 3}
    await world.settle(1, result=LATER)
    await world.settle(3)
    assert world.endpoint.pending == {}
    await world.bench.clock.advance(5)
    assert set(world.endpoint.pending) == {1}
    await world.settle(1)
    assert world.endpoint.batches[-1] == [2, 4]


async def test_a_creation_that_is_throttled_is_tried_when_its_time_is_over(world: World) -> None:
    """Nothing else has to happen for that: no other row leaves and none comes."""
    world.low.put(creation(world.account, 1, "a"))
    world.high.put(data(2, "a", 1))
    await world.bench.settle()
    await world.settle(1, result=SendResult(FailureKind.THROTTLED, "slowly", 5.0))
    await world.bench.clock.advance(4.9)
    assert world.endpoint.pending == {}
    await world.bench.clock.advance(0.2)
    assert set(world.endpoint.pending) == {1}


async def test_rows_without_order_back_off_one_by_one(world: World) -> None:
    """With `skip` it is the row that waits, and the wait ends."""
    world.bench.rules = DeliveryRules(order=Order.SKIP)
    world.low.put(creation(world.account, 1, "a"))
    world.high.put(data(2, "a", 1))
    await world.bench.settle()
    await world.settle(1, result=LATER)
    await world.bench.clock.advance(5)
    await world.settle(1)
    assert world.endpoint.batches[-1] == [2]


async def test_a_dead_creation_parks_its_rows_until_another_stands_in(world: World) -> None:
    """Its children too; the one that stands in is sent though its sender is kept back."""
    account = world.account
    world.low.put(creation(account, 1, "a"), creation(account, 2, "b", 1))
    world.high.put(data(3, "a", 1), data(4, "b", 2))
    await world.bench.settle()
    await world.settle(1, result=NO)
    assert (account.buried, world.endpoint.pending) == ([1], {})
    await world.bench.clock.advance(1000)
    assert world.endpoint.pending == {}
    account.came(9, Subject(UPSTREAM, "a", "a"), None, 9)
    again = a_row(9, device="a")
    again.creation = True
    world.high.put(again)
    await world.bench.settle()
    assert set(world.endpoint.pending) == {9}
    await world.settle(9)
    assert set(world.endpoint.pending) == {2, 3}
    await world.settle(2, 3)
    assert set(world.endpoint.pending) == {4}


async def test_a_cut_link_leaves_everything_in_its_place(world: World) -> None:
    """What was taken out of its turn comes again after the link is back; the end gives it back."""
    account = world.account
    world.low.put(creation(account, 1, "a"))
    world.high.put(data(2, "a", 1))
    await world.bench.settle()
    world.endpoint.cut()
    await world.bench.settle()
    assert (world.low.waiting, world.high.waiting) == ([1], [2])
    world.endpoint.revive()
    await world.bench.settle()
    await world.settle(1)
    await world.settle(2)
    assert (world.low.confirmed, world.high.confirmed) == ([1], [2])
    assert (world.high.held_senders, world.bench.pump.statistics().holds) == (frozenset(), 0)


async def test_other_causes_end_a_wait(world: World) -> None:
    """What is not waited for any more, as its predecessor went elsewhere, leaves."""
    world.low.put(creation(world.account, 1, "a"))
    await world.bench.settle()
    await world.settle(1, result=NO)
    world.high.put(data(2, "a", 1))
    await world.bench.settle()
    assert world.endpoint.pending == {}
    world.account.forgotten(1)
    await world.bench.settle()
    assert set(world.endpoint.pending) == {2}


async def test_creations_go_in_the_priority_of_those_who_wait(world: World) -> None:
    """Better rows are not held up by what worse ones wait for."""
    best = world.bench.queue(0)
    world.endpoint.cut()
    await world.bench.settle()
    world.low.put(creation(world.account, 1, "a"), data(2, "a", 1))
    best.put(*(data(offset, f"x{offset}") for offset in range(10, 15)))
    world.endpoint.batches.clear()
    world.endpoint.revive()
    await world.bench.settle()
    assert world.endpoint.batches[0][0] == 10


async def test_creations_return_to_the_priority_of_those_who_still_wait(world: World) -> None:
    """Two better rows have waited and left; what worse rows wait for does not go first now."""
    account = world.account
    world.low.put(creation(account, 1, "a"), creation(account, 2, "b"))
    world.high.put(data(10, "a", 1), data(11, "b", 2))
    await world.bench.settle()
    await world.settle(1, 2)
    await world.settle(10, 11)
    world.low.put(creation(account, 3, "c"), data(4, "c", 3))
    await world.bench.settle()
    world.endpoint.cut()
    await world.bench.settle()
    world.endpoint.batches.clear()
    world.bench.queue(3).put(*(data(offset, f"x{offset}") for offset in range(20, 23)))
    world.endpoint.revive()
    await world.bench.settle()
    assert world.endpoint.batches[0][0] == 20


async def test_a_creation_that_failed_in_its_own_turn_is_tried_from_the_front(world: World) -> None:
    """Somebody waits for it by now, so it does not go behind better rows any more."""
    account = world.account
    world.low.put(creation(account, 1, "a"))
    await world.bench.settle()
    assert set(world.endpoint.pending) == {1}
    world.high.put(data(2, "a", 1))
    await world.bench.settle()
    assert set(world.endpoint.pending) == {1}
    world.endpoint.cut()
    await world.bench.settle()
    world.endpoint.batches.clear()
    world.high.put(*(data(offset, f"x{offset}") for offset in range(10, 13)))
    world.endpoint.revive()
    await world.bench.settle()
    assert 1 in world.endpoint.pending
    while world.endpoint.pending:
        await world.settle(*world.endpoint.pending)
    order = [offset for batch in world.endpoint.batches for offset in batch]
    assert order.index(1) < order.index(2)
    assert sorted(order) == [1, 2, 10, 11, 12]


async def test_a_creation_that_is_removed_while_it_is_wanted_is_let_go(world: World) -> None:
    """Its rows wait on; once it counts as over, they leave."""
    world.endpoint.cut()
    await world.bench.settle()
    world.low.put(creation(world.account, 1, "a"))
    world.high.put(data(2, "a", 1))
    world.low.rows.clear()  # a person's purge
    world.endpoint.revive()
    await world.bench.clock.advance(1)
    assert world.endpoint.pending == {}
    world.account.forgotten(1)
    await world.bench.clock.advance(1)
    assert set(world.endpoint.pending) == {2}


async def test_the_end_of_a_pump_leaves_all_to_the_queues(world: World) -> None:
    """Nothing is kept back any more, and nothing stays taken."""
    world.endpoint.cut()
    await world.bench.settle()
    world.low.put(creation(world.account, 1, "a"))
    world.high.put(data(2, "a", 1))
    world.endpoint.revive()
    await world.bench.settle()
    assert set(world.endpoint.pending) == {1}
    world.bench.task.cancel()
    await world.bench.settle()
    assert (world.low.waiting, world.high.waiting) == ([1], [2])
    assert (world.low.has_ready(), world.high.held_senders) == (True, frozenset())


async def test_senders_who_wait_for_two_reasons_go_on_after_both(world: World) -> None:
    """A row that was refused before, behind a predecessor, has its back-off and its wait."""
    account = world.account
    world.high.put(data(1, "a"))
    await world.bench.settle()
    world.low.put(creation(account, 5, "a"))
    world.high.put(data(6, "a", 5))
    await world.bench.settle()
    await world.settle(1, result=LATER)
    await world.bench.clock.advance(5)
    while world.endpoint.pending:
        await world.settle(*world.endpoint.pending)
    assert sorted([*world.high.confirmed, *world.low.confirmed]) == [1, 5, 6]
    assert world.high.confirmed == [1, 6]
    assert world.high.held_senders == frozenset()
