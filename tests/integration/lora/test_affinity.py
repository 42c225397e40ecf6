"""Modes of deduplication, pinned devices and repetitions, with real frames at one hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.mqtt.property_bag import DUPLICATE_PROPERTY
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
NAME = f"{DEV_EUI:016X}"


def frames(hub: BrokerHub) -> dict[str, int]:
    """Return data frames by what became of them."""
    return dict(hub.hub.status()["affinity"]["frames"])


@pytest.mark.parametrize(("mode", "marks"), [("mark", [None, "true"]), ("none", [None, None])])
async def test_copies_of_other_stations_are_sent_on_where_that_is_wanted(
    tmp_path: Path, mode: str, marks: list[str | None]
) -> None:
    """`mark` says which is a copy; the device is answered once."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as near, a_station(hub, 1) as far:
        device = await personalised(hub, DEV_EUI)
        await hub.call("device set", device_id=NAME, deduplication=mode)
        frame = device.uplink(b"both", confirmed=True)
        await near.hear(frame, rssi=-40)
        await far.hear(frame, rssi=-100)
        await answer(near, device)
        await hub.until(lambda: hub.depth() == 2)
        rows = await hub.rows()
        assert [row["properties"].get(DUPLICATE_PROPERTY) for row in rows] == marks
        await hub.until(lambda: hub.hub.status()["lora"]["busy"] == 0)
        assert far.downlinks.empty()
        assert near.downlinks.empty()


async def test_a_device_of_another_hub_is_left_to_it(tmp_path: Path) -> None:
    """Neither its data nor its joins are taken here."""
    async with lora_hub(tmp_path) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        joiner = await registered(hub, DEV_EUI + 1)
        for name in (NAME, f"{DEV_EUI + 1:016X}"):
            await hub.call("device set", device_id=name, gateway_id="other-hub")
        await station.hear(device.uplink(b"x", confirmed=True))
        await station.hear(joiner.join_request())
        await hub.until(lambda: frames(hub) == {"belongs_to_another_gateway": 1})
        joins = {"join_belongs_to_another_gateway": 1}
        await hub.until(lambda: hub.hub.status()["lora"]["joins"] == joins)
        assert (hub.depth(), station.downlinks.empty()) == (0, True)


async def test_a_confirmed_frame_is_answered_three_more_times(tmp_path: Path) -> None:
    """Then the device repeats itself for another reason."""
    clock = ForwardClock()
    async with lora_hub(tmp_path, clock=clock) as hub, a_station(hub) as station:
        device = await personalised(hub, DEV_EUI)
        device.f_cnt = 7
        frame = device.uplink(b"once", confirmed=True)
        for _ in range(4):
            await station.hear(frame)
            await answer(station, device)
            clock.later_s += 3
        await station.hear(frame)
        await hub.until(lambda: frames(hub) == {"processed": 4, "repetition": 1})
        assert (hub.depth(), station.downlinks.empty()) == (1, True)
