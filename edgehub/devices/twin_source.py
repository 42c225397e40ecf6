"""Devices kept in their twins upstream: settings come as desired, the session is reported.

Owns the form inside a twin: the member `edgehub` of either side, and for LoRaWAN devices the names
of `twin_form`. Each call goes over the device's own connection, which its caller has opened. A twin
without that member is a device with the profile of the settings. Twins cannot be searched from
here, so LoRaWAN devices that were read are found by an index of their addresses, which has no keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
from msgspec import json
from msgspec.structs import asdict, replace

from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.registry_form import read_profile, read_session
from edgehub.devices.source import RADIO_ADDRESS, SessionState, StoredDevice
from edgehub.devices.twin_form import profile_of, read_desired, report_of, session_of
from edgehub.lora.device import LorawanProfile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.devices.source import DeviceProfile, DeviceRegistry

MEMBER: Final = "edgehub"

_READ: Final = 200
_REPORTED: Final = frozenset({200, 204})
_UNKNOWN: Final = 404


class TwinAccess(Protocol):
    """The way to the twin of a device, over its own open connection."""

    async def read(self, device_id: str) -> tuple[int, bytes]:
        """Return status (as in HTTP) and twin, JSON with `desired` and `reported`.

        Raises:
            DeviceSourceError: There is no answer.
        """

    async def report(self, device_id: str, patch: bytes) -> int:
        """Merge a JSON object into what the device reports; returns the status.

        Raises:
            DeviceSourceError: There is no answer.
        """


class TwinSource:
    """Devices in their twins; implements `DeviceSource`.

    Args:
        access: The way to the twins.
        common: What a twin does not say.
        index: Name, class and address of each LoRaWAN device that was read.
    """

    needs_connection = True

    def __init__(self, access: TwinAccess, *, common: DeviceProfile, index: DeviceRegistry) -> None:
        self._access = access
        self._common = common
        self._index = index

    async def devices_at(self, address: str) -> Sequence[str]:
        """Return the ids of all devices with a DevAddr (or of the one device with that id)."""
        if address.startswith(RADIO_ADDRESS):
            return await self._index.devices_at(address)
        return (address,)

    async def gateway_of(self, device_id: str) -> str | None:
        """Return None: the twin alone knows, and to read it takes a session."""
        del device_id
        return None

    async def load(self, device_id: str) -> StoredDevice:
        """Read a device."""
        status, text = await self._access.read(device_id)
        if status == _UNKNOWN:
            raise DeviceUnknownError(device_id, "it has no twin upstream")
        if status != _READ:
            raise DeviceSourceError(device_id, f"its twin is refused with status {status}")
        desired, reported = _sides(device_id, text)
        profile = read_profile(
            device_id, desired.get(MEMBER, {}), replace(self._common, device_id=device_id)
        )
        session = read_session(device_id, reported.get(MEMBER, {}))
        lorawan = read_desired(device_id, desired)
        if lorawan is None:
            return StoredDevice(profile=profile, session=session)
        stored = StoredDevice(
            profile=profile_of(lorawan, desired, profile),
            session=session_of(lorawan, reported, session),
        )
        await self._list(stored)
        return stored

    async def save(self, device_id: str, session: SessionState) -> None:
        """Keep the new state of a device."""
        if session.address.startswith(RADIO_ADDRESS):
            # Before it is reported: its frames begin as soon as it is answered.
            await self._index.save(device_id, SessionState(address=session.address))
        # A patch is merged, so every member is written, also one that has its first value again.
        patch = {MEMBER: asdict(session), **report_of(session)}
        status = await self._access.report(device_id, json.encode(patch))
        if status == _UNKNOWN:
            raise DeviceUnknownError(device_id, "it has no twin upstream")
        if status not in _REPORTED:
            raise DeviceSourceError(device_id, f"what it reports is refused with status {status}")

    async def _list(self, stored: StoredDevice) -> None:
        """Put a device on the index."""
        profile, lora = stored.profile, stored.profile.lora
        assert lora is not None, "it is a LoRaWAN device"
        listed = StoredDevice(
            profile=replace(
                self._common,
                device_id=profile.device_id,
                activation=profile.activation,
                lora=LorawanProfile(
                    name=lora.name, mac_version=lora.mac_version, device_class=lora.device_class
                ),
            ),
            session=SessionState(address=stored.session.address),
        )
        try:
            if await self._index.load(profile.device_id) == listed:
                return
        except DeviceUnknownError:
            pass  # it is new
        await self._index.put(listed.profile)
        await self._index.save(profile.device_id, listed.session)


def _sides(device_id: str, text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        twin = orjson.loads(text)
    except ValueError as exc:
        raise DeviceSourceError(device_id, f"its twin is no JSON: {exc}") from exc
    sides = []
    for name in ("desired", "reported"):
        side = twin.get(name, {}) if isinstance(twin, dict) else None
        if not isinstance(side, dict) or not isinstance(side.get(MEMBER, {}), dict):
            raise DeviceSourceError(device_id, f"its twin has no object `{name}.{MEMBER}`")
        sides.append(side)
    return sides[0], sides[1]
