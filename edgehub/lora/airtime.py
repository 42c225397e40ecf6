"""How long a LoRa frame is on air (Semtech AN1200.13).

Pure function.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

CODING_RATES: Final = {"4/5": 1, "4/6": 2, "4/7": 3, "4/8": 4}
_LDRO_SYMBOL_MS: Final = 16.0
"""Symbols of at least this length are sent with the optimisation for low data rates."""


class Airtime(Struct, frozen=True, kw_only=True):
    """The times of one frame, in milliseconds."""

    symbol_ms: float
    preamble_ms: float
    ms: float


def lora_airtime(
    size: int,
    *,
    sf: int,
    bw_khz: float,
    preamble: int = 8,
    cr: str = "4/5",
    explicit_header: bool = True,
    crc: bool = True,
    ldro: bool | None = None,
) -> Airtime:
    """Return the times of a frame.

    Args:
        size: Bytes of the PHYPayload.
        sf: Spreading factor, 6 to 12.
        bw_khz: Bandwidth.
        preamble: Symbols of the preamble that are programmed; 4.25 more are sent.
        cr: Coding rate.
        explicit_header: The header of the radio is sent.
        crc: The checksum of the radio is sent; gateways leave it out.
        ldro: Optimisation for low data rates, None = as gateways have it.
    """
    symbol_ms = 2**sf / bw_khz
    if ldro is None:
        ldro = symbol_ms >= _LDRO_SYMBOL_MS
    bits = 8 * size - 4 * sf + 28 + 16 * crc - 20 * (not explicit_header)
    groups = max(0, -(-bits // (4 * (sf - 2 * ldro))))
    symbols = 8 + groups * (CODING_RATES[cr] + 4)
    preamble_ms = (preamble + 4.25) * symbol_ms
    return Airtime(
        symbol_ms=symbol_ms, preamble_ms=preamble_ms, ms=preamble_ms + symbols * symbol_ms
    )
