"""Hubs that share a coordinator and a registry, with links and a source that take their time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from edgehub.clock import ManualClock
from edgehub.devices.affinity.data import Uplink
from edgehub.devices.affinity.flags import Flags, InProcessAffinityStore
from edgehub.devices.affinity.in_process import InProcessCoordinator
from edgehub.devices.affinity.notices import NoticeReader
from edgehub.devices.affinity.outcome import FrameOutcome, Handling
from edgehub.devices.affinity.rules import AffinityRules
from edgehub.devices.affinity.stored_reports import StoredReports
from edgehub.devices.device import DeviceDependencies
from edgehub.devices.devices import Devices
from edgehub.devices.faults import DeviceSourceError
from edgehub.devices.source import DeviceProfile, SessionState, StoredDevice
from edgehub.lab.simulation.virtual_time import run_on
from tests.support.device_registry import InProcessRegistry


class TimedSource:
    """A source over the device's connection that takes a second, counts, and may fail."""

    needs_connection = True

    def __init__(
        self, registry: InProcessRegistry, clock: ManualClock, link: Callable[[str], "TimedLink"]
    ) -> None:
        self._registry = registry
        self._link = link
        self._clock = clock
        self.loads = 0
        self.running = 0
        self.running_max = 0
        self.is_away = False

    async def devices_at(self, address: str) -> Sequence[str]:
        """See `DeviceSource`."""
        return await self._registry.devices_at(address)

    async def gateway_of(self, device_id: str) -> str | None:
        """See `DeviceSource`."""
        return await self._registry.gateway_of(device_id)

    async def load(self, device_id: str) -> StoredDevice:
        """See `DeviceSource`."""
        self.loads += 1
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await self._clock.sleep(1)
            assert self._link(device_id).is_open, "a close cut a running load"
            if self.is_away:
                raise DeviceSourceError(device_id, "away")
            return await self._registry.load(device_id)
        finally:
            self.running -= 1

    async def save(self, device_id: str, session: SessionState) -> None:
        """See `DeviceSource`."""
        if self.is_away:
            raise DeviceSourceError(device_id, "away")
        await self._registry.save(device_id, session)


class TimedLink:
    """A link whose opening and closing take a tenth of a second."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.is_open = False
        self.log: list[str] = []

    async def open(self) -> None:
        """See `DeviceLink`."""
        await self._clock.sleep(0.1)
        self.is_open = True
        self.log.append("open")

    async def close(self) -> None:
        """See `DeviceLink`."""
        self.is_open = False
        self.log.append("close")
        await self._clock.sleep(0.1)


class Hub:
    """The parts of one hub that deal with devices."""

    def __init__(self, world: "World", hub_id: str, **options) -> None:
        self.hub_id = hub_id
        self.world = world
        self.links: dict[str, TimedLink] = {}
        self.source = TimedSource(world.registry, world.clock, self.link)
        self.store = InProcessAffinityStore()
        self._options = options
        self.handled: list[int] = []

    async def open(self) -> "Hub":
        """Read the flags and put the parts together."""
        world = self.world
        self.flags = await Flags.open(self.store)
        reports = StoredReports(self.hub_id, world.coordinator, world.clock)
        self.devices = Devices(
            DeviceDependencies(
                hub_id=self.hub_id,
                clock=world.clock,
                source=self.source,
                coordinator=world.coordinator,
                flags=self.flags,
                rules=AffinityRules(),
                link_of=self.link,
                tasks=world.tasks,
                reports=reports,
            ),
            **self._options,
        )
        self.reader = NoticeReader(
            self.hub_id,
            coordinator=world.coordinator,
            flags=self.flags,
            devices=self.devices,
            clock=world.clock,
        )
        for name, work in (("notices", self.reader.run()), ("reports", reports.run())):
            world.background.append(world.tasks.create_task(work, name=f"{name}[{self.hub_id}]"))
        return self

    def link(self, device_id: str) -> TimedLink:
        """Return the link of a device."""
        return self.links.setdefault(device_id, TimedLink(self.world.clock))

    async def uplink(self, f_cnt: int, device_id: str = "d", **members) -> FrameOutcome:
        """Hand in a data frame."""

        async def handle(handling: Handling) -> None:
            await self.world.clock.sleep(0.05)
            if handling.upstream:
                assert self.link(device_id).is_open, "a close cut a running frame"
                self.handled.append(f_cnt)

        return await self.devices.data(a_frame(f_cnt, device_id, **members), handle)


class World:
    """A clock, a coordinator, a registry with the device `d`, and hubs."""

    def __init__(self, clock: ManualClock, tasks: asyncio.TaskGroup, **coordinator) -> None:
        self.clock = clock
        self.tasks = tasks
        self.coordinator = InProcessCoordinator(clock, incarnation="one", **coordinator)
        self.registry = InProcessRegistry()
        self.background: list[asyncio.Task] = []
        self.put("d")

    def put(self, device_id: str, **profile) -> None:
        """Register a device."""
        self.registry.put(StoredDevice(profile=DeviceProfile(device_id=device_id, **profile)))

    async def hub(self, hub_id: str, **options) -> Hub:
        """Start a hub."""
        return await Hub(self, hub_id, **options).open()

    async def give_session(self, device_id: str, session: str) -> None:
        """Return a device another session, as a join elsewhere does."""
        stored = await self.registry.load(device_id)
        generation = stored.session.generation + 1
        joined = replace(stored.session, session=session, generation=generation, f_cnt_up=0)
        await self.registry.save(device_id, joined)


def a_frame(
    f_cnt: int, device_id: str = "d", *, session: str = "", station: str = "s1", **members
) -> Uplink:
    """Make a data frame."""

    def counter(stored: StoredDevice) -> int | None:
        fits = (stored.profile.device_id, stored.session.session) == (device_id, session)
        return f_cnt if fits else None

    return Uplink(
        **{
            "address": device_id,
            "confirmed": False,
            "station": station,
            "key": f"{session}/{f_cnt}",
            "counter": counter,
            **members,
        }
    )


def in_a_world(test: Callable[[World], Awaitable[None]], **coordinator) -> None:
    """Run a test on a manual clock; whatever runs in the background ends with it."""
    clock = ManualClock()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            world = World(clock, tasks, **coordinator)
            try:
                await test(world)
            finally:
                for task in world.background:
                    task.cancel()

    run_on(clock, main())
