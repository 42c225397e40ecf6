"""All devices of a hub that are in memory, and the dispatch of frames to them.

Owns the objects: one per device id, from the moment its loading starts. Invariants: at most
`devices_max` are in memory, and only idle ones leave; what leaves has its connection closed; a
device that cannot be loaded takes no place; frames of one address reach the queues of
their devices in the order in which they came, also while devices are loaded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from edgehub.devices.affinity.data import process_data
from edgehub.devices.affinity.flags import Cause, Ownership
from edgehub.devices.affinity.join import process_join
from edgehub.devices.affinity.outcome import FrameOutcome, Reason, Result
from edgehub.devices.device import Device
from edgehub.devices.faults import DeviceError, TooManyDevicesError
from edgehub.devices.request_queue import DeviceRequestQueue, RequestKind
from edgehub.devices.request_queues import RequestQueues

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from edgehub.devices.affinity.data import Handle, Uplink
    from edgehub.devices.affinity.join import Accept, JoinRequest
    from edgehub.devices.device import DeviceDependencies
    from edgehub.devices.source import SessionState, StoredDevice

T = TypeVar("T")

DEVICES_MAX: Final = 10_000
LOADS_MAX: Final = 3
"""Loads for one frame, if others make a device be read again as soon as it was read."""

MAINTENANCE_S: Final = 600.0
REFRESH_S: Final = 2 * 86_400.0
UNSEEN_S: Final = 10 * 86_400.0
REPETITION: Final = "repetition"


class DevicesStatistics(Struct, frozen=True, kw_only=True):
    """The devices of a hub at one moment.

    Attributes:
        devices: In memory.
        busy: With an operation that runs.
        waiting: Operations that wait for their turn.
        open_connections: Devices whose own connection is open.
        searches: Addresses whose device is being looked for.
        frames: Data frames by what became of them: reason of a refusal or failure, else result;
            quiet repetitions by a device of what it sent a moment ago are counted apart.
    """

    devices: int
    busy: int
    waiting: int
    open_connections: int
    searches: int
    frames: dict[str, int]


class _Search(Struct, eq=False):
    """Frames of one address that wait for the search for their device.

    One search that failed fails all frames that waited for it: else each frame would wait
    for a source that is unreachable.
    """

    queue: DeviceRequestQueue
    arrived: int = 0
    failed: int = 0
    error: DeviceError | None = None


class Devices:
    """The devices in memory.

    Args:
        shared: What all devices share.
        devices_max: How many may be in memory.

    Attributes:
        queues: The request queues, those of devices that are not in memory included.
    """

    def __init__(self, shared: DeviceDependencies, *, devices_max: int = DEVICES_MAX) -> None:
        self._shared = shared
        self._devices_max = devices_max
        self.queues = RequestQueues(shared.clock, queues_max=devices_max)
        self._devices: OrderedDict[str, Device] = OrderedDict()
        self._searches: dict[str, _Search] = {}
        self._frames: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._devices)

    def statistics(self) -> DevicesStatistics:
        """Return what is in memory now."""
        queues = [device.queue.statistics() for device in self._devices.values()]
        return DevicesStatistics(
            devices=len(queues),
            busy=sum(queue.running is not None for queue in queues),
            waiting=sum(len(queue.waiting) for queue in queues),
            open_connections=sum(device.connection.is_open for device in self._devices.values()),
            searches=len(self._searches),
            frames=dict(self._frames),
        )

    def known(self, device_id: str) -> Device | None:
        """Return a device that is in memory, None = it is not."""
        return self._devices.get(device_id)

    async def get(self, device_id: str) -> Device:
        """Return the one object of a device, created if need be; nothing is loaded.

        Raises:
            TooManyDevicesError: All that are in memory are busy.
        """
        while device_id not in self._devices and len(self._devices) >= self._devices_max:
            await self._make_room(device_id)
        device = self._devices.get(device_id)
        if device is None:
            queue = self.queues.of(device_id)
            queue.held = True
            device = self._devices[device_id] = Device(device_id, self._shared, queue)
        device.seen_s = self._shared.clock.monotonic()
        self._devices.move_to_end(device_id)
        return device

    def all(self) -> list[Device]:
        """Return the devices in memory, the one that has been silent longest first."""
        return list(self._devices.values())

    async def end(self) -> None:
        """Close all connections; for the end of the hub, when nothing uses them any more."""
        for device in list(self._devices.values()):
            device.connection.end()
        for device in list(self._devices.values()):
            await device.connection.settled()

    async def adopt(self, stored: StoredDevice) -> Device:
        """Add a device whose state is known already, as after a restart with a warm cache.

        Raises:
            TooManyDevicesError: All that are in memory are busy.
        """
        device = await self.get(stored.profile.device_id)
        device.adopt(stored)
        return device

    async def data(self, uplink: Uplink, handle: Handle) -> FrameOutcome:
        """Process a data frame of a device, after loading all that share its address if needed.

        Raises:
            DeviceError: It failed; see `process_data`.
        """
        try:
            outcome = await self._data(uplink, handle)
        except DeviceError as exc:
            self._frames[exc.reason] += 1
            raise
        is_repetition = outcome.repeated and outcome.result is Result.REJECTED
        self._frames[REPETITION if is_repetition else outcome.reason or outcome.result] += 1
        return outcome

    def count_failed(self, error: DeviceError, frames: int) -> None:
        """Count frames that failed because of another one, without being tried."""
        self._frames[error.reason] += frames

    async def join(self, request: JoinRequest, accept: Accept) -> FrameOutcome:
        """Process a join request of a device.

        Raises:
            DeviceError: It failed; see `process_join`.
        """
        async with self._using(request.device_id) as device:
            return await process_join(device, request, accept)

    async def downlink(self, device_id: str, send: Callable[[], Awaitable[None]]) -> bool:
        """Send a message to a device; False = another hub owns it, nothing is loaded.

        Raises:
            DeviceError: It could not be sent.
        """
        if self._shared.flags.of(device_id) is not Ownership.OWNER:
            return False
        async with self._using(device_id) as device:
            return await device.downlink(send)

    async def refresh(self, device_id: str) -> bool:
        """Read a device in memory again; False = it is not there, or another hub owns it.

        Raises:
            DeviceError: It could not be read.
        """
        device = self._devices.get(device_id)
        return device is not None and await device.refresh()

    async def settings_changed(self, device_id: str) -> None:
        """Reload the settings of a device, if it is in memory.

        Raises:
            DeviceError: They could not be read.
        """
        if device := self._devices.get(device_id):
            await device.take_over_settings()

    async def forgotten(self, device_id: str) -> None:
        """Reset the counters of a device that its source has removed.

        Raises:
            DeviceError: There is no turn for it, or they cannot be written now.
        """
        if self._shared.frames is not None:
            await self._shared.frames.forget(device_id)
        if device := self._devices.get(device_id):
            await device.start_over()

    async def rewrite(self, device_id: str, write: Callable[[], Awaitable[T]]) -> T:
        """Change what its source has of a device for an operator, in its turn.

        It is read again before its next frame.

        Raises:
            DeviceError: It could not be written.
        """
        async with self._using(device_id) as device:

            async def run() -> T:
                written = await write()
                device.stored = None
                return written

            return await device.queue.run(RequestKind.REFRESH, run)

    async def read(self, device_id: str, *, again: bool = True) -> None:
        """Read a device now, in its turn; without `again` only one that is not loaded.

        Raises:
            DeviceError: It could not be read.
        """
        async with self._using(device_id) as device:
            await device.queue.run(RequestKind.LOAD, device.load if again else device.ensure_loaded)

    async def change_session(
        self, device_id: str, change: Callable[[SessionState], SessionState]
    ) -> SessionState:
        """Change the session of a device for an operator, in its turn; returns what it was.

        Raises:
            DeviceError: It could not be read or written.
        """
        async with self._using(device_id) as device:
            return await device.queue.run(
                RequestKind.REFRESH, lambda: device.change_session(change)
            )

    async def close(self, device_id: str) -> None:
        """Drop a device at the request of another hub or an operator; nothing is loaded for it.

        Raises:
            DeviceQueueFullError: The close will happen, but there is no turn to wait for it.
        """
        self._shared.flags.set(device_id, Ownership.LOSER, cause=Cause.CLOSED)
        if device := self._devices.get(device_id):
            await device.close()

    def release(self, device_id: str) -> None:
        """Close a device's connection as soon as it is unused; does not wait."""
        if device := self._devices.get(device_id):
            device.connection.request_close()

    async def run(self) -> None:
        """Refresh old devices and remove silent ones, until cancelled."""
        while True:
            await self._shared.clock.sleep(MAINTENANCE_S)
            await self.maintain()

    async def maintain(self) -> None:
        """Refresh devices that were read long ago, remove those that have been silent for long."""
        now = self._shared.clock.monotonic()
        for device in list(self._devices.values()):
            if now - device.seen_s >= UNSEEN_S and device.is_idle:
                await self._remove(device)
            elif device.stored is not None and device.loaded_age_s() >= REFRESH_S:
                try:
                    await device.refresh()
                except DeviceError:
                    continue  # what is known stays in force, and it is tried again at the next look

    @asynccontextmanager
    async def _using(self, device_id: str) -> AsyncIterator[Device]:
        """Return a device for the length of the block; one that is unknown after it is dropped."""
        device = await self.get(device_id)
        try:
            yield device
        finally:
            self._drop_if_unknown(device)

    async def _data(self, uplink: Uplink, handle: Handle) -> FrameOutcome:
        address = uplink.address
        search = self._searches.get(address)
        if search is None:
            queue = DeviceRequestQueue(address, self._shared.clock)
            search = self._searches[address] = _Search(queue)
        search.arrived += 1
        number = search.arrived
        try:
            found = await search.queue.run(
                RequestKind.LOAD, lambda: self._find(uplink, search, number)
            )
        finally:
            if search.queue.is_idle:
                self._searches.pop(address, None)
        if isinstance(found, Reason):
            return FrameOutcome(device_id=None, result=Result.REJECTED, reason=found)
        device, waited = found
        # Nothing else has run since its search ended, so it is next in the device's queue.
        return await process_data(device, uplink, handle, waited=waited)

    async def _make_room(self, device_id: str) -> None:
        for device in list(self._devices.values()):
            if device.is_idle and await self._remove(device):
                return
        raise TooManyDevicesError(device_id, f"all {len(self._devices)} devices in memory are busy")

    async def _remove(self, device: Device) -> bool:
        # It keeps its place until its connection is closed, so that no other object opens a second.
        if device.connection.is_open:
            await device.close()
        if not device.is_idle or device.connection.is_open:
            return False
        self._forget(device)
        return True

    def _drop_if_unknown(self, device: Device) -> None:
        # It could not be loaded; one with waiting requests keeps its place.
        if not device.is_known and device.is_idle and not device.connection.is_open:
            self._forget(device)

    def _forget(self, device: Device) -> None:
        if self._devices.pop(device.device_id, None) is not None:
            device.queue.held = False

    async def _find(
        self, uplink: Uplink, search: _Search, number: int
    ) -> tuple[Device, bool] | Reason:
        """Find the device of a frame; and whether this hub has waited as a loser for it."""
        if search.error is not None and number <= search.failed:
            raise search.error
        source, own = self._shared.source, (None, self._shared.hub_id)
        try:
            named = await source.devices_at(uplink.address)
            if device := self._fitting(named, uplink):
                return device, False
            # Those of other gateways alone are not loaded: that could take their sessions.
            ids = [each for each in named if await source.gateway_of(each) in own]
        except DeviceError as exc:
            search.error, search.failed = exc, search.arrived
            raise
        if not ids:
            return Reason.BELONGS_TO_ANOTHER_GATEWAY if named else Reason.NO_DEVICE_BY_ADDRESS
        waited: set[str] = set()
        for _ in range(LOADS_MAX):
            try:
                waited |= await self._load(ids, uplink)
            except DeviceError as exc:
                search.error, search.failed = exc, search.arrived
                raise
            if device := self._fitting(ids, uplink):
                return device, device.device_id in waited
            if all(device is None or device.stored for device in map(self._devices.get, ids)):
                break  # else a device has to be read again just after it was read
        return Reason.NO_DEVICE_BY_MIC

    def _fitting(self, ids: Sequence[str], uplink: Uplink) -> Device | None:
        for device_id in ids:
            device = self._devices.get(device_id)
            if device is not None and device.stored is not None and uplink.fits(device.stored):
                device.seen_s = self._shared.clock.monotonic()
                self._devices.move_to_end(device_id)
                return device
        return None

    async def _load(self, ids: Sequence[str], uplink: Uplink) -> set[str]:
        """Load all devices of an address concurrently; return those that this hub waited for."""
        devices = [await self.get(device_id) for device_id in ids]
        waited: set[str] = set()
        errors: list[DeviceError] = []

        async def load(device: Device) -> None:
            try:
                if await device.queue.run(
                    RequestKind.LOAD, lambda: device.ensure_loaded(uplink.fits, uplink.address)
                ):
                    waited.add(device.device_id)
            except DeviceError as exc:
                errors.append(exc)
            finally:
                self._drop_if_unknown(device)

        async with asyncio.TaskGroup() as tasks:
            for device in devices:
                tasks.create_task(load(device), name=f"load[{device.device_id}]")
        if errors and self._fitting(ids, uplink) is None:
            raise errors[0]  # the frame may be that device's
        return waited
