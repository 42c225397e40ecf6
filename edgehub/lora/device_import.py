"""Lists of devices from elsewhere: CSV, and exports of The Things Stack and ChirpStack.

Pure functions: text to descriptions. Every fault is found, with its place; a list with faults gives
no devices.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, Final

from edgehub.lora.device import DeviceDescription, DeviceFormError, parse_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Members = dict[str, str | int | bool | None]

COLUMNS: Final = (
    "dev_eui",
    "name",
    "mac_version",
    "device_class",
    "join_eui",
    "app_key",
    "nwk_key",
    "dev_addr",
    "nwk_s_key",
    "app_s_key",
    "f_nwk_s_int_key",
    "s_nwk_s_int_key",
    "nwk_s_enc_key",
    "f_cnt_up",
    "f_cnt_down",
    "decoder",
)
_PATCHES: Final = ("1.0.1", "1.0.2", "1.0.3", "1.0.4")
_VERSION_WORDS: Final = {
    "1.0": "1.0.0",
    "1.1.0": "1.1",
    "MAC_V1_0": "1.0.0",
    "MAC_V1_1": "1.1",
    "LORAWAN_1_0_0": "1.0.0",
    "LORAWAN_1_1_0": "1.1",
    **{f"MAC_V{each.replace('.', '_')}": each for each in _PATCHES},
    **{f"LORAWAN_{each.replace('.', '_')}": each for each in _PATCHES},
}
"""How The Things Stack and ChirpStack name versions."""

_TTS_COLUMNS: Final = {"lorawan_version": "mac_version", "id": "name"}
_ZERO_KEY: Final = "0" * 32


class DeviceListError(DeviceFormError):
    """A list of devices is wrong.

    Attributes:
        faults: One text each, with its place.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


def parse_devices(text: str) -> list[DeviceDescription]:
    """Parse a list of devices; its form is seen from its text.

    Args:
        text: CSV with a heading, separated by commas or semicolons; or JSON documents as The Things
            Stack exports them or as ChirpStack's API has them, one behind the other or in a list.

    Raises:
        DeviceListError: Something in it is wrong.
    """
    text = text.lstrip("\ufeff")
    faults: list[str] = []
    found: dict[str, DeviceDescription] = {}
    is_json = text.lstrip()[:1] in ("{", "[")
    for place, members in _json_entries(text) if is_json else _csv_entries(text):
        try:
            device = parse_device(members)
        except DeviceFormError as error:
            faults.append(f"{place}: {error}")
            continue
        if device.dev_eui in found:
            faults.append(f"{place}: {device.dev_eui} is there twice")
        found[device.dev_eui] = device
    if not found and not faults:
        faults.append("there is no device in it")
    if faults:
        raise DeviceListError(faults)
    return list(found.values())


def _csv_entries(text: str) -> Iterator[tuple[str, Members]]:
    lines = text.splitlines()
    heading = lines[0] if lines else ""
    reader = csv.DictReader(
        lines, delimiter=";" if heading.count(";") > heading.count(",") else ","
    )
    try:
        names = [name.strip().lower() for name in reader.fieldnames or ()]
        if "dev_eui" not in names:
            wanted = ", ".join(COLUMNS)
            raise DeviceListError([f"line 1: want a heading with `dev_eui`, of {wanted}"])
        reader.fieldnames = [
            _TTS_COLUMNS.get(name, name) if _TTS_COLUMNS.get(name) not in names else name
            for name in names
        ]
        for row in reader:
            members: Members = {
                name: value.strip()
                for name, value in row.items()
                if name in COLUMNS and isinstance(value, str)
            }
            yield f"line {reader.line_num}", _with_version(members)
    except csv.Error as error:
        raise DeviceListError([f"line {reader.line_num}: {error}"]) from error


def _json_entries(text: str) -> Iterator[tuple[str, Members]]:
    decoder = json.JSONDecoder()
    position, documents = 0, []
    while (position := _next(text, position)) < len(text):
        try:
            document, position = decoder.raw_decode(text, position)
        except ValueError as error:
            raise DeviceListError([f"it is no JSON: {error}"]) from error
        except RecursionError as error:
            raise DeviceListError(["it is no list of devices: it is nested too deep"]) from error
        documents += document if isinstance(document, list) else [document]
    for number, document in enumerate(documents, start=1):
        place = f"device {number}"
        if not isinstance(document, dict):
            raise DeviceListError([f"{place}: want an object"])
        if isinstance(ids := document.get("ids"), dict):
            yield place, _of_tts(document, ids)
        elif isinstance(device := document.get("device"), dict):
            yield place, _of_chirpstack(document, device)
        else:
            raise DeviceListError(
                [f"{place}: it has neither `ids` (The Things Stack) nor `device` (ChirpStack)"]
            )


def _of_tts(document: Mapping[str, Any], ids: Mapping[str, Any]) -> Members:
    session = _object(document, "session")
    keys = _object(session, "keys")
    version = document.get("lorawan_version")
    members: Members = {
        "dev_eui": ids.get("dev_eui"),
        "join_eui": ids.get("join_eui"),
        "name": document.get("name") or ids.get("device_id"),
        "mac_version": version,
        "device_class": "C" if document.get("supports_class_c") else "A",
        "dev_addr": session.get("dev_addr"),
        "f_cnt_up": session.get("last_f_cnt_up"),
        "f_cnt_down": session.get("last_n_f_cnt_down"),
        "app_s_key": _key_of(keys, "app_s_key"),
    }
    for name in ("app_key", "nwk_key"):
        members[name] = _key_of(_object(document, "root_keys"), name)
    members = _with_version(members)
    if members["mac_version"] == "1.1":
        for name in ("f_nwk_s_int_key", "s_nwk_s_int_key", "nwk_s_enc_key"):
            members[name] = _key_of(keys, name)
    else:
        members["nwk_s_key"] = _key_of(keys, "f_nwk_s_int_key")
        members["nwk_key"] = None
    return members


def _of_chirpstack(document: Mapping[str, Any], device: Mapping[str, Any]) -> Members:
    keys, activation = _object(document, "deviceKeys"), _object(document, "deviceActivation")
    profile = _object(document, "deviceProfile")
    members = _with_version(
        {
            "dev_eui": device.get("devEui"),
            "join_eui": device.get("joinEui"),
            "name": device.get("name"),
            "mac_version": profile.get("macVersion"),
            "device_class": "C" if profile.get("supportsClassC") else "A",
            "dev_addr": activation.get("devAddr"),
            "app_s_key": activation.get("appSKey"),
            "f_cnt_up": activation.get("fCntUp"),
            "f_cnt_down": activation.get("nFCntDown"),
        }
    )
    root, application = keys.get("nwkKey"), keys.get("appKey")
    if members["mac_version"] == "1.1":
        members |= {
            "nwk_key": root,
            "app_key": application,
            "f_nwk_s_int_key": activation.get("fNwkSIntKey"),
            "s_nwk_s_int_key": activation.get("sNwkSIntKey"),
            "nwk_s_enc_key": activation.get("nwkSEncKey"),
        }
    else:
        # ChirpStack keeps the one root key of 1.0 under the name that 1.1 has for it.
        members["app_key"] = application if root in (None, "", _ZERO_KEY) else root
        members["nwk_s_key"] = activation.get("fNwkSIntKey")
    return members


def _with_version(members: Members) -> Members:
    version = str(members.get("mac_version") or "1.0.3")
    return {**members, "mac_version": _VERSION_WORDS.get(version, version)}


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _key_of(keys: Mapping[str, Any], name: str) -> str | None:
    key = _object(keys, name).get("key")
    return key if isinstance(key, str) else None


def _next(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,":
        position += 1
    return position
