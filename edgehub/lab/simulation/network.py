"""What a simulation puts in the place of network and storage.

Owns the links, the way to the coordinator, and the twins. These take time, break and write down
what happened; they decide nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from edgehub.devices.affinity.coordinator import Coordinator, Notice
from edgehub.devices.affinity.in_process import InProcessCoordinator
from edgehub.devices.faults import CoordinatorUnreachableError, DeviceUnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.clock import ManualClock
    from edgehub.devices.affinity.coordinator import (
        DownlinkClaim,
        ElectedFrame,
        ElectionRequest,
        ElectionResult,
        JoinClaim,
        NoticeBatch,
    )
    from edgehub.devices.affinity.in_process import Record
    from edgehub.devices.source import SessionState, StoredDevice
    from edgehub.lab.simulation.form import Scenario


class SimulatedCoordinator(Coordinator, Protocol):
    """A coordinator whose memory a scenario begins with, looks at and lets expire."""

    def record(self, device_id: str, f_cnt: int | None, owner: str, *, generation: int) -> object:
        """Record a device; no hub is notified."""

    def known(self, device_id: str) -> Record | None:
        """Return what is known of a device, None = nothing."""

    def forget(self, device_id: str) -> None:
        """Forget a device, as if it had never been heard."""

    def position(self, hub_id: str) -> str:
        """Return the newest place in a hub's stream."""


Notify = Callable[[str, Notice], None]
MakeCoordinator = Callable[["ManualClock", Notify], SimulatedCoordinator]


def in_process(clock: ManualClock, notify: Notify) -> SimulatedCoordinator:
    """Make the coordinator of a simulation."""
    return InProcessCoordinator(clock, incarnation="simulated", notified=notify)


class Network:
    """The world between the hubs: one coordinator, the twins, and a log of what was seen."""

    def __init__(
        self, clock: ManualClock, scenario: Scenario, make_coordinator: MakeCoordinator
    ) -> None:
        self.clock = clock
        self.scenario = scenario
        self.started_ms = clock.boottime_ms()
        self.coordinator = make_coordinator(clock, self._notified)
        self.is_coordinator_down = False
        self.busy_until_ms: dict[str, int] = {}
        self.unreachable: set[str] = set()
        self.down: set[str] = set()
        self.twins: dict[str, StoredDevice] = {}
        self.connection_log: list[dict[str, Any]] = []
        self.notifications: list[dict[str, Any]] = []
        self.changed = asyncio.Event()

    def now_ms(self) -> int:
        """Return the milliseconds since the start of the scenario."""
        return self.clock.boottime_ms() - self.started_ms

    def address_of(self, device: str) -> str:
        """Return the address under which a device sends: its own name, or that of all."""
        scenario = self.scenario
        shares = scenario.same_address and device in scenario.devices
        return scenario.devices[0] if shares else device

    def log_connection(self, gateway: str, device: str, action: str) -> None:
        """Write down that a connection was opened or closed."""
        entry = {"t_ms": self.now_ms(), "gateway": gateway, "action": action}
        if len(self.scenario.devices) > 1:
            entry["device"] = device
        self.connection_log.append(entry)

    def change(self) -> None:
        """Notify all that wait for another state of the network."""
        self.changed.set()
        self.changed = asyncio.Event()

    def takes_notices(self, gateway: str) -> bool:
        """Return whether a notice to a gateway arrives now."""
        is_there = gateway in self.scenario.gateways and gateway not in self.down
        return is_there and gateway not in self.unreachable and not self.is_coordinator_down

    async def spend(self, milliseconds: int) -> None:
        """Wait, without giving way for 0."""
        if milliseconds > 0:
            await self.clock.sleep(milliseconds / 1000)

    def _notified(self, gateway: str, _notice: Notice) -> None:
        now, arrives = self.now_ms(), self.takes_notices(gateway)
        entry = {"t_ms": now, "to": gateway, "delivered": arrives}
        if arrives:
            entry["delivered_at_ms"] = now + self.scenario.notify_latency_ms
        self.notifications.append(entry)


class SimulatedLink:
    """A device's session as one gateway holds it; implements `DeviceLink`."""

    def __init__(self, network: Network, gateway: str, device: str) -> None:
        self._network = network
        self._gateway = gateway
        self._device = device
        self.is_open = False

    async def open(self) -> None:
        """Open the session."""
        self.is_open = True
        self._network.log_connection(self._gateway, self._device, "open")

    async def close(self) -> None:
        """Close the session."""
        self.cut()

    def cut(self) -> None:
        """End it at once, as when the gateway's process ends."""
        if self.is_open:
            self.is_open = False
            self._network.log_connection(self._gateway, self._device, "close")


class SimulatedTwins:
    """The twins as one gateway reads them; implements `DeviceSource`."""

    needs_connection = True

    def __init__(self, network: Network, gateway: str) -> None:
        self._network = network
        self._gateway = gateway

    async def devices_at(self, address: str) -> Sequence[str]:
        """Return the devices of an address."""
        devices = self._network.scenario.devices
        return tuple(device for device in devices if self._network.address_of(device) == address)

    async def gateway_of(self, device_id: str) -> str | None:
        """Return the only gateway of a device, None = any."""
        stored = self._network.twins.get(device_id)
        return None if stored is None else stored.profile.gateway_id

    async def load(self, device_id: str) -> StoredDevice:
        """Return a device; takes the time that the scenario states."""
        state = self._network.scenario.states.get((self._gateway, device_id))
        await self._network.spend(0 if state is None else state.load_ms)
        if device_id not in self._network.twins:
            raise DeviceUnknownError(device_id, "the scenario has no such device")
        return self._network.twins[device_id]

    async def save(self, device_id: str, session: SessionState) -> None:
        """Store the session of a device."""
        twins = self._network.twins
        twins[device_id] = replace(twins[device_id], session=session)


class SimulatedPath:
    """The way to the coordinator; implements `Coordinator`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def elect(self, ballot: ElectionRequest) -> ElectionResult:
        """Elect a gateway; takes the time that the scenario states."""
        await self._reach(ballot.device_id)
        return await self._network.coordinator.elect(ballot)

    async def owner_of(self, device_id: str) -> str:
        """Return the owner, likewise."""
        await self._reach(device_id)
        return await self._network.coordinator.owner_of(device_id)

    async def take_over(self, frame: ElectedFrame, hub_id: str) -> ElectionResult:
        """Ask for an open frame, likewise."""
        await self._reach(frame.device_id)
        return await self._network.coordinator.take_over(frame, hub_id)

    async def report_stored(self, hub_id: str, frames: Sequence[ElectedFrame]) -> None:
        """Report stored frames, likewise."""
        await self._reach(frames[0].device_id)
        await self._network.coordinator.report_stored(hub_id, frames)

    async def claim_join(self, claim: JoinClaim) -> bool:
        """Claim a join, likewise."""
        await self._reach(claim.device_id)
        return await self._network.coordinator.claim_join(claim)

    async def finish_join(self, claim: JoinClaim, *, generation: int | None) -> None:
        """Finish a join, likewise."""
        await self._reach(claim.device_id)
        await self._network.coordinator.finish_join(claim, generation=generation)

    async def grant_downlink(self, claim: DownlinkClaim) -> int | None:
        """Grant a downlink, likewise."""
        await self._reach(claim.device_id)
        return await self._network.coordinator.grant_downlink(claim)

    async def notices(self, hub_id: str, after: str, *, wait: bool = True) -> NoticeBatch:
        """Return notices once they can arrive."""
        network = self._network
        batch = await network.coordinator.notices(hub_id, after, wait=wait)
        await network.spend(network.scenario.notify_latency_ms)
        while not network.takes_notices(hub_id):
            await network.changed.wait()
        return batch

    async def _reach(self, device_id: str) -> None:
        network = self._network
        await network.spend(network.scenario.config.coordinator_ms)
        await network.spend(network.busy_until_ms.get(device_id, 0) - network.now_ms())
        if network.is_coordinator_down:
            raise CoordinatorUnreachableError(device_id, "the coordinator is out of reach")
