"""Answers to devices: which station sends one, in which window, and whether it was sent.

Owns the answers on their way, by the number under which a station reports them. Invariants: an
answer waits a moment for copies of other stations and leaves through the one that heard the device
best and is connected; a window that cannot be met any more is not tried; an answer that meets none,
or that its station does not report as sent, is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.devices.deadline import deadline
from edgehub.lora.identifiers import dashed_eui
from edgehub.lora.regions import RX2_AFTER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from edgehub.clock import Clock
    from edgehub.heads.lora.reception import StationReception, Transmission
    from edgehub.heads.lora.stations import Stations
    from edgehub.lora.device import LorawanSession
    from edgehub.lora.regions import Region

GATHER_S: Final = 0.2
"""So long after its first copy a transmission's answer waits for better ones."""
LEAD_S: Final = 0.1
"""A station needs an answer so long before its window, the network in between included."""
REPORT_S: Final = 3.0
"""After the last window a station has reported what it has sent."""
_PRIORITY: Final = 25
_DIID_MAX: Final = 2**31 - 1


class Windows(Struct, frozen=True, kw_only=True):
    """When and how a device listens.

    Attributes:
        delay_s: From the end of a frame of it until its first window.
        rx1_dr_offset: Offset of the data rate in it.
        rx2_dr: Data rate in the second.
        rx2_hz: Frequency of the second.
        has_rx1: The first can be used.
        has_rx2: The second can.
    """

    delay_s: int
    rx1_dr_offset: int
    rx2_dr: int
    rx2_hz: int
    has_rx1: bool = True
    has_rx2: bool = True


def windows_of(region: Region, delay_s: int, lora: LorawanSession | None = None) -> Windows:
    """Return the windows of a device; without a session those of the region."""
    dr, hz = (None, None) if lora is None else (lora.rx2_dr, lora.rx2_hz)
    return Windows(
        delay_s=delay_s,
        rx1_dr_offset=0 if lora is None else lora.rx1_dr_offset,
        rx2_dr=region.rx2_dr if dr is None else dr,
        rx2_hz=region.rx2_hz if hz is None else hz,
    )


class _InFlight(Struct, eq=False):
    station: int
    sent: asyncio.Future[None]


class Downlinks:
    """Answers on their way to devices.

    Args:
        region: Of the stations.
        stations: Those that are connected.
        clock: For the windows.

    Attributes:
        counts: Answers handed to stations by their first window, `rx1`, `rx2`, `class_c`; `missed`
            = no window was left or no station connected; `sent`, `unsent` = what stations report.
    """

    def __init__(self, region: Region, stations: Stations, clock: Clock) -> None:
        self._region = region
        self._stations = stations
        self._clock = clock
        self._last_diid = 0
        self._in_flight: dict[int, _InFlight] = {}
        self.counts: Counter[str] = Counter()

    async def answer(
        self,
        dev_eui: int,
        phy_payload: bytes,
        transmission: Transmission,
        windows: Windows,
        written: Callable[[], None] | None = None,
    ) -> bool:
        """Send an answer in a window of a device.

        Args:
            dev_eui: The device.
            phy_payload: The answer.
            transmission: What is answered.
            windows: Of the device.
            written: Called when a station gets it, None = nothing is.

        Returns:
            Whether a station has sent it.
        """
        since = self._clock.monotonic() - transmission.first.received_s
        if since < GATHER_S:
            await self._clock.sleep(GATHER_S - since)
        for copy in transmission.best():
            message = self._in_window(copy, windows)
            if message is None:
                continue
            window = "rx1" if "RX1DR" in message else "rx2"
            left_s = copy.received_s + windows.delay_s + RX2_AFTER_S - self._clock.monotonic()
            message |= {"dC": 0, "pdu": phy_payload.hex()}
            sent = self._hand_over(dev_eui, copy.station, message, window)
            if sent is not None:
                if written is not None:
                    written()
                return await self._wait(sent, left_s + REPORT_S)
        self.counts["missed"] += 1
        return False

    def send_now(
        self,
        dev_eui: int,
        phy_payload: bytes,
        station: int,
        windows: Windows,
        written: Callable[[], None],
    ) -> Coroutine[None, None, bool]:
        """Send to a device that always listens, before it returns.

        Returns:
            What waits for the report of its station, and returns whether it has sent it.
        """
        message = {
            "dC": 2,
            "pdu": phy_payload.hex(),
            "RX2DR": windows.rx2_dr,
            "RX2Freq": windows.rx2_hz,
            "rctx": 0,
        }
        sent = self._hand_over(dev_eui, station, message, "class_c")
        if sent is None:
            self.counts["missed"] += 1
        else:
            written()
        return self._wait(sent, REPORT_S)

    def transmitted(self, station: int, diid: object) -> None:
        """Record that a station has begun to send an answer."""
        in_flight = self._in_flight.get(diid) if isinstance(diid, int) else None
        if in_flight is not None and in_flight.station == station and not in_flight.sent.done():
            in_flight.sent.set_result(None)

    def _in_window(self, copy: StationReception, windows: Windows) -> dict[str, Any] | None:
        left_s = copy.received_s + windows.delay_s - LEAD_S - self._clock.monotonic()
        message: dict[str, Any] = {}
        if left_s >= 0 and windows.has_rx1:
            dr, hz = self._region.rx1(copy.dr, copy.hz, windows.rx1_dr_offset)
            message |= {"RX1DR": dr, "RX1Freq": hz}
        if left_s + RX2_AFTER_S >= 0 and windows.has_rx2:
            message |= {"RX2DR": windows.rx2_dr, "RX2Freq": windows.rx2_hz}
        if not message:
            return None
        return {**message, "RxDelay": windows.delay_s, "xtime": copy.xtime, "rctx": copy.rctx}

    def _hand_over(
        self, dev_eui: int, station: int, message: dict[str, Any], window: str
    ) -> int | None:
        diid = self._last_diid = self._last_diid % _DIID_MAX + 1
        head = {"msgtype": "dnmsg", "DevEui": dashed_eui(dev_eui), "diid": diid}
        if not self._stations.send(station, {**head, "priority": _PRIORITY, **message}):
            return None
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[diid] = _InFlight(station, sent)
        self.counts[window] += 1
        return diid

    async def _wait(self, diid: int | None, seconds: float) -> bool:
        if diid is None:
            return False
        try:
            async with deadline(self._clock, seconds):
                await self._in_flight[diid].sent
        except TimeoutError:
            self.counts["unsent"] += 1
            return False
        finally:
            del self._in_flight[diid]
        self.counts["sent"] += 1
        return True
