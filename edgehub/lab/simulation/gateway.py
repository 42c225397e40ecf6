"""One gateway of a simulation.

Owns the parts of a hub that deal with devices, put together as in the daemon.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from edgehub.devices.affinity.flags import Flag, Flags, InProcessAffinityStore, StoredAffinity
from edgehub.devices.affinity.notices import NoticeReader
from edgehub.devices.affinity.rules import AffinityRules
from edgehub.devices.affinity.stored_reports import StoredReports
from edgehub.devices.device import DeviceDependencies
from edgehub.devices.devices import Devices
from edgehub.lab.simulation.network import SimulatedLink, SimulatedPath, SimulatedTwins

if TYPE_CHECKING:
    from edgehub.lab.simulation.network import Network


class Gateway:
    """A gateway that can be started, and lost.

    Attributes:
        name: Name of the gateway.
        devices: Its devices, while it runs.
        flags: What it remembers, while it runs.
        tasks: Where its operations run.
    """

    devices: Devices
    flags: Flags
    tasks: asyncio.TaskGroup

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self._network = network
        self._links: dict[str, SimulatedLink] = {}
        states = network.scenario.states
        self._disk = InProcessAffinityStore(
            StoredAffinity(
                flags={
                    device: Flag(ownership=state.ownership)
                    for (gateway, device), state in states.items()
                    if gateway == name
                },
                position=network.coordinator.position(name),
            )
        )
        self._is_first_start = True

    async def run(self, started: asyncio.Event) -> None:
        """Run until cancelled."""
        network = self._network
        async with asyncio.TaskGroup() as self.tasks:
            self.flags = await Flags.open(self._disk)
            path = SimulatedPath(network)
            reports = StoredReports(self.name, path, network.clock)
            self.devices = Devices(
                DeviceDependencies(
                    hub_id=self.name,
                    clock=network.clock,
                    source=SimulatedTwins(network, self.name),
                    coordinator=path,
                    flags=self.flags,
                    rules=AffinityRules(processing_delay_ms=network.scenario.config.delay_ms),
                    link_of=self.link,
                    tasks=self.tasks,
                    reports=reports,
                )
            )
            reader = NoticeReader(
                self.name,
                coordinator=path,
                flags=self.flags,
                devices=self.devices,
                clock=network.clock,
            )
            if self._is_first_start:
                self._is_first_start = False
                await self._warm_up()
            self.tasks.create_task(reader.run(), name=f"notices[{self.name}]")
            self.tasks.create_task(reports.run(), name=f"reports[{self.name}]")
            started.set()
            await asyncio.Event().wait()

    def link(self, device_id: str) -> SimulatedLink:
        """Return the session of a device."""
        link = self._links.get(device_id)
        if link is None:
            link = self._links[device_id] = SimulatedLink(self._network, self.name, device_id)
        return link

    def lose_connections(self) -> None:
        """End all sessions, as when the process ends."""
        for link in self._links.values():
            link.cut()

    def is_open(self, device_id: str) -> bool:
        """Return whether it holds a connection for a device."""
        return self.link(device_id).is_open

    def has_cached(self, device_id: str) -> bool:
        """Return whether a device is loaded."""
        known = self.devices.known(device_id)
        return known is not None and known.stored is not None

    async def _warm_up(self) -> None:
        network = self._network
        for device, twin in network.twins.items():
            state = network.scenario.states.get((self.name, device))
            self.link(device).is_open = state is not None and state.connection == "open"
            if state is not None and not state.cached:
                continue
            session = (
                twin.session
                if state is None
                else replace(
                    twin.session,
                    f_cnt_up=state.f_cnt_up,
                    session=twin.session.session if state.session is None else state.session,
                )
            )
            await self.devices.adopt(replace(twin, session=session))
