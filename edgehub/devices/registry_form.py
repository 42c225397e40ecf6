"""A device as its source writes it down: JSON; registries leave out members at their default.

Pure functions. Invariant: what was written is read back the same; a document of a newer program, or
a damaged one, is an error and never half a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import to_builtins
from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError
from edgehub.devices.source import (
    Activation,
    Deduplication,
    DeviceProfile,
    SessionState,
    StoredDevice,
)
from edgehub.errors import ConfigError
from edgehub.lora.device import DeviceClass, LorawanProfile, LorawanSession, MacVersion

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE_MAX: Final = 2**32 - 1
"""Largest of all counters, times and gaps."""

_PROFILE = to_builtins(DeviceProfile(device_id=""))
_SESSION = to_builtins(SessionState())


def write_profile(profile: DeviceProfile) -> str:
    """Write a profile without its id."""
    document = {
        name: value
        for name, value in to_builtins(profile).items()
        if name != "device_id" and value != _PROFILE[name]
    }
    return orjson.dumps(document).decode()


def write_session(session: SessionState) -> str:
    """Write a session."""
    document = {
        name: value for name, value in to_builtins(session).items() if value != _SESSION[name]
    }
    return orjson.dumps(document).decode()


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
        return replace(common, **_members(document, _PROFILE_FORMS))
    except (ValueError, TypeError, ConfigError) as exc:
        raise DeviceSourceError(device_id, f"its settings cannot be read: {exc}") from exc


def read_session(device_id: str, document: object) -> SessionState:
    """Read a session.

    Raises:
        DeviceSourceError: It is no such document.
    """
    try:
        return SessionState(**_members(document, _SESSION_FORMS))
    except (ValueError, TypeError) as exc:
        raise DeviceSourceError(device_id, f"its session cannot be read: {exc}") from exc


def _members(document: object, forms: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TypeError("want an object")
    if unknown := sorted(document.keys() - forms.keys()):
        raise ValueError(f"`{unknown[0]}` is unknown")
    members: dict[str, Any] = {}
    for name, value in document.items():
        try:
            members[name] = forms[name](value)
        except (ValueError, TypeError) as exc:
            raise ValueError(f"`{name}`: {exc}") from exc
    return members


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= WHOLE_MAX:
        raise TypeError(f"want a whole number up to {WHOLE_MAX}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("want text")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("want true or false")
    return value


def _wholes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError("want a list")
    return tuple(_whole(each) for each in value)


def _optional(form: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else form(value)


def _lorawan_profile(value: Any) -> LorawanProfile:
    return LorawanProfile(**_members(value, _LORAWAN_PROFILE_FORMS))


def _lorawan_session(value: Any) -> LorawanSession:
    return LorawanSession(**_members(value, _LORAWAN_SESSION_FORMS))


_LORAWAN_PROFILE_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": _text,
    "mac_version": MacVersion,
    "device_class": DeviceClass,
    "join_eui": _text,
    "app_key": _text,
    "nwk_key": _text,
    "decoder": _text,
}
_LORAWAN_SESSION_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "is_1_1": _flag,
    "f_nwk_s_int_key": _text,
    "s_nwk_s_int_key": _text,
    "nwk_s_enc_key": _text,
    "app_s_key": _text,
    "f_cnt_down": _whole,
    "confirmed_f_cnt_down": _whole,
    "station": _text,
    "tx_power": _whole,
    "nb_trans": _whole,
    "rx_delay": _whole,
    "rx1_dr_offset": _whole,
    "rx2_dr": _optional(_whole),
    "rx2_hz": _optional(_whole),
}
_PROFILE_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "deduplication": Deduplication,
    "gateway_id": _optional(_text),
    "keep_alive_s": _whole,
    "activation": Activation,
    "relaxed_counters": _flag,
    "gap_max": _optional(_whole),
    "lora": _optional(_lorawan_profile),
}
_SESSION_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "session": _text,
    "generation": _whole,
    "address": _text,
    "f_cnt_up": _whole,
    "dev_nonces": _wholes,
    "lora": _optional(_lorawan_session),
}
