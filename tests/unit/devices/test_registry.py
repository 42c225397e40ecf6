"""The registry of devices in memory."""

import pytest
from msgspec.structs import replace

from edgehub.devices.faults import DeviceUnknownError
from edgehub.devices.source import DeviceProfile, SessionState, StoredDevice
from tests.support.device_registry import InProcessRegistry


def a_device(device_id: str, address: str = "") -> StoredDevice:
    """Make a device."""
    return StoredDevice(
        profile=DeviceProfile(device_id=device_id), session=SessionState(address=address)
    )


async def test_devices_are_found_by_id_and_by_the_address_in_use():
    """Several may share an address; a join takes a device to another one."""
    registry = InProcessRegistry()
    for device_id in ("a", "b"):
        registry.put(a_device(device_id, "01"))
    assert list(await registry.devices_at("01")) == ["a", "b"]
    await registry.save("a", replace((await registry.load("a")).session, address="02"))
    assert list(await registry.devices_at("01")) == ["b"]
    assert list(await registry.devices_at("02")) == ["a"]
    assert list(await registry.devices_at("a")) == ["a"]
    assert list(await registry.devices_at("")) == []


async def test_a_device_that_is_not_registered_is_unknown():
    """It can be neither read nor written."""
    registry = InProcessRegistry()
    with pytest.raises(DeviceUnknownError):
        await registry.load("a")
    with pytest.raises(DeviceUnknownError):
        await registry.save("a", SessionState())
