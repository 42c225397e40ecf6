"""32-bit frame counters of which the air carries 16 bits.

Pure function. Source: LoRaWAN 1.0.4 section 4.3.1.5.
"""

from __future__ import annotations


def full_counter(wire: int, following: int) -> int:
    """Return the smallest full counter from `following` on with the low 16 bits `wire`."""
    return following + (wire - following & 0xFFFF)
