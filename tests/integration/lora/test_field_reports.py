"""What broke for users of other network servers: field reports A-02, A-05, A-06 and A-07."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.lab.radio.device import ReceivedDownlink
from edgehub.lora.mac_commands import MacCommand
from tests.support.lora import (
    ForwardClock,
    a_station,
    answer,
    lora_hub,
    personalised,
    registered,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001


def frames(hub: BrokerHub) -> dict[str, int]:
    """Return data frames by what became of them."""
    return dict(hub.hub.status()["affinity"]["frames"])


@pytest.mark.parametrize("ghost_first", [True, False])
async def test_the_ghost_of_a_join_on_another_channel_is_no_second_join(
    tmp_path: Path, ghost_first: bool
) -> None:
    """A-02: one accept, on the channel that was heard better."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await registered(hub, DEV_EUI)
        request = device.join_request()
        copies = [(868_500_000, -92.0), (868_100_000, -31.0)]
        for hz, rssi in copies if ghost_first else copies[::-1]:
            await station.hear(request, hz=hz, rssi=rssi)
        _, message = await answer(station, device)
        assert message["RX1Freq"] == 868_100_000
        await station.hear(device.uplink(b"x"))
        await hub.until(lambda: hub.depth() == 1)
        assert station.downlinks.empty()
        shown = await hub.call("lora device show", dev_eui=f"{DEV_EUI:016X}")
        assert shown["joins"] == 1


async def test_a_copy_that_comes_much_later_is_no_second_message(tmp_path: Path) -> None:
    """A-05: the same counter after 48 s, by another station."""
    clock = ForwardClock()
    async with (
        lora_hub(tmp_path, clock=clock) as hub,
        a_station(hub) as station,
        a_station(hub, 1) as other,
    ):
        device = await personalised(hub, DEV_EUI)
        device.f_cnt = 104
        frame = device.uplink(b"once")
        await station.hear(frame, rssi=-73)
        await hub.until(lambda: hub.depth() == 1)
        clock.later_s += 48
        await other.hear(frame, rssi=-76)
        await hub.until(lambda: frames(hub) == {"processed": 1, "repetition": 1})
        assert hub.depth() == 1


async def test_two_antennas_of_a_station_are_one_station(tmp_path: Path) -> None:
    """A-06: the device is told of one gateway."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        frame = device.uplink(b"x", commands=(MacCommand(name="LinkCheckReq"),))
        await station.hear(frame, rssi=-60)
        await station.hear(frame, rssi=-58)
        received, _ = await answer(station, device)
        assert isinstance(received, ReceivedDownlink)
        assert received.commands[0].values["gw_cnt"] == 1
        assert frames(hub) == {"processed": 1}


async def test_planned_repetitions_are_no_errors(tmp_path: Path) -> None:
    """A-07: three transmissions of one counter are one message, and nothing is refused."""
    clock = ForwardClock()
    async with lora_hub(tmp_path, clock=clock) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        device.f_cnt = 10
        frame = device.uplink(b"thrice")
        async with asyncio.timeout(10):
            for count in (0, 1, 2):
                await station.hear(frame)
                expected = {"processed": 1, **({"repetition": count} if count else {})}
                await hub.until(lambda: frames(hub) == expected)  # noqa: B023 - awaited
                clock.later_s += 2
        assert hub.depth() == 1
