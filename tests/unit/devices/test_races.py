"""Operations of one device that meet at every possible moment, and are cancelled at every step."""

import asyncio

import pytest
from msgspec.structs import replace

from edgehub.devices.affinity.flags import Cause, Ownership
from edgehub.devices.affinity.join import JoinRequest
from edgehub.devices.faults import DeviceSourceError
from edgehub.devices.source import SessionState, StoredDevice
from tests.support.affinity_hubs import Hub, World, in_a_world

STEP_S = 0.025
STEPS = 64
"""An uncached frame takes 1.35 s: load 1 + 0.1 + 0.1, opening 0.1, handling 0.05."""


async def accept(stored: StoredDevice) -> SessionState:
    """Answer a join."""
    return replace(stored.session, session="joined", address="0a0b0c0d")


def a_join(nonce: int = 1) -> JoinRequest:
    """Make a join request."""
    return JoinRequest(
        device_id="d", dev_nonce=nonce, station="s1", key=f"{nonce}", fits=lambda _stored: True
    )


async def is_sound(hub: Hub, f_cnt: int, session: str = "") -> None:
    """Check that the next frame is handled, and that the connection follows the flag."""
    outcome = await hub.uplink(f_cnt, session=session)
    assert outcome.result == "processed"
    assert hub.handled[-1] == f_cnt
    device = hub.devices.known("d")
    assert device.is_idle
    assert device.connection.statistics().activities == 0
    assert hub.link("d").is_open == (hub.flags.of("d") is Ownership.OWNER)
    assert hub.source.running_max <= 1


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_frame_may_be_cancelled_at_every_step(turn):
    """Its caller goes away while it loads, asks, opens or sends; the next frame is handled."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(1))
            await world.clock.sleep(turn * STEP_S)
            frame.cancel()
        await is_sound(hub, 2)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_frame_behind_a_cancelled_one_is_handled(turn):
    """The load that the first one had begun is taken over by the second."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(hub.uplink(1))
            second = tasks.create_task(hub.uplink(2))
            await world.clock.sleep(turn * STEP_S)
            first.cancel()
        assert second.result().result == "processed"
        assert len(hub.devices) == 1
        await is_sound(hub, 3)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_close_may_meet_a_frame_at_every_step(turn):
    """The frame that runs is never cut; afterwards the connection follows the flag."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(1))
            await world.clock.sleep(turn * STEP_S)
            await hub.devices.close("d")
        assert frame.result().result == "processed"
        device = hub.devices.known("d")
        await device.connection.settled()
        assert hub.link("d").is_open == (hub.flags.of("d") is Ownership.OWNER)
        await is_sound(hub, 2)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(0, STEPS, 2))
def test_a_close_may_meet_a_refresh_at_every_step(turn):
    """The read is not cut, and it opens nothing after the close."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        loads = hub.source.loads
        async with asyncio.TaskGroup() as tasks:
            refresh = tasks.create_task(hub.devices.refresh("d"))
            await world.clock.sleep(turn * STEP_S)
            await hub.devices.close("d")
        assert refresh.result() is (hub.source.loads == loads + 1)
        assert not hub.link("d").is_open
        assert hub.link("d").log.count("open") == 2  # the first load, and the frame's
        await is_sound(hub, 2)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_refresh_may_be_cancelled_at_every_step(turn):
    """A hub that never judged the device closes what the refresh opened."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.devices.adopt(await world.registry.load("d"))
        async with asyncio.TaskGroup() as tasks:
            refresh = tasks.create_task(hub.devices.refresh("d"))
            await world.clock.sleep(turn * STEP_S)
            refresh.cancel()
        await hub.devices.known("d").connection.settled()
        assert not hub.link("d").is_open
        await is_sound(hub, 1)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_close_may_be_cancelled_at_every_step(turn):
    """Whoever asked for it need not wait: the device is given away, and its connection closes."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(1))
            await world.clock.sleep(turn * STEP_S)
            close = tasks.create_task(hub.devices.close("d"))
            await world.clock.sleep(STEP_S)
            given_away = hub.flags.of("d") is Ownership.LOSER
            close.cancel()
        assert frame.result().result == "processed"
        await world.clock.sleep(1)
        assert given_away
        assert hub.link("d").is_open == (hub.flags.of("d") is Ownership.OWNER)
        await is_sound(hub, 2)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(0, STEPS, 2))
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_downlink_may_meet_a_close_at_every_step(turn, is_cancelled):
    """It is sent whole over an open connection or not at all, and the close follows it."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        hub.devices.known("d").connection.request_close()
        await world.clock.sleep(1)
        sent: list[str] = []

        async def send() -> None:
            await world.clock.sleep(0.3)
            assert hub.link("d").is_open, "a close cut a running downlink"
            sent.append("downlink")

        async with asyncio.TaskGroup() as tasks:
            downlink = tasks.create_task(hub.devices.downlink("d", send))
            await world.clock.sleep(turn * STEP_S / 2)
            if is_cancelled:
                downlink.cancel()
            close = tasks.create_task(hub.devices.close("d"))
        assert close.done()
        if not downlink.cancelled():
            assert downlink.result() is bool(sent)
        assert not hub.link("d").is_open
        assert hub.flags.of("d") is Ownership.LOSER
        assert await hub.devices.downlink("d", send) is False
        await is_sound(hub, 2)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(0, STEPS, 2))
def test_a_refresh_may_meet_a_frame_at_every_step(turn):
    """The counter that the frame brought is not undone by what was read meanwhile."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        async with asyncio.TaskGroup() as tasks:
            refresh = tasks.create_task(hub.devices.refresh("d"))
            await world.clock.sleep(turn * STEP_S)
            frame = tasks.create_task(hub.uplink(2))
        assert refresh.result() is True
        assert frame.result().result == "processed"
        assert hub.devices.known("d").session.f_cnt_up == 2
        assert hub.link("d").log == ["open", "close", "open"]
        assert (await hub.uplink(2)).reason == "invalid_frame_counter"
        await is_sound(hub, 3)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_join_may_meet_a_frame_at_every_step(turn):
    """Loads never overlap; the session of the join is in force after it."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hub.uplink(1))
            await world.clock.sleep(turn * STEP_S)
            join = tasks.create_task(hub.devices.join(a_join(), accept))
        assert join.result().result == "accepted"
        assert hub.source.loads <= 3  # the frame's, the join's, and of a frame that fits no more
        await is_sound(hub, 0, session="joined")

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_join_may_be_cancelled_at_every_step(turn):
    """The device's next request is answered, and nothing stays open."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            join = tasks.create_task(hub.devices.join(a_join(1), accept))
            await world.clock.sleep(turn * STEP_S)
            join.cancel()
        assert not hub.link("d").is_open
        assert (await hub.devices.join(a_join(2), accept)).result == "accepted"
        assert not hub.link("d").is_open
        await is_sound(hub, 0, session="joined")

    in_a_world(test)


@pytest.mark.parametrize("turn", range(0, STEPS, 2))
def test_two_hubs_may_meet_at_every_step(turn):
    """One of them handles a frame, whatever the distance; one connection is left."""

    async def test(world: World):
        one, two = await world.hub("h1"), await world.hub("h2")
        for f_cnt in (1, 2, 3):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(one.uplink(f_cnt))
                await world.clock.sleep(turn * STEP_S)
                tasks.create_task(two.uplink(f_cnt))
            await world.clock.sleep(5)
            assert sorted(one.handled + two.handled) == list(range(1, f_cnt + 1))
            links = [one.link("d").is_open, two.link("d").is_open]
            assert links.count(True) == 1
            owners = [hub.flags.of("d") for hub in (one, two)]
            assert owners[links.index(True)] is Ownership.OWNER
            assert owners[links.index(False)] is Ownership.LOSER

    in_a_world(test)


@pytest.mark.parametrize("turns", range(40))
def test_a_frame_may_be_cancelled_between_any_two_turns_of_the_loop(turns):
    """Also where no time passes: in the search, at its turn, at the answer of the election."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.devices.adopt(await world.registry.load("d"))
        async with asyncio.TaskGroup() as tasks:
            frames = [tasks.create_task(hub.uplink(f_cnt)) for f_cnt in (1, 2, 3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            frames[1].cancel()
        assert [f_cnt for f_cnt in hub.handled if f_cnt != 2] == [1, 3]
        await is_sound(hub, 4)

    in_a_world(test)


def test_one_load_serves_all_that_wait_for_it():
    """A frame, a join, a refresh and another frame at once: one object, one load at a time."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            frames = [tasks.create_task(hub.uplink(f_cnt)) for f_cnt in range(1, 6)]
            tasks.create_task(hub.devices.refresh("d"))
        assert [frame.result().result for frame in frames] == ["processed"] * 5
        assert hub.handled == [1, 2, 3, 4, 5]
        assert (hub.source.loads, len(hub.devices)) == (1, 1)

    in_a_world(test)


def test_a_failed_load_fails_all_that_waited_for_it_and_is_tried_again_after():
    """Ten frames do not wait ten times for a source that is away."""

    async def test(world: World):
        hub = await world.hub("h1")
        hub.source.is_away = True
        started = world.clock.monotonic()
        answers = await asyncio.gather(
            *(hub.uplink(f_cnt) for f_cnt in range(1, 11)), return_exceptions=True
        )
        assert all(isinstance(answer, DeviceSourceError) for answer in answers)
        assert world.clock.monotonic() - started < 3
        assert len(hub.devices) == 0
        hub.source.is_away = False
        await is_sound(hub, 11)

    in_a_world(test)


def test_a_search_that_failed_fails_all_that_waited_for_it():
    """As a load does: a registry that hangs is waited for once, not once per frame."""

    async def test(world: World):
        hub = await world.hub("h1")
        finds = hub.source.devices_at

        async def hang(_address: str) -> list[str]:
            await world.clock.sleep(2)
            raise DeviceSourceError("d", "no answer in time")

        hub.source.devices_at = hang
        started = world.clock.monotonic()
        answers = await asyncio.gather(
            *(hub.uplink(f_cnt) for f_cnt in range(1, 11)), return_exceptions=True
        )
        assert all(isinstance(answer, DeviceSourceError) for answer in answers)
        assert world.clock.monotonic() - started < 3
        hub.source.devices_at = finds
        await is_sound(hub, 11)

    in_a_world(test)


@pytest.mark.parametrize("turn", range(0, STEPS, 2))
@pytest.mark.parametrize("ownership", [Ownership.OWNER, Ownership.LOSER])
def test_settings_may_change_while_a_frame_runs(turn, ownership):
    """The frame keeps what it began with, the next one has the new settings, at a loser too."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        hub.flags.set("d", ownership, cause=Cause.CLOSED)
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(2))
            await world.clock.sleep(turn * STEP_S)
            stored = await world.registry.load("d")
            world.registry.put(replace(stored, profile=replace(stored.profile, gateway_id="h2")))
            await hub.devices.settings_changed("d")
        assert frame.result().result in {"processed", "rejected"}
        assert (await hub.uplink(3)).reason == "belongs_to_another_gateway"

    in_a_world(test)


@pytest.mark.parametrize("turn", range(STEPS))
def test_a_device_may_be_forgotten_while_a_frame_runs(turn):
    """The frame is handled, and the next one begins from what its source has."""

    async def test(world: World):
        hub = await world.hub("h1")
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(5))
            await world.clock.sleep(turn * STEP_S)
            await hub.devices.forgotten("d")
        assert frame.result().result == "processed"
        await is_sound(hub, 6)

    in_a_world(test)


def test_an_old_counter_at_the_owner_takes_nothing_from_it():
    """Its own record may be behind the coordinator's, as after a restart; it stays the owner."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(5)
        await hub.devices.forgotten("d")
        assert (await hub.uplink(3)).reason == "duplicate"
        assert hub.flags.of("d") is Ownership.OWNER
        begun = world.clock.monotonic()
        await is_sound(hub, 6)
        assert world.clock.monotonic() - begun < 0.4, "an owner does not wait"

    in_a_world(test)
