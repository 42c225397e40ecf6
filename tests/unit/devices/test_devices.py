"""The devices in memory: bounds, refreshes, what leaves."""

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from edgehub.devices.affinity.counters import REPEATS_MAX
from edgehub.devices.affinity.flags import Cause, Ownership
from edgehub.devices.affinity.join import JoinRequest
from edgehub.devices.affinity.rules import AffinityRules
from edgehub.devices.devices import REFRESH_S, UNSEEN_S
from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError, TooManyDevicesError
from edgehub.devices.source import Activation, Deduplication, SessionState, StoredDevice
from tests.support.affinity_hubs import World, in_a_world


def a_join(device_id: str, dev_nonce: int = 1, *, is_forged: bool = False) -> JoinRequest:
    """Make a join request."""
    return JoinRequest(
        device_id=device_id,
        dev_nonce=dev_nonce,
        station="s1",
        key=f"{dev_nonce}/{is_forged}",
        fits=lambda _stored: not is_forged,
    )


async def accept(stored: StoredDevice) -> SessionState:
    """Answer a join."""
    return replace(stored.session, session="joined", address="0a0b0c0d")


def test_the_one_that_was_silent_longest_makes_room():
    """Its connection is closed before it leaves; it is loaded again when it is heard."""

    async def test(world: World):
        for device_id in ("a", "b", "c"):
            world.put(device_id)
        hub = await world.hub("h1", devices_max=2)
        for device_id in ("a", "b", "a", "c"):
            await hub.uplink(hub.source.loads + 1, device_id)
        assert hub.devices.known("b") is None
        assert not hub.link("b").is_open
        assert hub.link("a").is_open
        assert (await hub.uplink(9, "b")).result == "processed"
        assert len(hub.devices) == 2

    in_a_world(test)


def test_busy_devices_do_not_make_room():
    """Where all have something to do a further one is refused, and nobody loses a frame."""

    async def test(world: World):
        world.put("e")
        hub = await world.hub("h1", devices_max=1)
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(1))
            await world.clock.sleep(0.5)
            with pytest.raises(TooManyDevicesError):
                await hub.uplink(1, "e")
        assert frame.result().result == "processed"

    in_a_world(test)


def test_devices_are_refreshed_after_days_and_leave_when_no_hub_hears_them():
    """The owner reads over its open connection; what is silent closes and leaves."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        world.background.append(world.tasks.create_task(hub.devices.run()))
        await world.clock.sleep(REFRESH_S + 1_000)
        assert hub.source.loads == 2
        assert hub.link("d").log == ["open", "close", "open"]
        await world.clock.sleep(UNSEEN_S)
        assert hub.devices.known("d") is None
        assert not hub.link("d").is_open

    in_a_world(test)


def test_a_loser_is_not_refreshed_and_reads_on_regained_ownership():
    """It opens nothing until it is elected, and then reads what the other hub changed."""

    async def test(world: World):
        one, two = await world.hub("h1"), await world.hub("h2")
        await one.uplink(1)
        await two.uplink(2)
        await world.clock.sleep(5)
        loads = one.source.loads
        assert await one.devices.refresh("d") is False
        assert one.source.loads == loads
        assert (await one.uplink(3)).result == "processed"
        assert one.source.loads == loads + 1
        assert one.flags.of("d") is Ownership.OWNER

    in_a_world(test)


def test_a_source_that_is_away_does_not_cost_a_regained_frame():
    """What is known is used once more."""

    async def test(world: World):
        one, two = await world.hub("h1"), await world.hub("h2")
        await one.uplink(1)
        await two.uplink(2)
        await world.clock.sleep(5)
        one.source.is_away = True
        assert (await one.uplink(3)).result == "processed"

    in_a_world(test)


def test_counters_are_written_every_ten_frames_by_the_owner():
    """A hub that takes over is behind by ten at most."""

    async def test(world: World):
        hub = await world.hub("h1")
        saved = [(await hub.uplink(f_cnt)).saved for f_cnt in range(1, 22)]
        assert [f_cnt for f_cnt, was in enumerate(saved, start=1) if was] == [10, 20]
        assert (await world.registry.load("d")).session.f_cnt_up == 20

    in_a_world(test)


def test_a_counter_that_is_not_written_yet_outlives_a_reload():
    """A frame that does not fit has the device read; an old one is refused after it as before."""

    async def test(world: World):
        world.put("own", gateway_id="h1")
        hub = await world.hub("h1")
        for f_cnt in range(1, 6):
            await hub.uplink(f_cnt, "own")
        loads = hub.source.loads
        assert (await hub.uplink(9, "own", session="forged")).reason == "no_device_by_mic"
        assert hub.source.loads == loads + 1
        await world.clock.sleep(120)
        assert (await hub.uplink(3, "own")).reason == "invalid_frame_counter"

    in_a_world(test)


def test_frames_after_a_restart_are_no_copies_of_those_before_it():
    """A device that counts anew within the minute is heard, by whatever station."""

    async def test(world: World):
        world.put("abp", activation=Activation.ABP)
        hub = await world.hub("h1")
        for f_cnt in (1, 2, 1):
            assert (await hub.uplink(f_cnt, "abp")).result == "processed"
        assert (await hub.uplink(2, "abp", station="s2")).result == "processed"

    in_a_world(test)


def test_what_other_stations_hear_is_no_repetition_of_the_device():
    """A device that asks for its answer again gets it, however many stations hear it."""

    async def test(world: World):
        world.put("marked", deduplication=Deduplication.MARK)
        hub = await world.hub("h1")
        frame = partial(hub.uplink, 1, "marked", confirmed=True)
        for station in range(REPEATS_MAX + 1):
            assert (await frame(station=f"s{station}")).result == "processed"
        assert (await frame(station="s0")).answer

    in_a_world(test)


def test_a_join_that_failed_may_come_by_another_station():
    """Nothing of the attempt is left that makes a copy of the next one."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        request = a_join("d")
        hub.source.is_away = True
        with pytest.raises(DeviceSourceError):
            await hub.devices.join(request, accept)
        hub.source.is_away = False
        again = await hub.devices.join(replace(request, station="s2"), accept)
        assert again.result == "accepted"

    in_a_world(test)


def test_an_unknown_device_takes_no_place():
    """A join of a device that nobody registered, or a message to it, leaves nothing in memory."""

    async def test(world: World):
        hub = await world.hub("h1")
        assert (await hub.uplink(1, "stranger")).reason == "no_device_by_address"
        with pytest.raises(DeviceUnknownError):
            await hub.devices.join(a_join("stranger"), None)
        assert len(hub.devices) == 0
        hub.flags.set("stranger", Ownership.OWNER, cause=Cause.FIRST)
        with pytest.raises(DeviceUnknownError):
            await hub.devices.downlink("stranger", partial(asyncio.sleep, 0))
        assert len(hub.devices) == 0

    in_a_world(test)


def test_forged_frames_do_not_make_a_device_load_all_the_time():
    """A frame that does not fit has it read again, but not for each of them."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        for f_cnt in range(10):
            outcome = await hub.uplink(f_cnt, session="forged")
            assert outcome.reason == "no_device_by_mic"
        assert hub.source.loads == 2
        await world.clock.sleep(11)
        await world.give_session("d", "new")
        assert (await hub.uplink(0, session="new")).result == "processed"

    in_a_world(test)


def test_an_owner_reads_no_device_again_for_frames_of_strangers_at_its_address():
    """Reading takes a session upstream; whoever has the same address by chance opens none."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.devices.join(a_join("d"), accept)
        await hub.uplink(1, address="0a0b0c0d", session="joined")
        loads, opened = hub.source.loads, hub.link("d").log.count("open")
        for f_cnt in range(50):
            await hub.uplink(f_cnt, address="0a0b0c0d", session="stranger")
            await world.clock.sleep(11)
        assert hub.source.loads == loads + 1
        assert hub.link("d").log.count("open") <= opened + 1
        await hub.uplink(2, address="0a0b0c0d", session="joined")
        assert hub.handled == [1, 2]

    in_a_world(test)


@pytest.mark.parametrize("is_forged", [True, False])
def test_forged_and_replayed_joins_are_refused_from_memory(is_forged: bool):
    """They cost neither a session upstream nor an election; the next genuine one is accepted."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.devices.join(a_join("d", 1), accept)
        await hub.uplink(1, session="joined")
        claims = []
        claim_join = world.coordinator.claim_join
        world.coordinator.claim_join = lambda claim: claims.append(claim) or claim_join(claim)
        loads = hub.source.loads
        for number in range(50):
            await world.clock.sleep(61)
            outcome = await hub.devices.join(
                a_join("d", 2 + number if is_forged else 1, is_forged=is_forged), accept
            )
            assert outcome.reason == ("join_mic_failed" if is_forged else "dev_nonce_used")
        elapsed_s = 50 * 61
        most = 1 + elapsed_s // AffinityRules().owner_reload_pause_s
        assert len(claims) <= most
        assert hub.source.loads <= loads + most
        assert (await hub.devices.join(a_join("d", 60), accept)).result == "accepted"

    in_a_world(test)


def test_gates_of_addresses_do_not_stay():
    """An address that nobody searches costs nothing."""

    async def test(world: World):
        hub = await world.hub("h1")
        await asyncio.gather(*(hub.uplink(f_cnt) for f_cnt in range(1, 5)))
        assert hub.devices.statistics().searches == 0

    in_a_world(test)


def test_repetitions_are_counted_apart_from_errors():
    """A-07: a device that sends each frame three times makes one row and no error."""

    async def test(world: World):
        hub = await world.hub("h1")
        for _ in range(3):
            await hub.uplink(10)
            await world.clock.sleep(1)
        assert hub.handled == [10]
        assert hub.devices.statistics().frames == {"processed": 1, "repetition": 2}

    in_a_world(test)


def test_a_counter_that_was_seen_is_a_duplicate_however_late_it_comes():
    """A-05: the same counter after 48 seconds, and after an hour, makes no second row."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(104)
        await world.clock.sleep(48)
        assert (await hub.uplink(104, station="s2")).result == "dropped"
        await world.clock.sleep(3600)
        assert (await hub.uplink(104, station="s2")).result == "rejected"
        assert hub.handled == [104]
        assert hub.devices.statistics().frames == {
            "processed": 1,
            "second_station_of_same_gateway": 1,
            "invalid_frame_counter": 1,
        }

    in_a_world(test)


def test_an_old_frame_does_not_count_in_a_new_session():
    """A hub that gets a device back by an old frame finds a new session, and hears its frames."""

    async def test(world: World):
        one, two = await world.hub("h1"), await world.hub("h2")
        await one.uplink(40)
        await two.uplink(41)
        await world.clock.sleep(5)
        await world.give_session("d", "new")
        assert (await one.uplink(42)).result == "processed"
        assert (await one.uplink(0, session="new")).result == "processed"

    in_a_world(test)


def test_a_counter_that_could_not_be_written_is_written_with_the_next_frame():
    """A source that is away costs no frame."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        hub.source.is_away = True
        assert not (await hub.uplink(20)).saved
        hub.source.is_away = False
        assert (await hub.uplink(21)).saved

    in_a_world(test)


def test_a_hub_that_is_notified_while_it_sends_writes_nothing():
    """The frame is handled; counters are the new owner's to write."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(50))
            await world.clock.sleep(0.02)
            tasks.create_task(hub.devices.close("d"))
        assert (frame.result().result, frame.result().saved) == ("processed", False)
        assert (await world.registry.load("d")).session.f_cnt_up == 0
        assert not hub.link("d").is_open

    in_a_world(test)


def test_a_class_c_downlink_waits_its_turn_and_loads_what_it_needs():
    """An owner whose memory is empty, as after a restart, loads the device first."""

    async def test(world: World):
        hub = await world.hub("h1")
        hub.flags.set("d", Ownership.OWNER, 1, cause=Cause.FIRST)
        sent = []

        async def send() -> None:
            sent.append(hub.link("d").is_open)

        assert await hub.devices.downlink("d", send)
        assert sent == [True]
        assert hub.link("d").log == ["open", "close", "open"]

    in_a_world(test)


def test_a_refresh_that_fails_leaves_what_is_known_in_force():
    """It is tried again at the next look."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        hub.source.is_away = True
        await world.clock.sleep(REFRESH_S)
        await hub.devices.maintain()
        assert (await hub.uplink(2)).result == "processed"
        assert hub.source.loads == 2

    in_a_world(test)


def test_a_downlink_whose_device_is_lost_while_it_waits_is_not_sent():
    """Another hub was elected before its turn: the caller learns it, and nothing leaves."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        sent = []

        async def send() -> None:
            sent.append("downlink")

        async with asyncio.TaskGroup() as tasks:
            frame = tasks.create_task(hub.uplink(2))
            await world.clock.sleep(0.01)
            downlink = tasks.create_task(hub.devices.downlink("d", send))
            await world.clock.sleep(0.01)
            assert not downlink.done()
            hub.flags.set("d", Ownership.LOSER, 9, cause=Cause.NOTIFIED)
        assert frame.done()
        assert downlink.result() is False
        assert sent == []

    in_a_world(test)


def test_a_busy_device_is_not_closed_however_long_it_was_silent():
    """What runs keeps its connection, and the look at silent devices does not wait for it."""

    async def test(world: World):
        hub = await world.hub("h1")
        await hub.uplink(1)
        await world.clock.sleep(UNSEEN_S - REFRESH_S)
        await hub.devices.refresh("d")
        await world.clock.sleep(REFRESH_S - 2)
        async with asyncio.TaskGroup() as tasks:
            refresh = tasks.create_task(hub.devices.refresh("d"))
            await world.clock.sleep(0.5)
            device = hub.devices.known("d")
            device.seen_s -= 10  # as long ago as devices are kept
            await hub.devices.maintain()
            assert not refresh.done()
        assert hub.devices.known("d") is device
        assert hub.link("d").is_open

    in_a_world(test)
