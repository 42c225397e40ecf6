"""Registration of LoRaWAN devices: what is written of one into the registry.

Owns nothing. Invariant: a device that is registered again keeps its number of joins and its nonces,
as it remembers them too; one that is written as it is registered keeps its session.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from msgspec.structs import replace

from edgehub.devices.faults import DeviceUnknownError
from edgehub.devices.source import GAP_MAX, RADIO_ADDRESS, Activation, SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.devices.devices import Devices
    from edgehub.devices.source import DeviceProfile, DeviceRegistry, StoredDevice
    from edgehub.lora.device import DeviceDescription


class LorawanRegistration:
    """Registers LoRaWAN devices.

    Args:
        registry: Where they are listed.
        devices: Those in memory.
        common: What a description does not say.
    """

    def __init__(self, registry: DeviceRegistry, devices: Devices, common: DeviceProfile) -> None:
        self._registry = registry
        self._devices = devices
        self._common = common

    async def find(self, dev_eui: str) -> StoredDevice | None:
        """Return a registered LoRaWAN device, None = it is none.

        Raises:
            DeviceSourceError: The registry cannot be read now.
        """
        try:
            stored = await self._registry.load(dev_eui)
        except DeviceUnknownError:
            return None
        return None if stored.profile.lora is None else stored

    async def write(self, description: DeviceDescription) -> None:
        """Register a device, or change one that is registered; it joins again.

        Raises:
            DeviceError: The registry cannot be written now.
        """
        dev_eui, registry = description.dev_eui, self._registry

        async def write() -> None:
            stored = await self.find(dev_eui)
            known = SessionState() if stored is None else self.newest(stored).session
            await registry.put(self._profile(description))
            session = SessionState(generation=known.generation, dev_nonces=known.dev_nonces)
            if description.session is not None:
                session = replace(
                    session,
                    session=secrets.token_hex(8),
                    address=RADIO_ADDRESS + description.dev_addr,
                    f_cnt_up=description.f_cnt_up,
                    lora=description.session,
                )
            await registry.save(dev_eui, session)

        await self._devices.rewrite(dev_eui, write)

    async def take(self, descriptions: Iterable[DeviceDescription]) -> int:
        """Register devices that are not registered as they are described; returns how many.

        Raises:
            DeviceError: The registry cannot be read or written now.
        """
        written = 0
        for description in descriptions:
            stored = await self.find(description.dev_eui)
            if stored is None or not self._is_as(stored, description):
                await self.write(description)
                written += 1
        return written

    def newest(self, stored: StoredDevice) -> StoredDevice:
        """Return a device with the counters of its session in memory, which are newer."""
        device = self._devices.known(stored.profile.device_id)
        if device is None or device.stored is None:
            return stored
        in_memory = device.stored.session
        if in_memory.session != stored.session.session:
            return stored
        return replace(stored, session=in_memory)

    def _profile(self, description: DeviceDescription) -> DeviceProfile:
        profile = description.profile
        return replace(
            self._common,
            device_id=description.dev_eui,
            activation=Activation.OTAA if description.joins else Activation.ABP,
            relaxed_counters=description.relaxed_counters and not description.joins,
            gap_max=GAP_MAX if profile.mac_version.limits_gap else None,
            lora=profile,
        )

    def _is_as(self, stored: StoredDevice, description: DeviceDescription) -> bool:
        wanted, profile = self._profile(description), stored.profile
        if (profile.activation, profile.relaxed_counters, profile.lora) != (
            wanted.activation,
            wanted.relaxed_counters,
            wanted.lora,
        ):
            return False
        if description.session is None:
            return True
        lora = stored.session.lora
        return (
            lora is not None
            and stored.session.address == RADIO_ADDRESS + description.dev_addr
            and lora.s_nwk_s_int_key == description.session.s_nwk_s_int_key
            and lora.app_s_key == description.session.app_s_key
        )
