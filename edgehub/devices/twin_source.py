"""Devices kept in their twins upstream: settings come as desired, the session is reported.

Owns the form inside a twin: the member `edgehub` of either side. Each call goes over the device's
own connection, which its caller has opened. A twin without that member is a device with the profile
of the settings. Nothing but its id leads to a device: twins cannot be searched from here.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.registry_form import read_profile, read_session
from edgehub.devices.source import StoredDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.devices.source import DeviceProfile, SessionState

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
    """

    needs_connection = True

    def __init__(self, access: TwinAccess, *, common: DeviceProfile) -> None:
        self._access = access
        self._common = common

    async def devices_at(self, address: str) -> Sequence[str]:
        """Return the ids of all devices with a DevAddr (or of the one device with that id)."""
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
        return StoredDevice(
            profile=read_profile(device_id, desired, replace(self._common, device_id=device_id)),
            session=read_session(device_id, reported),
        )

    async def save(self, device_id: str, session: SessionState) -> None:
        """Keep the new state of a device."""
        # A patch is merged, so every member is written, also one that has its first value again.
        status = await self._access.report(device_id, orjson.dumps({MEMBER: asdict(session)}))
        if status == _UNKNOWN:
            raise DeviceUnknownError(device_id, "it has no twin upstream")
        if status not in _REPORTED:
            raise DeviceSourceError(device_id, f"what it reports is refused with status {status}")


def _sides(device_id: str, text: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        twin = orjson.loads(text)
    except ValueError as exc:
        raise DeviceSourceError(device_id, f"its twin is no JSON: {exc}") from exc
    sides = []
    for name in ("desired", "reported"):
        side = twin.get(name, {}) if isinstance(twin, dict) else None
        member = side.get(MEMBER, {}) if isinstance(side, dict) else None
        if not isinstance(member, dict):
            raise DeviceSourceError(device_id, f"its twin has no object `{name}.{MEMBER}`")
        sides.append(member)
    return sides[0], sides[1]
