"""Channel lists of join accepts and channel masks of LinkADRReq.

Pure functions. Sources: LoRaWAN Regional Parameters RP002-1.0.4, sections 2 and 3; with 72 fixed
channels ChMaskCntl 7 turns the 125 kHz ones off, and its mask sets the 500 kHz ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.lora.frames import FrameError
from edgehub.lora.mac_commands import HZ_UNIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CF_LIST_BYTES: Final = 16
CF_LIST_FREQUENCIES: Final = 5
MASK_CHANNELS: Final = 16
WIDE_FIRST: Final = 64
"""First 500 kHz channel of the plans with 72 channels."""
_WIDE_CNTL: Final = 4
_NARROW_OFF_CNTL: Final = 7

Mask = tuple[int, int]
"""ChMaskCntl and ChMask."""


def frequency_cf_list(frequencies_hz: Sequence[int]) -> bytes:
    """Return a CFList of type 0: up to five channels beyond the default ones.

    Raises:
        FrameError: They do not fit.
    """
    if len(frequencies_hz) > CF_LIST_FREQUENCIES:
        raise FrameError(f"a CFList has {CF_LIST_FREQUENCIES} frequencies at most")
    units = [*frequencies_hz, *[0] * (CF_LIST_FREQUENCIES - len(frequencies_hz))]
    return b"".join((each // HZ_UNIT).to_bytes(3, "little") for each in units) + b"\x00"


def mask_cf_list(channels: Iterable[int]) -> bytes:
    """Return a CFList of type 1: the masks of all channels of a fixed plan."""
    masks = bytearray(CF_LIST_BYTES)
    for channel in channels:
        masks[channel // 8] |= 1 << channel % 8
    masks[-1] = 1
    return bytes(masks)


def masks_72(device: Iterable[int], wanted: Iterable[int]) -> list[Mask]:
    """Return the masks that leave a device of a plan with 72 channels exactly the wanted ones.

    Either each group of sixteen that differs is set, or all 125 kHz channels are turned off first;
    the shorter way is taken.

    Args:
        device: Channels that are on.
        wanted: Channels that shall be.
    """
    now, then = set(device), set(wanted)
    if now == then:
        return []
    differing = sorted({channel // MASK_CHANNELS for channel in now ^ then})
    by_group = [(group, _mask(then, group)) for group in differing]
    used = sorted({channel // MASK_CHANNELS for channel in then if channel < WIDE_FIRST})
    from_none = [(_NARROW_OFF_CNTL, _mask(then, _WIDE_CNTL))]
    from_none += [(group, _mask(then, group)) for group in used]
    return by_group if len(by_group) < len(from_none) else from_none


def _mask(channels: set[int], group: int) -> int:
    first = group * MASK_CHANNELS
    return sum(1 << c - first for c in channels if first <= c < first + MASK_CHANNELS)
