"""Frames that a hub won and has not stored: a hub that lost keeps its copy until it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from edgehub.devices.affinity.coordinator import TAKE_OVER_S
from edgehub.devices.affinity.flags import Ownership
from edgehub.devices.affinity.outcome import Reason, Result
from edgehub.devices.faults import DeviceSourceError
from tests.support.affinity_hubs import a_frame, in_a_world

if TYPE_CHECKING:
    from edgehub.devices.affinity.outcome import FrameOutcome, Handling
    from tests.support.affinity_hubs import Hub, World


async def fails(_handling: Handling) -> None:
    """Stand in for a store that is full."""
    raise DeviceSourceError("d", "no room")


async def lost_frame(world: World, winner: Hub, loser: Hub) -> FrameOutcome:
    """Have one hub win a frame that it cannot store, while the other one holds a copy."""
    await winner.uplink(1)
    async with asyncio.TaskGroup() as tasks:
        with pytest.raises(DeviceSourceError):
            await winner.devices.data(a_frame(2), fails)
        copy = tasks.create_task(loser.uplink(2))
        await world.clock.sleep(TAKE_OVER_S - 1)
        assert (2 in loser.handled, copy.done()) == (False, False)
    return copy.result()


def test_a_frame_that_its_winner_does_not_store_is_taken_over():
    """Once, by the hub that has it; the device follows, and its repetition is only answered."""

    async def test(world):
        first, second = await world.hub("h1"), await world.hub("h2")
        outcome = await lost_frame(world, first, second)
        assert (outcome.result, outcome.answer) == (Result.PROCESSED, False)
        assert second.handled == [2]
        assert second.flags.of("d") is Ownership.OWNER
        assert first.flags.of("d") is Ownership.LOSER
        again = await second.uplink(2, confirmed=True)
        assert (again.result, again.upstream, again.answer) == (Result.PROCESSED, False, True)
        assert second.handled == [2]

    in_a_world(test)


def test_a_frame_that_is_taken_over_late_moves_no_counter_back():
    """A newer one was elected while it was held."""

    async def test(world):
        first, second = await world.hub("h1"), await world.hub("h2")
        async with asyncio.TaskGroup() as tasks:
            held = tasks.create_task(lost_frame(world, first, second))
            await world.clock.sleep(3)
            await second.uplink(3)
        assert held.result().result is Result.PROCESSED
        assert second.handled == [3, 2]
        assert (await second.uplink(3)).reason is Reason.INVALID_FRAME_COUNTER
        assert second.flags.of("d") is Ownership.OWNER

    in_a_world(test)


def test_a_copy_is_dropped_once_the_frame_is_stored():
    """Its winner takes a moment; nobody sends it twice."""

    async def test(world):
        first, second = await world.hub("h1"), await world.hub("h2")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first.uplink(1))
            copy = tasks.create_task(second.uplink(1))
        outcome = copy.result()
        assert (outcome.result, outcome.reason) == (Result.DROPPED, Reason.DUPLICATE)
        assert (first.handled, second.handled) == ([1], [])

    in_a_world(test)


def test_a_device_that_is_taken_from_another_hub_is_read_again():
    """Also by a hub that was never refused: a downlink counter that was used is not used twice."""

    async def test(world):
        first, second = await world.hub("h1"), await world.hub("h2")
        await first.devices.adopt(await world.registry.load("d"))  # as its join leaves it
        await second.uplink(1)
        stored = await world.registry.load("d")
        await world.registry.save("d", replace(stored.session, dev_nonces=(7,)))
        assert first.flags.of("d") is Ownership.UNKNOWN
        await first.uplink(2)
        assert first.handled == [2]
        assert first.devices.known("d").session.dev_nonces == (7,)

    in_a_world(test)
