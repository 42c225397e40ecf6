"""The connection of one device: who may open it, and when it closes."""

import asyncio

import pytest

from edgehub.clock import ManualClock
from edgehub.devices.connection import DeviceConnection
from edgehub.devices.faults import DeviceConnectionError, DeviceNotOwnedError
from edgehub.devices.source import DeviceProfile
from edgehub.errors import ConfigError
from edgehub.lab.simulation.virtual_time import run_on


class SlowLink:
    """A link whose opening and closing take a second each, and may fail."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.is_open = False
        self.refuses = False
        self.log: list[str] = []

    async def open(self) -> None:
        """Open it."""
        await self._clock.sleep(1)
        if self.refuses:
            raise DeviceConnectionError("d", "refused")
        self.is_open = True
        self.log.append("open")

    async def close(self) -> None:
        """Close it."""
        await self._clock.sleep(1)
        self.is_open = False
        self.log.append("close")
        if self.refuses:
            raise DeviceConnectionError("d", "gone")


class Bench:
    """A connection, its link, and who owns the device."""

    def __init__(self, clock: ManualClock, tasks: asyncio.TaskGroup) -> None:
        self.owns = True
        self.link = SlowLink(clock)
        self.connection = DeviceConnection(
            "d", self.link, owns=lambda: self.owns, clock=clock, tasks=tasks
        )

    async def use(self, *, entitled: bool = False) -> None:
        """Use the connection once."""
        async with self.connection.activity():
            await self.connection.ensure_open(entitled=entitled)


def on_a_bench(test):
    """Run a test on a manual clock."""
    clock = ManualClock()

    async def main():
        async with asyncio.TaskGroup() as tasks:
            await test(Bench(clock, tasks), clock)

    run_on(clock, main())


def test_an_owner_opens_once_and_keeps_it():
    """Two users at the same time share one opening."""

    async def test(bench, _clock):
        await asyncio.gather(bench.use(), bench.use())
        assert bench.link.log == ["open"]
        assert bench.connection.statistics().opened == 1

    on_a_bench(test)


def test_a_close_waits_for_the_last_activity_and_its_owner_may_open_again():
    """What runs is not cut; later work of an owner opens anew."""

    async def test(bench, clock):
        async with bench.connection.activity(), bench.connection.activity():
            await bench.connection.ensure_open()
            bench.connection.request_close()
            await clock.sleep(5)
            assert bench.link.is_open
            assert bench.connection.statistics().close_requested
        assert bench.link.log == ["open", "close"]
        await bench.use()
        assert bench.link.log == ["open", "close", "open"]

    on_a_bench(test)


def test_later_work_does_not_open_it_for_a_device_of_another_hub():
    """Only a load or an elected message may, and closes it again."""

    async def test(bench, _clock):
        bench.owns = False
        with pytest.raises(DeviceNotOwnedError):
            await bench.use()
        await bench.use(entitled=True)
        assert bench.link.log == ["open", "close"]

    on_a_bench(test)


def test_an_election_takes_back_a_close_that_has_not_happened():
    """The device came back while its connection was still in use."""

    async def test(bench, _clock):
        async with bench.connection.activity():
            await bench.connection.ensure_open()
            bench.connection.request_close()
            bench.connection.keep()
        assert bench.link.is_open

    on_a_bench(test)


def test_work_that_comes_during_a_close_opens_it_again_after_it():
    """Opening and closing never overlap."""

    async def test(bench, clock):
        await bench.use()
        bench.connection.request_close()
        await clock.sleep(0.5)
        await bench.use()
        assert bench.link.log == ["open", "close", "open"]

    on_a_bench(test)


def test_a_failed_opening_leaves_it_closed_and_can_be_tried_again():
    """The error goes to the user."""

    async def test(bench, _clock):
        bench.link.refuses = True
        with pytest.raises(DeviceConnectionError):
            await bench.use()
        bench.link.refuses = False
        await bench.use()
        assert bench.link.log == ["open"]

    on_a_bench(test)


def test_a_close_that_the_peer_did_not_hear_is_a_close():
    """Nobody waits for it and nothing fails."""

    async def test(bench, _clock):
        await bench.use()
        bench.link.refuses = True
        bench.connection.request_close()
        await asyncio.sleep(0)
        await bench.connection.settled()
        assert not bench.connection.is_open
        assert bench.connection.statistics().closed == 1

    on_a_bench(test)


def test_an_idle_connection_closes_after_its_time_counted_from_the_last_use():
    """The time slides with each use; it counts from the end of what uses it for longer."""

    async def test(bench, clock):
        bench.connection.set_keep_alive(60)
        await bench.use()
        await clock.sleep(40)
        await bench.use()
        await clock.sleep(59)
        assert bench.link.is_open
        async with bench.connection.activity():
            await clock.sleep(150)
            assert bench.link.is_open
        await clock.sleep(59)
        assert bench.link.is_open
        await clock.sleep(3)
        assert not bench.link.is_open
        async with bench.connection.activity():
            await clock.sleep(70)
        await clock.sleep(70)
        assert bench.connection.statistics().opened == 1, "nothing is idle that is closed"

    on_a_bench(test)


@pytest.mark.parametrize("seconds", [1, 59])
def test_too_short_a_keep_alive_is_refused(seconds):
    """0 means never; less than a minute would open and close all the time."""
    with pytest.raises(ConfigError, match="at least 60"):
        DeviceProfile(device_id="d", keep_alive_s=seconds)


@pytest.mark.parametrize("turns", range(14))
def test_a_cancelled_user_leaves_no_connection_behind(turns):
    """Cancelled at whatever step, a user of a device of another hub leaves it closed."""

    async def test(bench, clock):
        bench.owns = False
        async with asyncio.TaskGroup() as tasks:
            user = tasks.create_task(bench.use(entitled=True))
            for _ in range(turns):
                await clock.sleep(0.2)
            user.cancel()
        await bench.connection.settled()
        assert not bench.link.is_open
        assert bench.connection.is_idle

    on_a_bench(test)
