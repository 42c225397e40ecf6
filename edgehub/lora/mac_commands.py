"""MAC commands of LoRaWAN 1.0 and 1.1 (sections 5): bytes to objects and back.

Pure functions over one table of layouts. All commands have a fixed length; their members are slices
of it as a little-endian number. Parsing stops at an unknown command, as nothing says how long it
is, and keeps what was read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct, field

from edgehub.lora.frames import Direction, FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping

HZ_UNIT: Final = 100
_FREQUENCY_BITS: Final = 24


class _Slice(NamedTuple):
    """Bits of a command's payload.

    Attributes:
        offset: Lowest bit.
        width: Number of bits.
        unit: What one counts.
        signed: In two's complement.
    """

    offset: int
    width: int
    unit: int = 1
    signed: bool = False


class _Layout(NamedTuple):
    name: str
    size: int
    slices: Mapping[str, _Slice] = {}


def _frequency(offset: int) -> _Slice:
    return _Slice(offset, _FREQUENCY_BITS, unit=HZ_UNIT)


def _flags(*names: str) -> dict[str, _Slice]:
    return {name: _Slice(bit, 1) for bit, name in enumerate(names)}


_DOWN: Final = {
    0x01: _Layout("ResetConf", 1, {"minor": _Slice(0, 4)}),
    0x02: _Layout("LinkCheckAns", 2, {"margin": _Slice(0, 8), "gw_cnt": _Slice(8, 8)}),
    0x03: _Layout(
        "LinkADRReq",
        4,
        {
            "data_rate": _Slice(4, 4),
            "tx_power": _Slice(0, 4),
            "ch_mask": _Slice(8, 16),
            "ch_mask_cntl": _Slice(28, 3),
            "nb_rep": _Slice(24, 4),
        },
    ),
    0x04: _Layout("DutyCycleReq", 1, {"max_duty_cycle": _Slice(0, 4)}),
    0x05: _Layout(
        "RXParamSetupReq",
        4,
        {"rx1_dr_offset": _Slice(4, 3), "rx2_dr": _Slice(0, 4), "frequency_hz": _frequency(8)},
    ),
    0x06: _Layout("DevStatusReq", 0),
    0x07: _Layout(
        "NewChannelReq",
        5,
        {
            "ch_index": _Slice(0, 8),
            "frequency_hz": _frequency(8),
            "max_dr": _Slice(36, 4),
            "min_dr": _Slice(32, 4),
        },
    ),
    0x08: _Layout("RXTimingSetupReq", 1, {"delay": _Slice(0, 4)}),
    0x09: _Layout(
        "TxParamSetupReq",
        1,
        {
            "max_eirp": _Slice(0, 4),
            "uplink_dwell_time": _Slice(4, 1),
            "downlink_dwell_time": _Slice(5, 1),
        },
    ),
    0x0A: _Layout("DlChannelReq", 4, {"ch_index": _Slice(0, 8), "frequency_hz": _frequency(8)}),
    0x0B: _Layout("RekeyConf", 1, {"minor": _Slice(0, 4)}),
    0x0C: _Layout("ADRParamSetupReq", 1, {"limit_exp": _Slice(4, 4), "delay_exp": _Slice(0, 4)}),
    0x0D: _Layout("DeviceTimeAns", 5, {"seconds": _Slice(0, 32), "fraction_256": _Slice(32, 8)}),
    0x0E: _Layout(
        "ForceRejoinReq",
        2,
        {
            "period": _Slice(11, 3),
            "max_retries": _Slice(8, 3),
            "rejoin_type": _Slice(4, 3),
            "data_rate": _Slice(0, 4),
        },
    ),
    0x0F: _Layout(
        "RejoinParamSetupReq", 1, {"max_time_n": _Slice(4, 4), "max_count_n": _Slice(0, 4)}
    ),
    0x10: _Layout("PingSlotInfoAns", 0),
    0x11: _Layout(
        "PingSlotChannelReq", 4, {"frequency_hz": _frequency(0), "data_rate": _Slice(24, 4)}
    ),
    0x13: _Layout("BeaconFreqReq", 3, {"frequency_hz": _frequency(0)}),
}

_UP: Final = {
    0x01: _Layout("ResetInd", 1, {"minor": _Slice(0, 4)}),
    0x02: _Layout("LinkCheckReq", 0),
    0x03: _Layout("LinkADRAns", 1, _flags("channel_mask_ack", "data_rate_ack", "power_ack")),
    0x04: _Layout("DutyCycleAns", 0),
    0x05: _Layout(
        "RXParamSetupAns", 1, _flags("channel_ack", "rx2_data_rate_ack", "rx1_dr_offset_ack")
    ),
    0x06: _Layout(
        "DevStatusAns", 2, {"battery": _Slice(0, 8), "margin": _Slice(8, 6, signed=True)}
    ),
    0x07: _Layout("NewChannelAns", 1, _flags("channel_frequency_ok", "data_rate_range_ok")),
    0x08: _Layout("RXTimingSetupAns", 0),
    0x09: _Layout("TxParamSetupAns", 0),
    0x0A: _Layout("DlChannelAns", 1, _flags("channel_frequency_ok", "uplink_frequency_exists")),
    0x0B: _Layout("RekeyInd", 1, {"minor": _Slice(0, 4)}),
    0x0C: _Layout("ADRParamSetupAns", 0),
    0x0D: _Layout("DeviceTimeReq", 0),
    0x0F: _Layout("RejoinParamSetupAns", 1, _flags("time_ok")),
    0x10: _Layout("PingSlotInfoReq", 1, {"periodicity": _Slice(0, 3)}),
    0x11: _Layout("PingSlotChannelAns", 1, _flags("channel_frequency_ok", "data_rate_ok")),
    0x13: _Layout("BeaconFreqAns", 1, _flags("beacon_frequency_ok")),
}

_LAYOUTS: Final = {Direction.UP: _UP, Direction.DOWN: _DOWN}
_BY_NAME: Final = {
    layout.name: (cid, layout) for table in (_DOWN, _UP) for cid, layout in table.items()
}


class MacCommand(Struct, frozen=True, kw_only=True):
    """One MAC command.

    Attributes:
        name: Its name in the specification, such as `LinkADRReq`.
        values: Its members, all of them; frequencies in Hz.
    """

    name: str
    values: Mapping[str, int] = field(default_factory=dict)

    def build(self) -> bytes:
        """Return its bytes.

        Raises:
            FrameError: There is no such command, or a member is missing, unknown or has no room.
        """
        if self.name not in _BY_NAME:
            raise FrameError(f"there is no MAC command {self.name}")
        cid, layout = _BY_NAME[self.name]
        if self.values.keys() != layout.slices.keys():
            wanted = ", ".join(layout.slices) or "no members"
            raise FrameError(f"{self.name} has {wanted}, not {', '.join(self.values) or 'none'}")
        number = 0
        for name, part in layout.slices.items():
            value, rest = divmod(self.values[name], part.unit)
            low = -(1 << part.width - 1) if part.signed else 0
            if rest or not low <= value < low + (1 << part.width):
                raise FrameError(f"{self.name}: {self.values[name]} is no {name}")
            number |= (value & (1 << part.width) - 1) << part.offset
        return bytes([cid]) + number.to_bytes(layout.size, "little")


def parse_mac_commands(commands: bytes, direction: Direction) -> tuple[list[MacCommand], bytes]:
    """Parse a sequence of commands.

    Args:
        commands: Plain FOpts, or the plain payload of FPort 0.
        direction: Its way.

    Returns:
        The commands; and what was not read, from an unknown or a cut one on.
    """
    layouts = _LAYOUTS[direction]
    found: list[MacCommand] = []
    position = 0
    while position < len(commands):
        layout = layouts.get(commands[position])
        if layout is None or position + 1 + layout.size > len(commands):
            break
        end = position + 1 + layout.size
        number = int.from_bytes(commands[position + 1 : end], "little")
        values = {name: _value(number, part) for name, part in layout.slices.items()}
        found.append(MacCommand(name=layout.name, values=values))
        position = end
    return found, commands[position:]


def _value(number: int, part: _Slice) -> int:
    value = number >> part.offset & (1 << part.width) - 1
    if part.signed and value >> part.width - 1:
        value -= 1 << part.width
    return value * part.unit
