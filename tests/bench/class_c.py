"""From `device send` to `dnmsg` for a device of class C, by what the uplink has to do."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from edgehub.clock import SystemClock
from edgehub.lab.radio.device import SimulatedLorawanDevice
from edgehub.lab.radio.station import SimulatedStation
from edgehub.lora.identifiers import eui_text
from tests.bench.tools import FLOOD, LOAD_TIMEOUT_S, HubProcess, Receiver, a_hub, flood
from tests.support.lora import APP_S_KEY, NWK_S_KEY, abp_session
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    Figures = dict[str, float]

STATION: Final = 0xA1
DEV_EUI: Final = 0x70B3D57ED0000001
MESSAGES: Final = 500
LOADS: Final[dict[str, dict[str, int] | None]] = {
    "idle": None,
    "2000": {"connections": 50, "window": 10, "rate": 2000},
    "saturated": {"connections": 10, "window": 20},
}
"""Messages through the hub beside those to the device, None = there are none."""


def class_c(folder: Path) -> Figures:
    """Time messages to one device, one after the other, with each load of the uplink."""
    port, sink = free_port(), Receiver("sink", 0, FLOOD, timeout=1 + len(LOADS) * LOAD_TIMEOUT_S)
    station = f'[lora]\nport = {port}\nstations = ["{eui_text(STATION)}"]\n'
    figures: Figures = {}
    try:
        with a_hub(folder, upstream_port=sink.port, further=station) as hub:
            hub.call(
                "lora device add",
                dev_eui=eui_text(DEV_EUI),
                dev_addr="26000001",
                nwk_s_key=NWK_S_KEY.hex(),
                app_s_key=APP_S_KEY.hex(),
                device_class="C",
            )
            for f_cnt, (name, load) in enumerate(LOADS.items()):
                sent = hub.call("status")["endpoints"][0]["sent_total"]
                before = time.monotonic()
                with contextlib.ExitStack() as stack:
                    if load is not None:
                        stack.enter_context(flood(hub.mqtt_port, **load))
                    taken = sorted(asyncio.run(_class_c(hub, port, f_cnt)))
                elapsed_s = time.monotonic() - before
                sent = hub.call("status")["endpoints"][0]["sent_total"] - sent
                figures |= {
                    f"class_c_{name}_p50_ms": statistics.median(taken),
                    f"class_c_{name}_p99_ms": taken[int(len(taken) * 0.99)],
                    f"class_c_{name}_uplink_msgs_s": sent / elapsed_s,
                }
    finally:
        sink.close()
    return figures


async def _class_c(hub: HubProcess, port: int, f_cnt: int) -> list[float]:
    device = SimulatedLorawanDevice(DEV_EUI, bytes(16))
    device.personalise(0x26000001, abp_session(NWK_S_KEY, APP_S_KEY))
    device.f_cnt = f_cnt
    taken = []
    async with SimulatedStation(f"ws://127.0.0.1:{port}", STATION, clock=SystemClock()) as station:
        await station.hear(device.uplink(b"here", confirmed=True))
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            await station.downlinks.get()
            for _ in range(MESSAGES):
                before = time.perf_counter()
                send = partial(hub.call, "device send", device_id=eui_text(DEV_EUI), body="on")
                sending = asyncio.create_task(asyncio.to_thread(send))
                await station.downlinks.get()
                taken.append((time.perf_counter() - before) * 1000)
                await sending
    return taken
