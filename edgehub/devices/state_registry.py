"""The registry of devices of one hub, in its state file.

Owns the table `device`. A device without a row has the profile of the settings; it
gets one with the first session that is saved. Invariant: a change is on disk when its call
returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError, DeviceUnknownError
from edgehub.devices.registry_form import read_device, write_profile, write_session
from edgehub.devices.source import RADIO_ADDRESS, SessionState, StoredDevice
from edgehub.storage.state_file import StateError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from edgehub.devices.source import DeviceProfile
    from edgehub.storage.state_file import StateFile

    T = TypeVar("T")

SCRIPT: Final = """CREATE TABLE IF NOT EXISTS device (
  device_id TEXT PRIMARY KEY,
  address   TEXT NOT NULL,
  profile   TEXT NOT NULL,
  session   TEXT NOT NULL
) STRICT, WITHOUT ROWID

CREATE INDEX IF NOT EXISTS device_address ON device (address) WHERE address != ''"""
"""Profile and session are JSON; a profile of `null` = that of the settings."""

NONE: Final = "null"


class StateRegistry:
    """The registry in the state file; implements `DeviceRegistry`.

    Args:
        file: The open file, with the table of `SCRIPT`.
        common: Profile of a device without a row, None = such a device is unknown.
    """

    needs_connection = False

    def __init__(self, file: StateFile, *, common: DeviceProfile | None = None) -> None:
        self._file = file
        self._common = common

    async def devices_at(self, address: str) -> Sequence[str]:
        """Return the ids of all devices with a DevAddr (or of the one device with that id)."""
        found = await self._run(
            address,
            lambda connection: connection.execute(
                "SELECT device_id FROM device WHERE device_id = ?1 OR (address = ?1 AND ?1 != '')"
                " ORDER BY device_id",
                (address,),
            ).fetchall(),
        )
        if not found and self._common is not None and not address.startswith(RADIO_ADDRESS):
            return (address,)
        return tuple(device_id for (device_id,) in found)

    async def gateway_of(self, device_id: str) -> str | None:
        """Return the only gateway of a device without use of its connection; None = any."""
        try:
            return (await self.load(device_id)).profile.gateway_id
        except DeviceUnknownError:
            return None

    async def load(self, device_id: str) -> StoredDevice:
        """Read a device."""
        row = await self._run(device_id, lambda connection: _row(connection, device_id))
        return self._stored(device_id, row)

    async def save(self, device_id: str, session: SessionState) -> None:
        """Keep the new state of a device."""
        text, is_known = write_session(session), self._common is not None

        def write(connection: sqlite3.Connection) -> bool:
            if not is_known and _row(connection, device_id) is None:
                return False
            connection.execute(
                "INSERT INTO device (device_id, address, profile, session) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (device_id) DO UPDATE SET address = excluded.address,"
                " session = excluded.session",
                (device_id, session.address, NONE, text),
            )
            return True

        if not await self._run(device_id, write):
            raise DeviceUnknownError(device_id, "the registry does not know it")

    async def put(self, profile: DeviceProfile) -> None:
        """Write a profile down; the session stays."""
        device_id, text = profile.device_id, write_profile(profile)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO device (device_id, address, profile, session) VALUES (?, '', ?, '{}')"
                " ON CONFLICT (device_id) DO UPDATE SET profile = excluded.profile",
                (device_id, text),
            )

        await self._run(device_id, write)

    async def remove(self, device_id: str) -> bool:
        """Forget a device, profile and session; False = there was none."""

        def delete(connection: sqlite3.Connection) -> bool:
            return bool(
                connection.execute("DELETE FROM device WHERE device_id = ?", (device_id,)).rowcount
            )

        return await self._run(device_id, delete)

    async def page(self, after: str, limit: int) -> list[StoredDevice]:
        """Read devices with an id above `after`, in the order of their ids."""
        rows = await self._run(
            after,
            lambda connection: connection.execute(
                "SELECT device_id, profile, session FROM device WHERE device_id > ?"
                " ORDER BY device_id LIMIT ?",
                (after, limit),
            ).fetchall(),
        )
        return [self._stored(device_id, (profile, session)) for device_id, profile, session in rows]

    def _stored(self, device_id: str, row: tuple[str, str] | None) -> StoredDevice:
        common = self._common
        if row is None:
            if common is None:
                raise DeviceUnknownError(device_id, "the registry does not know it")
            return StoredDevice(profile=replace(common, device_id=device_id))
        profile, session = row
        if profile == NONE:
            stored = read_device(device_id, "{}", session)
            return (
                stored
                if common is None
                else replace(stored, profile=replace(common, device_id=device_id))
            )
        return read_device(device_id, profile, session)

    async def _run(self, device_id: str, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._file.run(job)
        except StateError as exc:
            raise DeviceSourceError(device_id, str(exc)) from exc


def _row(connection: sqlite3.Connection, device_id: str) -> tuple[str, str] | None:
    row: tuple[str, str] | None = connection.execute(
        "SELECT profile, session FROM device WHERE device_id = ?", (device_id,)
    ).fetchone()
    return row
