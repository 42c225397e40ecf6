"""Messages for devices of other hubs: when they are handed on, and what holds them up."""

from __future__ import annotations

import asyncio

import pytest

from edgehub.clock import ManualClock
from edgehub.device_bound.handover import Handover
from edgehub.device_bound.message import EndReason, Origin
from edgehub.devices.affinity.flags import (
    Cause,
    Flags,
    InProcessAffinityStore,
    Ownership,
    StoredAffinity,
)
from edgehub.devices.affinity.in_process import InProcessCoordinator
from edgehub.devices.faults import CoordinatorUnreachableError
from edgehub.devices.hub_requests import HubUnreachableError
from edgehub.message import DELIVERED, Priority
from tests.support.mailboxes import MailboxBench


class Coordinator(InProcessCoordinator):
    """May be unreachable."""

    is_away = False

    async def owner_of(self, device_id):
        """See `Coordinator`."""
        if self.is_away:
            raise CoordinatorUnreachableError(device_id, "away")
        return await super().owner_of(device_id)


class Line:
    """The way from one hub to the others; implements what `Handover` uses of `HubRequests`."""

    def __init__(self, hubs):
        self._hubs = hubs
        self.handle = None
        self.loses_answers = False
        self.asked = []

    async def ask(self, hub_id, request):
        """Hand a request to the other hub."""
        self.asked.append(request)
        if hub_id not in self._hubs:
            raise HubUnreachableError(f"hub {hub_id} is stopped")
        answer = await self._hubs[hub_id].line.handle(request)
        if self.loses_answers:
            raise HubUnreachableError(f"no answer of hub {hub_id}")
        return answer


class HubBench(MailboxBench):
    """The mailboxes of one hub, and what hands them on."""

    def __init__(self, hub_id, hubs, coordinator, clock, **options):
        super().__init__(clock=clock, **options)
        self.flags = Flags(InProcessAffinityStore(), StoredAffinity())
        self.line = Line(hubs)
        self.handover = Handover(
            self.mailboxes,
            hub_id=hub_id,
            flags=self.flags,
            coordinator=coordinator,
            requests=self.line,
            clock=clock,
        )
        hubs[hub_id] = self

    def waiting(self, target="d"):
        """Return the bodies that wait here, the next one first."""
        return [each.body for each in self.mailboxes.of(target)]


class Fleet:
    """Two hubs, `a` and `b`, and a coordinator that gives the device `d` to one of them."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.coordinator = Coordinator(self.clock, incarnation="one")
        self.hubs = {}
        self.a = HubBench("a", self.hubs, self.coordinator, self.clock)
        self.b = HubBench("b", self.hubs, self.coordinator, self.clock, **options)

    def owned_by(self, hub_id):
        """Give the device to a hub."""
        self.coordinator.record("d", 1, hub_id, generation=0)
        for name, hub in self.hubs.items():
            ownership = Ownership.OWNER if name == hub_id else Ownership.LOSER
            hub.flags.set("d", ownership, cause=Cause.NOTIFIED)


async def test_messages_go_to_the_owner_with_all_that_they_have():
    """In their order, with priority, properties and what is left of their life; once."""
    fleet = Fleet()
    fleet.owned_by("b")
    fleet.a.mailboxes.accept(
        "d",
        b"\xff1",
        {"p": "1"},
        {"messageId": "one", "cid": "c"},
        origin=Origin.CLIENT,
        priority=Priority(3),
        ttl_ms=60_000,
    )
    await fleet.a.put(b"2")
    await fleet.a.put(b"m", "d/mod")
    await fleet.a.handover.look()
    assert (fleet.a.waiting(), fleet.a.waiting("d/mod")) == ([], [])
    assert fleet.a.table.rows == {}
    assert fleet.a.ended == {EndReason.MOVED: 3}
    assert fleet.b.waiting() == [b"\xff1", b"2"]
    assert fleet.b.waiting("d/mod") == [b"m"]
    first = fleet.b.mailboxes.of("d")[0]
    assert (first.message_id, first.priority, first.origin) == ("one", 3, Origin.CLIENT)
    assert (first.properties, first.system["cid"]) == ({"p": "1"}, "c")
    assert first.expires_ms == fleet.clock.boottime_ms() + 60_000
    await fleet.b.listen()
    fleet.b.settle(DELIVERED, 0)
    await fleet.b.handover.look()
    assert fleet.b.waiting() == [b"2"]


async def test_a_message_stays_where_its_client_listens_or_no_hub_owns_its_device():
    """It would else leave the hub that can deliver it."""
    fleet = Fleet()
    await fleet.a.put(b"1")
    await fleet.a.handover.look()
    assert fleet.a.waiting() == [b"1"]
    fleet.owned_by("b")
    await fleet.a.listen()
    await fleet.a.handover.look()
    assert fleet.a.bodies == [b"1"]
    assert fleet.b.waiting() == []


async def test_a_hub_that_takes_nothing_leaves_the_message_where_it_is():
    """It is shown with the reason, and tried again."""
    fleet = Fleet(waiting_max=1)
    fleet.owned_by("c")
    await fleet.a.put(b"1")
    await fleet.a.put(b"2")
    await fleet.a.handover.look()
    assert fleet.a.handover.held_up == {"c": "hub c is stopped"}
    assert fleet.a.waiting() == [b"1", b"2"]
    fleet.owned_by("b")
    await fleet.a.handover.look()
    assert fleet.a.waiting() == [b"2"]
    assert fleet.a.handover.held_up == {
        "b": "1 messages wait for d (device_bound.waiting_max)",
    }
    assert fleet.b.ended == {}, "it is not lost"
    fleet.coordinator.is_away = True
    await fleet.a.handover.look()
    assert list(fleet.a.handover.held_up) == [""]
    assert fleet.a.waiting() == [b"2"]


async def test_a_lost_answer_makes_no_second_message():
    """The one that waits there already has the same id."""
    fleet = Fleet()
    fleet.owned_by("b")
    await fleet.a.put(b"1")
    fleet.a.line.loses_answers = True
    await fleet.a.handover.look()
    assert (fleet.a.waiting(), fleet.b.waiting()) == ([b"1"], [b"1"])
    fleet.a.line.loses_answers = False
    await fleet.a.handover.look()
    assert (fleet.a.waiting(), fleet.b.waiting()) == ([], [b"1"])


async def test_the_owner_answers_once_the_message_is_durable():
    """Until then it is kept here, and a second request waits for the same commit."""
    fleet = Fleet()
    fleet.owned_by("b")
    await fleet.a.put(b"1")
    fleet.b.table.held = []
    look = asyncio.create_task(fleet.a.handover.look())
    await asyncio.sleep(0)
    again = asyncio.create_task(fleet.b.handover.take(fleet.a.line.asked[0]))
    await asyncio.sleep(0)
    assert len(fleet.a.table.rows) == 1
    assert not again.done()
    fleet.b.table.held[0].set_result(None)
    await look
    assert await again == {"taken": True}
    assert fleet.a.table.rows == {}
    assert fleet.b.waiting() == [b"1"]


async def test_a_cancelled_hand_over_leaves_the_message():
    """As when the hub stops; its client gets it if it listens here then."""
    fleet = Fleet()
    fleet.owned_by("b")
    await fleet.a.put(b"1")
    fleet.b.table.held = []
    look = asyncio.create_task(fleet.a.handover.look())
    await asyncio.sleep(0)
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    await fleet.a.listen()
    assert fleet.a.bodies == [b"1"]


async def test_a_change_of_owner_is_followed_at_once():
    """Without the wait for the next look."""
    fleet = Fleet()
    fleet.owned_by("a")
    await fleet.a.put(b"1")
    running = asyncio.create_task(fleet.a.handover.run())
    await asyncio.sleep(0)
    fleet.owned_by("b")
    while fleet.a.waiting():  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    assert fleet.b.waiting() == [b"1"]
    await fleet.a.put(b"2")
    while fleet.a.waiting():  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    assert fleet.b.waiting() == [b"1", b"2"]
    running.cancel()


@pytest.mark.parametrize(
    "change",
    [
        {"target": "a/b/c"},
        {"target": ""},
        {"target": 5},
        {"body": "%"},
        {"origin": "x"},
        {"properties": []},
        {"more": 1},
        {"priority": "1"},
        {"ttl_ms": None},
        {"message_id": ""},
        {"system": {"cid": 5}},
    ],
)
async def test_a_malformed_request_is_refused(change):
    """Whatever is in Redis."""
    fleet = Fleet()
    fleet.owned_by("c")
    await fleet.a.put(b"1")
    await fleet.a.handover.look()
    [request] = fleet.a.line.asked
    assert (await fleet.b.handover.take({**request, **change}))["taken"] is False
    assert fleet.b.mailboxes.counts() == {}
