"""One transmission of a device as the stations of this hub heard it.

Owns the recent transmissions. Invariants: copies that come within a second of the first are of one
transmission, whatever their frequency; of a station the best copy counts; a station that repeats
the same bytes without end costs nothing after the first few.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from edgehub.lora.frames import FrameError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgehub.clock import Clock
    from edgehub.lora.regions import Region

TOGETHER_S: Final = 1.0
LOOP_S: Final = 10.0
LOOP_COPIES_MAX: Final = 12
"""Copies of the same bytes from one station within `LOOP_S`; devices repeat at most 15 times, and
each time after their windows."""
TRANSMISSIONS_MAX: Final = 10_000
_SNR_ENOUGH_DB: Final = 10.0
"""Above this the signal strength decides between stations."""


class StationReception(Struct, frozen=True, kw_only=True):
    """One copy, as one station heard it.

    Attributes:
        station: Its id.
        received_s: When the hub got it, monotonic seconds.
        dr: Data rate.
        hz: Frequency.
        rctx: The station's antenna, to be sent back with an answer.
        xtime: The station's time in microseconds, likewise.
        rssi: Signal strength in dBm.
        snr: Signal to noise in dB.
    """

    station: int
    received_s: float
    dr: int
    hz: int
    rctx: int
    xtime: int
    rssi: float
    snr: float

    @property
    def quality(self) -> tuple[float, float]:
        """Return what the best copy has most of."""
        return min(self.snr, _SNR_ENOUGH_DB), self.rssi


def parse_reception(
    message: Mapping[str, Any], region: Region, *, station: int, received_s: float
) -> StationReception:
    """Read the radio part of a station's message.

    Raises:
        FrameError: A member is missing, or the region has no such uplinks.
    """
    info = message.get("upinfo")
    if not isinstance(info, dict):
        raise FrameError("`upinfo` is no object")
    dr, hz = _whole(message, "DR"), _whole(message, "Freq")
    low, high = region.range_hz
    if not low <= hz <= high:
        raise FrameError(f"`Freq` {hz} is not in {region.name}")
    if not 0 <= dr < len(region.rx1_dr):
        raise FrameError(f"{region.name} has no uplinks with `DR` {dr}")
    return StationReception(
        station=station,
        received_s=received_s,
        dr=dr,
        hz=hz,
        rctx=_whole(info, "rctx"),
        xtime=_whole(info, "xtime"),
        rssi=_real(info, "rssi"),
        snr=_real(info, "snr"),
    )


class Transmission(Struct, eq=False):
    """A frame, once on air.

    Attributes:
        first: The copy that came first.
        by_station: The best copy of each station.
    """

    first: StationReception
    by_station: dict[int, StationReception] = field(default_factory=dict)

    def add(self, copy: StationReception) -> None:
        """Take in a copy."""
        known = self.by_station.get(copy.station)
        if known is None or copy.quality > known.quality:
            self.by_station[copy.station] = copy

    def best(self) -> list[StationReception]:
        """Return one copy of each station, the best first."""
        return sorted(self.by_station.values(), key=lambda copy: copy.quality, reverse=True)


class _Recent(Struct, eq=False):
    transmission: Transmission
    since_s: float
    copies: dict[int, int] = field(default_factory=dict)


class Transmissions:
    """The transmissions of the last seconds, by their bytes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: OrderedDict[bytes, _Recent] = OrderedDict()

    def add(self, phy_payload: bytes, copy: StationReception) -> tuple[Transmission, bool] | None:
        """Take in a copy.

        Returns:
            Its transmission, and whether this station had a copy of it before; None = the station
            repeats it without end, so it is left alone.
        """
        now = self._clock.monotonic()
        while self._recent:
            oldest = next(iter(self._recent.values()))
            if oldest.since_s > now - LOOP_S and len(self._recent) <= TRANSMISSIONS_MAX:
                break
            self._recent.popitem(last=False)
        recent = self._recent.get(phy_payload)
        if recent is None:
            recent = self._recent[phy_payload] = _Recent(Transmission(copy), now)
        recent.copies[copy.station] = recent.copies.get(copy.station, 0) + 1
        if recent.copies[copy.station] > LOOP_COPIES_MAX:
            return None
        transmission = recent.transmission
        if copy.received_s - transmission.first.received_s > TOGETHER_S:
            transmission = recent.transmission = Transmission(copy)
        is_again = copy.station in transmission.by_station
        transmission.add(copy)
        return transmission, is_again


def _whole(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    if type(value) is not int:
        raise FrameError(f"`{name}` is no whole number")
    return value


def _real(members: Mapping[str, Any], name: str) -> float:
    value = members.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FrameError(f"`{name}` is no number")
    return float(value)
