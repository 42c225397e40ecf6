"""GPS time, in which stations and devices count.

Pure function. GPS time began at 1980-01-06T00:00Z and has no leap seconds, so it has been 18 s
ahead of UTC since 2017. Source: IS-GPS-200.
"""

from __future__ import annotations

from typing import Final

_EPOCH_S: Final = 315_964_800
_LEAP_S: Final = 18


def gps_ms(utc_ms: int) -> int:
    """Return the milliseconds of GPS time at a time of UTC, in milliseconds since 1970."""
    return utc_ms - (_EPOCH_S - _LEAP_S) * 1000
