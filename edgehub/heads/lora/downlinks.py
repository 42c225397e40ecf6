"""Answers to devices: which station sends one, in which window, and whether it was sent.

Owns the answers on their way, by the number under which a station reports them. Invariants: an
answer waits a moment for copies of other stations and leaves through the one that heard the device
best and is connected; a window that cannot be met any more is not tried; an answer that meets none
is counted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgehub.lora.identifiers import dashed_eui
from edgehub.lora.regions import RX2_AFTER_S

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.heads.lora.reception import StationReception, Transmission
    from edgehub.heads.lora.stations import Stations
    from edgehub.lora.regions import Region

GATHER_S: Final = 0.2
"""So long after its first copy a transmission's answer waits for better ones."""
LEAD_S: Final = 0.1
"""A station needs an answer so long before its window, the network in between included."""
IN_FLIGHT_MAX: Final = 10_000
_PRIORITY: Final = 25
_DIID_MAX: Final = 2**31 - 1

SENT: Final = "sent"
MISSED: Final = "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """When and how a device listens after a transmission.

    Attributes:
        delay_s: Until its first window.
        rx1_dr_offset: Offset of the data rate in it.
        rx2_dr: Data rate in the second.
        rx2_hz: Frequency of the second.
    """

    delay_s: int
    rx1_dr_offset: int
    rx2_dr: int
    rx2_hz: int


class Downlinks:
    """Answers on their way to devices.

    Args:
        region: Of the stations.
        stations: Those that are connected.
        clock: For the windows.
    """

    def __init__(self, region: Region, stations: Stations, clock: Clock) -> None:
        self._region = region
        self._stations = stations
        self._clock = clock
        self._last_diid = 0
        self._in_flight: OrderedDict[int, int] = OrderedDict()
        self.counts: Counter[str] = Counter()

    async def answer(
        self, dev_eui: int, phy_payload: bytes, transmission: Transmission, windows: Windows
    ) -> bool:
        """Send an answer in a window of a device.

        Returns:
            Whether a station took it in time.
        """
        since = self._clock.monotonic() - transmission.first.received_s
        if since < GATHER_S:
            await self._clock.sleep(GATHER_S - since)
        for copy in transmission.best():
            message = self._message(dev_eui, phy_payload, copy, windows)
            if message is not None and self._stations.send(copy.station, message):
                self._in_flight[message["diid"]] = copy.station
                if len(self._in_flight) > IN_FLIGHT_MAX:
                    self._in_flight.popitem(last=False)
                self.counts["rx1" if "RX1DR" in message else "rx2"] += 1
                return True
        self.counts[MISSED] += 1
        return False

    def transmitted(self, station: int, diid: object) -> None:
        """Record that a station has begun to send an answer."""
        if isinstance(diid, int) and self._in_flight.get(diid) == station:
            del self._in_flight[diid]
            self.counts[SENT] += 1

    def _message(
        self, dev_eui: int, phy_payload: bytes, copy: StationReception, windows: Windows
    ) -> dict[str, Any] | None:
        left_s = copy.received_s + windows.delay_s - LEAD_S - self._clock.monotonic()
        if left_s + RX2_AFTER_S < 0:
            return None
        self._last_diid = self._last_diid % _DIID_MAX + 1
        message = {
            "msgtype": "dnmsg",
            "DevEui": dashed_eui(dev_eui),
            "dC": 0,
            "diid": self._last_diid,
            "pdu": phy_payload.hex(),
            "RxDelay": windows.delay_s,
            "RX2DR": windows.rx2_dr,
            "RX2Freq": windows.rx2_hz,
            "priority": _PRIORITY,
            "xtime": copy.xtime,
            "rctx": copy.rctx,
        }
        if left_s >= 0:
            dr, hz = self._region.rx1(copy.dr, copy.hz, windows.rx1_dr_offset)
            message |= {"RX1DR": dr, "RX1Freq": hz}
        return message
