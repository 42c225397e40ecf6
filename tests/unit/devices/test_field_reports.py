"""What users of other products reported about who speaks for a device."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.affinity.in_process import InProcessCoordinator
from edgehub.devices.affinity.join import JoinRequest
from edgehub.devices.faults import DeviceError
from tests.support.affinity_hubs import Hub, World, in_a_world

if TYPE_CHECKING:
    from edgehub.devices.affinity.coordinator import ElectionRequest, ElectionResult
    from edgehub.devices.source import SessionState, StoredDevice

MIC = "a1b2c3d4"


def a_request(nonce: int, station: str, mic: str = MIC) -> JoinRequest:
    """Make a join request, as a station heard it."""
    return JoinRequest(
        device_id="d",
        dev_nonce=nonce,
        station=station,
        key=f"{nonce}/{mic}",
        fits=lambda _stored: True,
    )


class Accepts:
    """Answers joins, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, stored: StoredDevice) -> SessionState:
        """Make a session."""
        self.count += 1
        return replace(stored.session, session=f"s{self.count}", address="0a0b0c0d")


def test_copies_of_one_join_are_one_join():
    """A-02: a ghost copy 18 ms later, at this hub or at another one, makes no second session."""

    async def test(world: World):
        one, other = await world.hub("h1"), await world.hub("h2")
        accept = Accepts()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(one.devices.join(a_request(9, "868.1"), accept))
            await world.clock.sleep(0.018)
            ghosts = [
                tasks.create_task(one.devices.join(a_request(9, "868.5"), accept)),
                tasks.create_task(other.devices.join(a_request(9, "868.5"), accept)),
            ]
        assert first.result().result == "accepted"
        assert [ghost.result().reason for ghost in ghosts] == [
            "second_station_of_same_gateway",
            "dev_nonce_used",
        ]
        assert accept.count == 1
        assert (await world.registry.load("d")).session.session == "s1"
        assert other.flags.of("d") is Ownership.UNKNOWN, "who answers a join owns nothing by it"
        outcome = await one.uplink(0, session="s1")
        assert outcome.result == "processed"

    in_a_world(test)


def test_two_receivers_of_a_hub_are_one_hub():
    """A-06: both chains hear a frame; it is elected once, for the hub, and goes out once."""

    async def test(world: World):
        hub = await world.hub("G1")
        outcomes = await asyncio.gather(
            hub.uplink(1, station="chain-0"), hub.uplink(1, station="chain-1")
        )
        assert [outcome.result for outcome in outcomes] == ["processed", "dropped"]
        assert outcomes[1].reason == "second_station_of_same_gateway"
        assert hub.handled == [1]
        record = world.coordinator.known("d")
        assert (record.owner, record.f_cnt, record.epoch) == ("G1", 1, 1)
        assert hub.flags.of("d") is Ownership.OWNER

    in_a_world(test)


def test_a_forwarder_in_a_loop_makes_one_row_and_moves_no_device():
    """A-09: one frame 400 times in 8 seconds; a loser takes nothing, and asks seldom."""

    async def test(world: World):
        coordinator = world.coordinator = Counting(world.clock, incarnation="one")
        owner, looping = await world.hub("h1"), await world.hub("G7")
        await owner.uplink(1)
        await looping.uplink(1)
        await owner.uplink(2)
        before = coordinator.asked
        async with asyncio.TaskGroup() as tasks:
            frames = []
            for _ in range(400):
                frames.append(tasks.create_task(outcome_of(looping, 2)))
                await world.clock.sleep(0.02)
        asked = coordinator.asked - before
        assert {frame.result() for frame in frames} == {"dropped", "queue_full"}
        assert owner.handled == [1, 2]
        assert looping.handled == []
        assert world.coordinator.known("d").owner == "h1"
        assert looping.flags.of("d") is Ownership.LOSER
        assert asked <= 90, "a loser waits 400 ms before each question, and 64 may wait"
        assert (await owner.uplink(3)).result == "processed"

    in_a_world(test)


def test_a_join_whose_answer_got_lost_is_refused_for_a_clear_reason():
    """A-11: the nonce again after 6 seconds; the next nonce joins, at another hub too."""

    async def test(world: World):
        one, other = await world.hub("h1"), await world.hub("h2")
        accept = Accepts()
        await one.devices.join(a_request(5, "s1"), accept)
        await world.clock.sleep(6)
        for hub in (one, other):
            again = await hub.devices.join(a_request(5, "s1"), accept)
            assert (again.result, again.reason) == ("refused", "dev_nonce_used")
        assert (await other.devices.join(a_request(6, "s1"), accept)).result == "accepted"
        assert accept.count == 2
        assert (await one.uplink(0, session="s2")).result == "processed"
        assert one.flags.of("d") is Ownership.OWNER

    in_a_world(test)


class Counting(InProcessCoordinator):
    """Counts how often it is asked."""

    asked = 0

    async def elect(self, ballot: ElectionRequest) -> ElectionResult:
        """See `Coordinator`."""
        self.asked += 1
        return await super().elect(ballot)


async def outcome_of(hub: Hub, f_cnt: int) -> str:
    """Hand in a frame; gives what became of it in a word."""
    try:
        return (await hub.uplink(f_cnt)).result
    except DeviceError as exc:
        return exc.reason
