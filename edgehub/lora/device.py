"""What is stored of a LoRaWAN device: its keys and settings, and its session.

Owns the shapes and what fits together in them. Keys are 32 lower-case hex digits, EUIs and
addresses upper-case ones, all as text, so that any source can hold them.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from msgspec import Meta, Struct

from edgehub.lora.identifiers import dev_addr_text, eui_text, parse_eui

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T", bound=StrEnum)

Whole = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""A counter, a time or a gap, as its stored form bounds it."""

_KEY: Final = re.compile(r"[0-9a-fA-F]{32}")
_DEV_ADDR: Final = re.compile(r"[0-9a-fA-F]{8}")
NAME_MAX: Final = 128
DECODER_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
DECODER_NAME_RULE: Final = "1 to 64 letters, digits and . _ -, the first a letter or digit"


class MacVersion(StrEnum):
    """The version of LoRaWAN that a device speaks."""

    V1_0_0 = "1.0.0"
    V1_0_1 = "1.0.1"
    V1_0_2 = "1.0.2"
    V1_0_3 = "1.0.3"
    V1_0_4 = "1.0.4"
    V1_1 = "1.1"

    @property
    def counts_nonces(self) -> bool:
        """Return whether DevNonce and JoinNonce only increase; before, they are random."""
        return self in (MacVersion.V1_0_4, MacVersion.V1_1)

    @property
    def limits_gap(self) -> bool:
        """Return whether a frame counter may be at most 16 384 ahead."""
        return not self.counts_nonces


class DeviceClass(StrEnum):
    """When a device listens."""

    A = "A"  # after its own frames
    C = "C"  # always


class LorawanProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings and root keys of a device.

    Attributes:
        name: Display name, may be empty.
        mac_version: See `MacVersion`.
        device_class: See `DeviceClass`.
        join_eui: Who answers its joins, empty = any; a request with another one is refused.
        app_key: Root key of 1.0, and of the application in 1.1; empty = the device does not join.
        nwk_key: Root key of the network in 1.1.
        decoder: Name of what decodes its payloads, empty = they stay as they are.
    """

    name: str = ""
    mac_version: MacVersion = MacVersion.V1_0_3
    device_class: DeviceClass = DeviceClass.A
    join_eui: str = ""
    app_key: str = ""
    nwk_key: str = ""
    decoder: str = ""


class LorawanSession(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys and counters of a session; in 1.0 the three network keys are one, NwkSKey.

    Attributes:
        is_1_1: Frames are those of 1.1.
        f_nwk_s_int_key: FNwkSIntKey.
        s_nwk_s_int_key: SNwkSIntKey.
        nwk_s_enc_key: NwkSEncKey.
        app_s_key: AppSKey.
        f_cnt_down: Downlink counters below this one may have been used.
        confirmed_f_cnt_down: Counter of the last downlink that was to be acknowledged.
        station: Id of the station that heard the device last, empty = none has.
        tx_power: Index of its power, 0 is the most.
        nb_trans: How often it sends an unconfirmed frame.
        rx_delay: Seconds until the device's first window.
        rx1_dr_offset: Offset of the data rate there.
        rx2_dr: Data rate of its second window, None = that of the region.
        rx2_hz: Frequency of it, None = that of the region.
    """

    is_1_1: bool = False
    f_nwk_s_int_key: str
    s_nwk_s_int_key: str
    nwk_s_enc_key: str
    app_s_key: str
    f_cnt_down: Whole = 0
    confirmed_f_cnt_down: Whole = 0
    station: str = ""
    tx_power: Whole = 0
    nb_trans: Whole = 1
    rx_delay: Whole = 1
    rx1_dr_offset: Whole = 0
    rx2_dr: Whole | None = None
    rx2_hz: Whole | None = None


class DeviceFormError(ValueError):
    """A description of a device is wrong; the text says which member and why."""


class DeviceDescription(Struct, frozen=True, kw_only=True):
    """A device as an operator or another network server describes it.

    Attributes:
        dev_eui: Its id.
        profile: Settings and root keys.
        dev_addr: Address of its session, empty = it has none yet.
        session: Keys of that session.
        f_cnt_up: Last counter that was heard in it.
        relaxed_counters: A device without joins may start again with counter 0 or 1.
    """

    dev_eui: str
    profile: LorawanProfile
    dev_addr: str = ""
    session: LorawanSession | None = None
    f_cnt_up: int = 0
    relaxed_counters: bool = True

    @property
    def joins(self) -> bool:
        """Return whether it gets its sessions by joins."""
        return bool(self.profile.app_key)


def parse_device(members: Mapping[str, str | int | bool | None]) -> DeviceDescription:
    """Check the members of a device, by the names of the columns of an import.

    Raises:
        DeviceFormError: One is wrong, or they do not fit together.
    """
    given = {name: value for name, value in members.items() if value not in (None, "")}
    mac_version = _choice(given, "mac_version", MacVersion, MacVersion.V1_0_3)
    profile = LorawanProfile(
        name=_name(given),
        mac_version=mac_version,
        device_class=_choice(given, "device_class", DeviceClass, DeviceClass.A),
        join_eui=_eui(given, "join_eui") if "join_eui" in given else "",
        app_key=_key(given, "app_key"),
        nwk_key=_key(given, "nwk_key"),
        decoder=_decoder(given),
    )
    session = _session(given, is_1_1=mac_version is MacVersion.V1_1)
    if not profile.app_key and session is None:
        raise DeviceFormError(
            "a device needs `app_key` to join, or `dev_addr`, `nwk_s_key` and `app_s_key`"
        )
    if mac_version is MacVersion.V1_1 and bool(profile.app_key) != bool(profile.nwk_key):
        raise DeviceFormError("a device of 1.1 joins with both `app_key` and `nwk_key`")
    if mac_version is not MacVersion.V1_1 and profile.nwk_key:
        raise DeviceFormError("`nwk_key` is a key of 1.1; the root key of 1.0 is `app_key`")
    return DeviceDescription(
        dev_eui=_eui(given, "dev_eui"),
        profile=profile,
        dev_addr=_dev_addr(given) if session is not None else "",
        session=session,
        f_cnt_up=_counter(given, "f_cnt_up"),
        relaxed_counters=given.get("relaxed_counters", True) is True,
    )


def _session(given: Mapping[str, object], *, is_1_1: bool) -> LorawanSession | None:
    network = ("f_nwk_s_int_key", "s_nwk_s_int_key", "nwk_s_enc_key") if is_1_1 else ("nwk_s_key",)
    names = ("dev_addr", *network, "app_s_key")
    found = [name for name in names if name in given]
    if not found:
        return None
    if missing := [name for name in names if name not in given]:
        raise DeviceFormError(f"`{found[0]}` without `{missing[0]}`")
    keys = [_key(given, name) for name in network]
    first, second, third = keys if is_1_1 else keys * 3
    return LorawanSession(
        is_1_1=is_1_1,
        f_nwk_s_int_key=first,
        s_nwk_s_int_key=second,
        nwk_s_enc_key=third,
        app_s_key=_key(given, "app_s_key"),
        f_cnt_down=_counter(given, "f_cnt_down"),
    )


def _name(given: Mapping[str, object]) -> str:
    name = str(given.get("name", ""))
    if len(name) > NAME_MAX or not name.isprintable():
        raise DeviceFormError(f"`name`: want at most {NAME_MAX} printable characters")
    return name


def _decoder(given: Mapping[str, object]) -> str:
    name = str(given.get("decoder", ""))
    if name and not re.search(DECODER_NAME, name):
        raise DeviceFormError(f"`decoder`: want {DECODER_NAME_RULE}")
    return name


def _eui(given: Mapping[str, object], name: str) -> str:
    value = given.get(name)
    if value is None:
        raise DeviceFormError(f"`{name}` is missing")
    try:
        return eui_text(parse_eui(str(value)))
    except ValueError as error:
        raise DeviceFormError(f"`{name}`: {error}") from error


def _dev_addr(given: Mapping[str, object]) -> str:
    text = str(given["dev_addr"])
    if not _DEV_ADDR.fullmatch(text):
        raise DeviceFormError("`dev_addr`: want 8 hex digits, such as 260B1F4E")
    return dev_addr_text(int(text, 16))


def _key(given: Mapping[str, object], name: str) -> str:
    text = str(given.get(name, ""))
    if text and not _KEY.fullmatch(text):
        # The value is a secret, or most of one.
        raise DeviceFormError(f"`{name}`: want 32 hex digits, it has {len(text)} characters")
    return text.lower()


def _counter(given: Mapping[str, object], name: str) -> int:
    text = str(given.get(name, "0"))
    if not (text.isascii() and text.isdecimal()) or int(text) >= 2**32:
        raise DeviceFormError(f"`{name}`: want a whole number of 32 bits")
    return int(text)


def _choice(given: Mapping[str, object], name: str, kind: type[T], default: T) -> T:
    text = str(given.get(name, default))
    try:
        return kind(text)
    except ValueError as error:
        raise DeviceFormError(
            f"`{name}`: want one of {', '.join(kind)}, not `{text[:20]}`"
        ) from error
