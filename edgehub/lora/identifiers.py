"""EUIs, device addresses and network identifiers as numbers and in their notations.

Pure functions. EUIs, addresses and NetIDs are numbers, most significant byte first; on air they are
reversed. Device ids are DevEUIs as 16 upper-case hex digits, the form that cloud registries have.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

EUI_MAX: Final = 2**64 - 1
_HEX_EUI: Final = re.compile(r"[0-9A-Fa-f]{16}")
_SPLIT_EUI: Final = re.compile(r"[0-9A-Fa-f]{2}(?:([-:])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){6}")
_ID6_GROUP: Final = re.compile(r"[0-9A-Fa-f]{1,4}")
_ID6_GROUPS: Final = 4

NWK_ID_BITS: Final = (6, 6, 9, 11, 12, 13, 15, 17)
"""Bits of NwkID in a DevAddr, by the type of the NetID."""

_NET_ID_BITS: Final = (6, 6, 9, 21, 21, 21, 21, 21)


def eui_text(eui: int) -> str:
    """Return an EUI as 16 upper-case hex digits."""
    return f"{eui:016X}"


def dashed_eui(eui: int) -> str:
    """Return an EUI as stations write it, `00-11-22-33-44-55-66-77`."""
    return eui.to_bytes(8).hex("-").upper()


def parse_eui(text: str) -> int:
    """Parse an EUI: 16 hex digits, or 8 pairs of them with `-` or `:` between.

    Raises:
        ValueError: It is none.
    """
    if _HEX_EUI.fullmatch(text) or _SPLIT_EUI.fullmatch(text):
        return int(text.replace("-", "").replace(":", ""), 16)
    raise ValueError(f"want 16 hex digits, such as 70B3D57ED0000001, not `{text[:40]}`")


def parse_station_id(value: object) -> int:
    """Parse the id of a station: a number, an EUI, or four hex groups of which `::` cuts zeros.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        # Some write the 64 bits as a signed number.
        if -(2**63) <= value <= EUI_MAX:
            return value & EUI_MAX
    elif isinstance(value, str):
        try:
            return parse_eui(value)
        except ValueError:
            if (number := _parse_id6(value)) is not None:
                return number
    raise ValueError("want a number of 64 bits, 16 hex digits, or a form like aabb:1:203:42ff")


def id6_text(eui: int) -> str:
    """Return an EUI as four hex groups, the longest run of zero groups cut to `::`."""
    groups = [eui >> shift & 0xFFFF for shift in (48, 32, 16, 0)]
    runs = [
        (end - start, -start)
        for start in range(_ID6_GROUPS)
        for end in range(start + 1, _ID6_GROUPS + 1)
        if not any(groups[start:end])
    ]
    if not runs:
        return ":".join(f"{group:x}" for group in groups)
    length, start = max(runs)
    before, after = groups[:-start], groups[length - start :]
    return "::".join(":".join(f"{group:x}" for group in part) for part in (before, after))


def dev_addr_text(dev_addr: int) -> str:
    """Return a DevAddr as 8 upper-case hex digits."""
    return f"{dev_addr:08X}"


class NetId(NamedTuple):
    """A NetID in its parts.

    Attributes:
        kind: Its type, 0 to 7.
        identifier: Its id part, in its number of whole bytes.
    """

    kind: int
    identifier: bytes

    @classmethod
    def of(cls, net_id: int) -> NetId:
        """Split a NetID of 24 bits (LoRaWAN Backend Interfaces 1.0, section 13)."""
        kind = net_id >> 21
        bits = _NET_ID_BITS[kind]
        return cls(kind, (net_id & (1 << bits) - 1).to_bytes((bits + 7) // 8))


def dev_addr_of(net_id: int, number: int) -> int:
    """Return a DevAddr of a network: the prefix of the type, NwkID, and bits of `number`."""
    kind = net_id >> 21
    prefix_bits, nwk_id_bits = kind + 1, NWK_ID_BITS[kind]
    prefix = (1 << prefix_bits) - 2
    address_bits = 32 - prefix_bits - nwk_id_bits
    nwk_id = net_id & (1 << nwk_id_bits) - 1
    return (prefix << nwk_id_bits | nwk_id) << address_bits | number & (1 << address_bits) - 1


def _parse_id6(text: str) -> int | None:
    head, cut, tail = text.partition("::")
    before, after = (part.split(":") if part else [] for part in (head, tail))
    missing = _ID6_GROUPS - len(before) - len(after)
    if missing < 0 or (missing == 0) == bool(cut):
        return None
    groups = [*before, *["0"] * missing, *after]
    if not all(map(_ID6_GROUP.fullmatch, groups)):
        return None
    return int("".join(group.zfill(4) for group in groups), 16)
