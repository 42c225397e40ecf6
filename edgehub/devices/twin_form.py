"""A LoRaWAN device as its twin has it, by the names of the Azure IoT Edge LoRaWAN Starter Kit.

Pure functions on the two sections of a twin. The kit has no names for the version of LoRaWAN, so it
is `MacVersion` here, and the second root key of 1.1 `NwkKey`. Other members of a twin are left
as they are.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from edgehub.devices.faults import DeviceSourceError
from edgehub.devices.source import (
    GAP_MAX,
    RADIO_ADDRESS,
    Activation,
    Deduplication,
    DeviceProfile,
    SessionState,
)
from edgehub.errors import ConfigError
from edgehub.lora.device import DeviceDescription, DeviceFormError, parse_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.lora.device import LorawanSession

ROOT_KEY: Final = "AppKey"
_DESIRED: Final = {
    "MacVersion": "mac_version",
    "ClassType": "device_class",
    "AppEUI": "join_eui",
    "JoinEUI": "join_eui",
    ROOT_KEY: "app_key",
    "NwkKey": "nwk_key",
    "Decoder": "decoder",  # `SensorDecoder` of the kit is a class of its own, or an address
}
_PERSONALISED: Final = {
    "DevAddr": "dev_addr",
    "NwkSKey": "nwk_s_key",
    "AppSKey": "app_s_key",
    "FCntUpStart": "f_cnt_up",
    "FCntDownStart": "f_cnt_down",
}
_REPORTED: Final = {
    "DevAddr": "dev_addr",
    "NwkSKey": "nwk_s_key",
    "AppSKey": "app_s_key",
    "FCntUp": "f_cnt_up",
    "FCntDown": "f_cnt_down",
}
UNSAVED_MAX: Final = 10
"""The kit writes downlink counters this seldom."""


class TwinDevice(Struct, frozen=True, kw_only=True):
    """What a twin says of a LoRaWAN device.

    Attributes:
        description: Keys, settings, and the session of a device that does not join.
        resets: Changed by an operator to have that session begin again.
    """

    description: DeviceDescription
    resets: str


def read_desired(device_id: str, desired: Mapping[str, Any]) -> TwinDevice | None:
    """Read what is desired of a device, None = it is no LoRaWAN device.

    Raises:
        DeviceSourceError: A member is wrong.
    """
    joins = bool(desired.get(ROOT_KEY))
    if not joins and not desired.get("NwkSKey"):
        return None
    names = _DESIRED if joins else _DESIRED | _PERSONALISED
    members = {own: desired[name] for name, own in names.items() if desired.get(name) is not None}
    relaxed = desired.get("ABPRelaxMode", True)
    members["relaxed_counters"] = str(relaxed).lower() != "false"
    try:
        description = parse_device({**members, "dev_eui": device_id})
    except DeviceFormError as exc:
        text = str(exc)
        for name, own in names.items():
            text = text.replace(f"`{own}`", f"`desired.{name}`")
        raise DeviceSourceError(device_id, f"its twin cannot be used: {text}") from exc
    return TwinDevice(description=description, resets=str(desired.get("FCntResetCounter", "")))


def profile_of(
    device: TwinDevice, desired: Mapping[str, Any], common: DeviceProfile
) -> DeviceProfile:
    """Return the settings of a device; what its twin does not say is as in `common`.

    Raises:
        DeviceSourceError: A member is wrong.
    """
    description, device_id = device.description, common.device_id
    deduplication = str(desired.get("Deduplication") or common.deduplication).lower()
    keep_alive_s = desired.get("KeepAliveTimeout", common.keep_alive_s)
    if deduplication not in list(Deduplication):
        raise DeviceSourceError(device_id, "`desired.Deduplication`: want Drop, Mark or None")
    if type(keep_alive_s) is not int or keep_alive_s < 0:
        raise DeviceSourceError(device_id, "`desired.KeepAliveTimeout`: want whole seconds")
    try:
        return replace(
            common,
            deduplication=Deduplication(deduplication),
            keep_alive_s=keep_alive_s,
            gateway_id=str(desired["GatewayID"]) if desired.get("GatewayID") else common.gateway_id,
            activation=Activation.OTAA if description.joins else Activation.ABP,
            relaxed_counters=description.relaxed_counters and not description.joins,
            gap_max=GAP_MAX if description.profile.mac_version.limits_gap else None,
            lora=description.profile,
        )
    except ConfigError as exc:
        raise DeviceSourceError(device_id, f"`desired.KeepAliveTimeout`: {exc}") from exc


def session_of(device: TwinDevice, reported: Mapping[str, Any], kept: SessionState) -> SessionState:
    """Return the session of a device.

    Args:
        device: What is desired.
        reported: What the kit has reported of it.
        kept: What a hub has reported of it, empty = none has.

    Raises:
        DeviceSourceError: What is reported is no session.
    """
    description = device.description
    if description.session is not None:
        return _begun(kept, description, description.session, device.resets)
    if kept.lora is not None or not reported.get("NwkSKey"):
        return kept
    members = {own: reported[name] for name, own in _REPORTED.items() if name in reported}
    device_id = description.dev_eui
    try:
        former = parse_device({**members, "dev_eui": device_id})
    except DeviceFormError as exc:
        raise DeviceSourceError(device_id, f"its reported session cannot be used: {exc}") from exc
    assert former.session is not None, "its keys are there"
    lora = replace(former.session, f_cnt_down=former.session.f_cnt_down + UNSAVED_MAX)
    nonce = str(reported.get("DevNonce", ""))
    nonces = (int(nonce),) if nonce.isascii() and nonce.isdecimal() else ()
    return replace(_begun(kept, former, lora, ""), dev_nonces=nonces)


def report_of(session: SessionState) -> dict[str, Any]:
    """Return what a session is in the kit's names, empty = it is none of a LoRaWAN device."""
    lora = session.lora
    if lora is None:
        return {}
    return {
        "DevAddr": session.address.removeprefix(RADIO_ADDRESS),
        "NwkSKey": lora.nwk_s_enc_key.upper(),
        "AppSKey": lora.app_s_key.upper(),
        "FCntUp": session.f_cnt_up,
        "FCntDown": lora.f_cnt_down,
        "DevNonce": session.dev_nonces[-1] if session.dev_nonces else None,
    }


def _begun(
    kept: SessionState, description: DeviceDescription, lora: LorawanSession, resets: str
) -> SessionState:
    """Return a session that its keys name, with its counters if it is the one that is kept."""
    parts = (description.dev_addr, lora.nwk_s_enc_key, lora.app_s_key, resets)
    name = hashlib.blake2b("/".join(parts).encode(), digest_size=8).hexdigest()
    if kept.session == name:
        return kept
    return SessionState(
        session=name,
        # Counters of another session are no measure for this one.
        generation=kept.generation + 1 if kept.session else kept.generation,
        address=RADIO_ADDRESS + description.dev_addr,
        f_cnt_up=description.f_cnt_up,
        dev_nonces=kept.dev_nonces,
        lora=lora,
    )
