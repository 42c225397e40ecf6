"""What devices are asked of their radio: data rate, power, repetitions, channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.lab.radio.device import ReceivedDownlink
from edgehub.lora.mac_commands import MacCommand
from tests.support.lora import a_station, answer, joined, lora_hub, personalised

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.lab.radio.device import SimulatedLorawanDevice
    from edgehub.lab.radio.station import SimulatedStation

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001
GRANTED = MacCommand(
    name="LinkADRAns", values={"channel_mask_ack": 1, "data_rate_ack": 1, "power_ack": 1}
)
REFUSED = MacCommand(
    name="LinkADRAns", values={"channel_mask_ack": 1, "data_rate_ack": 0, "power_ack": 1}
)


async def commands(
    station: SimulatedStation, device: SimulatedLorawanDevice
) -> list[tuple[int, int, int, int]]:
    """Return data rate, power, mask control and mask of each LinkADRReq in the next answer."""
    received, _ = await answer(station, device)
    assert isinstance(received, ReceivedDownlink)
    names = ("data_rate", "tx_power", "ch_mask_cntl", "ch_mask")
    return [
        tuple(command.values[name] for name in names)  # type: ignore[misc]
        for command in received.commands
        if command.name == "LinkADRReq"
    ]


async def test_a_strong_device_becomes_faster_and_quieter(tmp_path: Path) -> None:
    """Once it has granted that it is not asked again, also after a restart of the hub."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await joined(hub, station, DEV_EUI)
        await station.hear(device.uplink(b"1", adr=True), dr=0, snr=8.0)
        assert await commands(station, device) == [(5, 1, 0, 0xFF)]
        frame = device.uplink(b"2", adr=True, commands=(GRANTED,), confirmed=True)
        await station.hear(frame, dr=5, snr=8.0)
        assert await commands(station, device) == [(5, 2, 0, 0xFF)]
        frame = device.uplink(b"3", adr=True, commands=(GRANTED,), confirmed=True)
        await station.hear(frame, dr=5, snr=2.0)
        await answer(station, device)
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        await station.hear(device.uplink(b"4", adr=True, confirmed=True), dr=5, snr=2.0)
        assert await commands(station, device) == []


async def test_a_device_that_refuses_or_decides_itself_is_left_alone(tmp_path: Path) -> None:
    """Without its ADR flag nothing is asked; what it refused is not asked again."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        await station.hear(device.uplink(b"1", confirmed=True), dr=0, snr=8.0)
        assert await commands(station, device) == []
        await station.hear(device.uplink(b"2", adr=True), dr=0, snr=8.0)
        assert await commands(station, device) == [(5, 1, 0, 0x07)], "it knows three channels"
        frame = device.uplink(b"3", adr=True, commands=(REFUSED,), confirmed=True)
        await station.hear(frame, dr=0, snr=8.0)
        assert await commands(station, device) == []


async def test_rates_are_left_alone_where_the_hub_is_told_so(tmp_path: Path) -> None:
    """`adr = false`."""
    async with lora_hub(tmp_path, adr=False) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        await station.hear(device.uplink(b"1", adr=True, confirmed=True), dr=0, snr=8.0)
        assert await commands(station, device) == []


async def test_an_older_device_is_told_which_channels_are_heard(tmp_path: Path) -> None:
    """Newer ones learn it by their join; both leave exactly the sub-band of the stations."""
    settings = {"region": "US915", "sub_band": 2}
    async with lora_hub(tmp_path, **settings) as hub, a_station(hub) as station:
        assert station.config["region"] == "US915"
        heard = {"dr": 3, "hz": 903_900_000}
        newer = await joined(hub, station, DEV_EUI, heard=heard)
        assert newer.accept is not None
        assert newer.accept.cf_list.hex() == "00ff0000000000000200000000000001"
        older = await joined(hub, station, DEV_EUI + 1, heard=heard, mac_version="1.0.2")
        assert older.accept is not None
        assert older.accept.cf_list == b""
        await station.hear(older.uplink(b"1"), **heard)
        assert await commands(station, older) == [(3, 0, 7, 0x02), (3, 0, 0, 0xFF00)]
        frame = older.uplink(b"2", commands=(GRANTED, GRANTED), confirmed=True)
        await station.hear(frame, **heard)
        received, message = await answer(station, older)
        assert isinstance(received, ReceivedDownlink)
        assert received.commands == []
        assert (message["RX1DR"], message["RX1Freq"]) == (13, 923_300_000)
        assert (message["RX2DR"], message["RX2Freq"]) == (8, 923_300_000)


async def test_windows_change_once_the_device_has_granted_it(tmp_path: Path) -> None:
    """An operator asks; it is sent until it is answered, and kept with the session."""
    dev_eui = f"{DEV_EUI:016X}"
    later = MacCommand(name="RXTimingSetupReq", values={"delay": 2})
    status = MacCommand(name="DevStatusReq")
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        with pytest.raises(CommandError, match="RXTimingSetupReq has delay"):
            await hub.call("lora device ask", dev_eui=dev_eui, request=later.name)
        await hub.call("lora device ask", dev_eui=dev_eui, request=later.name, values={"delay": 2})
        waiting = await hub.call("lora device ask", dev_eui=dev_eui, request=status.name)
        assert waiting["waiting"] == [later.name, status.name]
        for _ in range(2):
            await station.hear(device.uplink(b"x"))
            received, message = await answer(station, device)
            assert isinstance(received, ReceivedDownlink)
            assert received.commands == [later, status]
            assert message["RxDelay"] == 1
        answers = (
            MacCommand(name="RXTimingSetupAns"),
            MacCommand(name="DevStatusAns", values={"battery": 220, "margin": -3}),
        )
        await station.hear(device.uplink(b"x", commands=answers))
        received, message = await answer(station, device)
        assert isinstance(received, ReceivedDownlink)
        assert (received.commands, message["RxDelay"]) == ([], 2)
        shown = await hub.call("lora device answers", dev_eui=dev_eui)
        assert shown["waiting"] == []
        assert shown["answers"]["DevStatusAns"] == {"battery": 220, "margin": -3}
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        await station.hear(device.uplink(b"x", confirmed=True))
        _, message = await answer(station, device)
        assert message["RxDelay"] == 2
