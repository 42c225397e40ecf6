"""A registry of devices in memory, which implements `DeviceSource`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from edgehub.devices.faults import DeviceUnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.devices.source import SessionState, StoredDevice


class InProcessRegistry:
    """Devices by id and address."""

    def __init__(self) -> None:
        self._devices: dict[str, StoredDevice] = {}
        self._addresses: dict[str, dict[str, None]] = {}

    needs_connection = False

    def put(self, device: StoredDevice) -> None:
        """Take in a device, or replace it; it is found by its id and by its session's address."""
        device_id = device.profile.device_id
        before = self._devices.get(device_id)
        if before is not None and before.session.address != device.session.address:
            found = self._addresses.get(before.session.address, {})
            found.pop(device_id, None)
            if not found:
                self._addresses.pop(before.session.address, None)
        self._devices[device_id] = device
        for key in (device_id, device.session.address):
            if key:
                self._addresses.setdefault(key, {})[device_id] = None

    async def devices_at(self, address: str) -> Sequence[str]:
        """See `DeviceSource`."""
        return tuple(self._addresses.get(address, ()))

    async def gateway_of(self, device_id: str) -> str | None:
        """See `DeviceSource`."""
        try:
            return (await self.load(device_id)).profile.gateway_id
        except DeviceUnknownError:
            return None

    async def load(self, device_id: str) -> StoredDevice:
        """See `DeviceSource`."""
        return self._known(device_id)

    async def save(self, device_id: str, session: SessionState) -> None:
        """See `DeviceSource`."""
        self.put(replace(self._known(device_id), session=session))

    def _known(self, device_id: str) -> StoredDevice:
        device = self._devices.get(device_id)
        if device is None:
            raise DeviceUnknownError(device_id, "the registry does not know it")
        return device
