"""Pump and MQTT endpoint through a thin link to a real Mosquitto, on real time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.lab.demo.thin_link import ThinLink
from tests.support.memory_queue import a_row
from tests.support.mosquitto import Mosquitto
from tests.support.subscriber import subscriber
from tests.support.uplink import uplink

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

BIT_S = 64_000
BARE_S = 270 * 8 / BIT_S
SETTLING_S = 2.0
MEASURED_S = 6.0
ALARM_EVERY_S = 0.37


async def test_alarms_pass_a_saturated_link_and_it_stays_full(tmp_path: Path) -> None:
    """64 kbit/s: alarms wait little more than half a second, at least 90 % of the link is used."""
    clock = SystemClock()
    with Mosquitto(tmp_path) as broker:
        link = ThinLink("127.0.0.1", broker.port, up_bit_s=BIT_S, down_bit_s=BIT_S, clock=clock)
        await link.open()
        async with (
            asyncio.TaskGroup() as group,
            subscriber(broker.port) as parent,
            uplink(link.port) as up,
        ):
            serving = group.create_task(link.run())
            bulk, alarms = up.queue(), up.queue(0)
            bulk.put(*(a_row(number) for number in range(1000)))
            await asyncio.sleep(SETTLING_S)
            passed, began = link.up.bytes_passed, clock.monotonic()
            published: dict[bytes, float] = {}
            while clock.monotonic() - began < MEASURED_S:
                body = b"alarm %d" % len(published)
                published[body] = asyncio.get_running_loop().time()
                alarms.put(a_row(10_000 + len(published), body=body.ljust(200)))
                await asyncio.sleep(ALARM_EVERY_S)
            used = (link.up.bytes_passed - passed) * 8 / BIT_S / (clock.monotonic() - began)
            await up.until(lambda: len(alarms.confirmed) == len(published))
            serving.cancel()
        await link.close()
    arrived = dict(zip((body.rstrip() for body in parent.bodies), parent.times, strict=True))
    waits = sorted(arrived[body] - at - BARE_S for body, at in published.items())
    assert used > 0.9
    # The median is the pump's; the worst one also holds what else the machine did meanwhile.
    assert waits[len(waits) // 2] < 0.8
    assert waits[-1] < 1.5
