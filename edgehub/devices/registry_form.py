"""A device as its source writes it down: JSON; registries leave out members at their default.

Pure functions. Invariant: what was written is read back the same; a document of a newer program, or
a damaged one, is an error and never half a device.
"""

from __future__ import annotations

import orjson
from msgspec import convert, to_builtins

from edgehub.devices.faults import DeviceSourceError
from edgehub.devices.source import DeviceProfile, SessionState, StoredDevice
from edgehub.errors import ConfigError


def write_profile(profile: DeviceProfile) -> str:
    """Write a profile without its id."""
    document = to_builtins(profile)
    del document["device_id"]
    return orjson.dumps(document).decode()


def write_session(session: SessionState) -> str:
    """Write a session."""
    return orjson.dumps(to_builtins(session)).decode()


def read_device(device_id: str, profile: str | bytes, session: str | bytes) -> StoredDevice:
    """Read a device.

    Raises:
        DeviceSourceError: It is no such document.
    """
    try:
        documents = orjson.loads(profile), orjson.loads(session)
    except ValueError as exc:
        raise DeviceSourceError(device_id, f"its document cannot be read: {exc}") from exc
    return StoredDevice(
        profile=read_profile(device_id, documents[0], DeviceProfile(device_id=device_id)),
        session=read_session(device_id, documents[1]),
    )


def read_profile(device_id: str, document: object, common: DeviceProfile) -> DeviceProfile:
    """Read a profile; what the document leaves out is as in `common`.

    Raises:
        DeviceSourceError: It is no such document.
    """
    try:
        return convert(to_builtins(common) | convert(document, dict[str, object]), DeviceProfile)
    except (ValueError, ConfigError) as exc:
        raise DeviceSourceError(device_id, f"its settings cannot be read: {exc}") from exc


def read_session(device_id: str, document: object) -> SessionState:
    """Read a session.

    Raises:
        DeviceSourceError: It is no such document.
    """
    try:
        return convert(document, SessionState)
    except ValueError as exc:
        raise DeviceSourceError(device_id, f"its session cannot be read: {exc}") from exc
