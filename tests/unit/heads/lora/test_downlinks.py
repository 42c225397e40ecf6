"""Answers to devices that always listen: handed over at once, and what becomes of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from edgehub.clock import ManualClock
from edgehub.heads.lora.downlinks import REPORT_S, Downlinks, windows_of
from edgehub.heads.lora.stations import Stations
from edgehub.lora.regions import EU868

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

STATION = 0xA1
DEV_EUI = 0x70B3D57ED0000001


class RecordingLink:
    """The connection of a station that keeps what it gets."""

    address = "test"

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: Mapping[str, Any]) -> bool:
        """Keep a message."""
        self.sent.append(dict(message))
        return True

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Radio:
    """Downlinks through one station."""

    def __init__(self, *, is_connected: bool = True) -> None:
        self.clock = ManualClock()
        self.stations = Stations([STATION], self.clock)
        self.downlinks = Downlinks(EU868, self.stations, self.clock)
        self.link = RecordingLink()
        self.written = 0
        station = self.stations.get(STATION)
        assert station is not None
        if is_connected:
            self.stations.attach(station, self.link)

    def send(self) -> Coroutine[None, None, bool]:
        """Send to a device of class C."""

        def written() -> None:
            self.written += 1

        return self.downlinks.send_now(DEV_EUI, b"\x60", STATION, windows_of(EU868, 1), written)


async def test_a_message_is_with_its_station_before_anything_else_runs() -> None:
    """A loop that is busy takes milliseconds for each turn that it would wait."""
    radio = Radio()
    sent = radio.send()
    [message] = radio.link.sent
    assert (message["msgtype"], message["dC"], message["pdu"]) == ("dnmsg", 2, "60")
    assert (message["RX2DR"], message["RX2Freq"]) == (0, 869_525_000)
    assert radio.written == 1
    radio.downlinks.transmitted(STATION, message["diid"])
    assert await sent
    assert radio.downlinks.counts == {"class_c": 1, "sent": 1}


async def test_what_a_station_does_not_report_was_not_sent() -> None:
    """It is counted after a while."""
    radio = Radio()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(radio.send())
        await asyncio.sleep(0)
        await radio.clock.advance(REPORT_S + 0.1)
    assert waiting.result() is False
    assert radio.downlinks.counts == {"class_c": 1, "unsent": 1}


async def test_without_its_station_a_message_is_missed() -> None:
    """It has not left the hub."""
    radio = Radio(is_connected=False)
    assert not await radio.send()
    assert radio.written == 0
    assert radio.downlinks.counts == {"missed": 1}
