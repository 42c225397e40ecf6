"""The registry of devices that several hubs share, in Redis.

Owns the names of the keys; `registry.lua` changes a device and its address in one step. As with the
hub's own registry, a device without an entry has the profile of the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.registry_form import read_device, write_profile, write_session
from edgehub.devices.source import RADIO_ADDRESS
from edgehub.redis_link.faults import RedisError
from edgehub.redis_link.script import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgehub.devices.source import DeviceProfile, SessionState, StoredDevice
    from edgehub.redis_link.link import RedisLink


class RedisRegistry:
    """The registry in Redis; implements `DeviceRegistry`.

    Args:
        link: The way to Redis.
        prefix: Of all keys; hubs with the same one share their devices.
        common: Profile of a device without an entry, None = such a device is unknown.
    """

    needs_connection = False

    def __init__(
        self, link: RedisLink, *, prefix: str, common: DeviceProfile | None = None
    ) -> None:
        self._link = link
        self._prefix = f"{{{prefix}}}:devices:"
        self._common = common
        self._script = Script.of("edgehub.devices", "registry.lua")

    async def devices_at(self, address: str) -> Sequence[str]:
        """Return the ids of all devices with a DevAddr (or of the one device with that id)."""
        found, is_id = await self._calls(
            address, ("SMEMBERS", f"{self._prefix}at:{address}"), ("EXISTS", self._key(address))
        )
        names = {name.decode("utf-8", "replace") for name in found} | (
            {address} if is_id else set()
        )
        if not names and self._common is not None and not address.startswith(RADIO_ADDRESS):
            return (address,)
        return tuple(sorted(names))

    async def gateway_of(self, device_id: str) -> str | None:
        """Return the only gateway of a device without use of its connection; None = any."""
        try:
            return (await self.load(device_id)).profile.gateway_id
        except DeviceUnknownError:
            return None

    async def load(self, device_id: str) -> StoredDevice:
        """Read a device."""
        (row,) = await self._calls(device_id, ("HMGET", self._key(device_id), "profile", "session"))
        return self._stored(device_id, *row)

    async def save(self, device_id: str, session: SessionState) -> None:
        """Keep the new state of a device."""
        may_make = int(self._common is not None)
        text = write_session(session)
        if not await self._run("save", device_id, session.address, text, may_make):
            raise DeviceUnknownError(device_id, "the registry does not know it")

    async def put(self, profile: DeviceProfile) -> None:
        """Write a profile down; the session stays."""
        await self._run("put", profile.device_id, write_profile(profile))

    async def remove(self, device_id: str) -> bool:
        """Forget a device, profile and session; False = there was none."""
        return bool(await self._run("remove", device_id))

    async def page(self, after: str, limit: int) -> list[StoredDevice]:
        """Read devices with an id above `after`, in the order of their ids."""
        start = f"({after}" if after else "-"
        (names,) = await self._calls(
            after, ("ZRANGEBYLEX", f"{self._prefix}names", start, "+", "LIMIT", 0, limit)
        )
        ids = [name.decode("utf-8", "replace") for name in names]
        if not ids:
            return []
        rows = await self._calls(
            after, *(("HMGET", self._key(name), "profile", "session") for name in ids)
        )
        return [self._stored(name, *row) for name, row in zip(ids, rows, strict=True)]

    def _stored(self, device_id: str, profile: bytes | None, session: bytes | None) -> StoredDevice:
        if profile is None and session is None and self._common is None:
            raise DeviceUnknownError(device_id, "the registry does not know it")
        stored = read_device(device_id, profile or b"{}", session or b"{}")
        if profile is None and self._common is not None:
            return replace(stored, profile=replace(self._common, device_id=device_id))
        return stored

    def _key(self, device_id: str) -> str:
        return f"{self._prefix}id:{device_id}"

    async def _run(self, operation: str, device_id: str, *arguments: str | int) -> Any:
        try:
            return await self._link.run(
                self._script,
                [self._key(device_id), f"{self._prefix}names"],
                [operation, f"{self._prefix}at:", device_id, *arguments],
            )
        except RedisError as exc:
            raise DeviceSourceError(device_id, exc.reason) from exc

    async def _calls(self, device_id: str, *commands: tuple[str | int, ...]) -> list[Any]:
        try:
            return await self._link.calls(commands)
        except RedisError as exc:
            raise DeviceSourceError(device_id, exc.reason) from exc
