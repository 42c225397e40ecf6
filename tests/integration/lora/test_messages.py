"""Messages to LoRaWAN devices: in their windows, at once for class C, acknowledged, refused."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.heads.lora.answers import RESERVED_AHEAD, RESERVED_MIN
from edgehub.hub.store import StorePart
from edgehub.lab.radio.device import ReceivedDownlink
from tests.support.lora import (
    STATIONS,
    ForwardClock,
    a_station,
    answer,
    joined,
    lora_hub,
    personalised,
)

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.lab.radio.device import SimulatedLorawanDevice
    from edgehub.lab.radio.station import SimulatedStation
    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001
NAME = f"{DEV_EUI:016X}"


async def send(hub: BrokerHub, body: str, **properties: str) -> None:
    """Send a message to the device."""
    await hub.call("device send", device_id=NAME, body=body, properties=properties)


def ended(hub: BrokerHub) -> dict[str, int]:
    """Return what became of messages, as far as any has ended."""
    counts = hub.hub.status()["device_bound"]["ended_total"]
    return {name: count for name, count in counts.items() if count}


async def received(
    station: SimulatedStation, device: SimulatedLorawanDevice
) -> tuple[ReceivedDownlink, dict[str, Any]]:
    """Wait for an answer with data."""
    found, message = await answer(station, device)
    assert isinstance(found, ReceivedDownlink)
    return found, message


async def test_a_message_waits_for_the_next_frame_of_its_device(tmp_path: Path) -> None:
    """By priority, one a frame; the device is told that more waits."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await joined(hub, station, DEV_EUI)
        await send(hub, "second")
        await hub.call("device send", device_id=NAME, body="first", priority=0)
        await station.hear(device.uplink(b"1"))
        found, message = await received(station, device)
        assert (found.payload, found.frame.f_port, found.frame.f_pending) == (b"first", 1, True)
        assert (message["dC"], message["RX1DR"], message["RX2DR"]) == (0, 5, 0)
        await hub.until(lambda: ended(hub) == {"Success": 1})
        await station.hear(device.uplink(b"2", confirmed=True))
        found, _ = await received(station, device)
        assert (found.payload, found.frame.f_pending, found.frame.ack) == (b"second", False, True)
        await hub.until(lambda: ended(hub) == {"Success": 2})
        await station.hear(device.uplink(b"3"))
        await hub.until(lambda: hub.depth() == 3)
        assert station.downlinks.empty()


async def test_a_confirmed_message_is_repeated_until_it_is_acknowledged(tmp_path: Path) -> None:
    """The device's next frame says whether it arrived."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        await send(hub, "open", loraConfirmed="true", loraPort="42")
        await station.hear(device.uplink(b"1"))
        async with asyncio.timeout(5):
            await station.downlinks.get()  # the device does not hear it
        await station.hear(device.uplink(b"2"))
        found, _ = await received(station, device)
        assert (found.payload, found.frame.f_port) == (b"open", 42)
        assert found.frame.is_confirmed
        assert ended(hub) == {}
        await station.hear(device.uplink(b"3"))
        await hub.until(lambda: ended(hub) == {"Success": 1})


async def test_what_no_device_can_take_becomes_a_dead_letter(tmp_path: Path) -> None:
    """A port that does not exist, and more than fits at any data rate of the windows."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        await send(hub, "x", loraPort="224")
        await send(hub, "x" * 243)
        await send(hub, "x" * 242)
        await station.hear(device.uplink(b"1"))
        found, message = await received(station, device)
        assert found.payload == b"x" * 242
        assert "RX2DR" not in message, "it fits into the first window alone"
        await hub.until(lambda: ended(hub) == {"Rejected": 2, "Success": 1})
        letters = (await hub.call("device messages", device_id=NAME))["dead_letters"]
        assert any("want a port from 1 to 223" in str(each) for each in letters)
        assert any("243 bytes, and 242 fit" in str(each) for each in letters)


async def test_a_device_of_class_c_gets_a_message_at_once(tmp_path: Path) -> None:
    """Through the station that heard it last, also after a restart of the hub."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI, device_class="C")
        await station.hear(device.uplink(b"hello", confirmed=True))
        await received(station, device)
        await send(hub, "now", loraConfirmed="true")
        found, message = await received(station, device)
        assert (found.payload, message["dC"]) == (b"now", 2)
        assert (message["RX2DR"], message["RX2Freq"]) == (0, 869_525_000)
        assert "xtime" not in message
        await station.hear(device.uplink(b"heard"))
        await hub.until(lambda: ended(hub) == {"Success": 1})
    async with lora_hub(tmp_path) as hub:
        await send(hub, "later")
        await hub.until(lambda: hub.hub.status()["lora"]["downlinks"].get("missed", 0) >= 1)
        async with a_station(hub) as station:
            found, _ = await answer(station, device, timeout_s=10)
            assert isinstance(found, ReceivedDownlink)
            assert found.payload == b"later"
            await hub.until(lambda: ended(hub) == {"Success": 1})


async def test_counters_are_written_down_before_a_message_needs_them(tmp_path: Path) -> None:
    """A message to a device that always listens waits for no second commit; later ones rarer."""
    reserved = RESERVED_MIN
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI, device_class="C")
        await station.hear(device.uplink(b"hello", confirmed=True))
        await received(station, device)
        used = device.f_cnt_down
        for number in range(reserved - RESERVED_AHEAD - 1):
            await send(hub, str(number))
            await received(station, device)
        assert device.f_cnt_down == used + reserved - RESERVED_AHEAD - 1
        shown: dict[str, int] = {}
        for _ in range(100):
            shown = await hub.call("lora device show", dev_eui=NAME)
            if shown["f_cnt_down"] > reserved:
                break
        assert shown["f_cnt_down"] == reserved + 2 * reserved
        for number in range(reserved):
            await send(hub, str(number))
            await received(station, device)


async def test_a_restart_skips_few_counters_of_a_device_that_hears_nothing(tmp_path: Path) -> None:
    """It would refuse all that follows a gap of 16 384, for ever."""
    for restarts in range(3):
        async with lora_hub(tmp_path) as hub, a_station(hub) as station:
            if restarts == 0:
                device = await personalised(hub, DEV_EUI, device_class="C")
            await station.hear(device.uplink(b"hello", confirmed=True))
            await received(station, device)
            assert device.f_cnt_down <= 16 * restarts


async def test_a_message_on_its_way_while_the_hub_stops_is_not_sent_again(tmp_path: Path) -> None:
    """The drain waits for the station's report."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        await send(hub, "once")
        station.reports = False
        await station.hear(device.uplink(b"1"))
        found, message = await received(station, device)
        assert found.payload == b"once"
        hub.hub.stop()
        await hub.until(lambda: hub.hub.status()["phase"] == "draining")
        await station.report(message)
        await hub.until(lambda: ended(hub) == {"Success": 1})
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        await station.hear(device.uplink(b"2"))
        await hub.until(lambda: hub.depth() == 2)
        await hub.until(lambda: hub.hub.status()["lora"]["busy"] == 0)
        assert station.downlinks.empty()


async def test_an_answer_that_is_late_uses_the_second_window_or_is_counted(tmp_path: Path) -> None:
    """The time is that since the frame came, by the monotonic clock."""
    clock = ForwardClock()
    async with lora_hub(tmp_path, clock=clock) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        [store] = [part.store for part in hub.hub.parts if isinstance(part, StorePart)]
        for later_s, window in ((1.2, "rx2"), (3.0, "missed")):
            await hub.until(lambda: hub.hub.status()["lora"]["busy"] == 0)
            # The disk takes its time, and the answer follows the commit.
            is_late = threading.Event()
            written = store.database.submit(lambda _: is_late.wait(10))  # noqa: B023 - awaited
            await station.hear(device.uplink(b"x", confirmed=True))
            await hub.until(lambda: hub.hub.status()["lora"]["busy"] == 1)
            clock.later_s += later_s
            is_late.set()
            assert await written
            await hub.until(lambda: hub.hub.status()["lora"]["downlinks"].get(window) == 1)  # noqa: B023 - awaited
        async with asyncio.timeout(5):
            message = await station.downlinks.get()
        assert "RX1DR" not in message
        assert station.downlinks.empty()
        assert STATIONS[0] == station.station_id
