"""A hub with LoRaWAN stations in the test's own process, and what hears devices for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from edgehub.clock import SystemClock
from edgehub.hub.lora import LoraPart
from edgehub.lab.radio.device import ReceivedDownlink, SimulatedLorawanDevice
from edgehub.lab.radio.station import SimulatedStation
from edgehub.lora.device import LorawanSession
from tests.support.broker_hub import running_hub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from edgehub.clock import Clock
    from edgehub.lora.frames import JoinAcceptFields
    from tests.support.broker_hub import BrokerHub

STATIONS = (0xB827EBFFFE000001, 0xB827EBFFFE000002)
ROUTES = {"all": "FROM /messages/* INTO $upstream"}
APP_KEY = bytes(range(16))
NWK_S_KEY = bytes([11] * 16)
APP_S_KEY = bytes([12] * 16)


class ForwardClock(SystemClock):
    """The system's clock, put forward by a test.

    Attributes:
        later_s: By how much.
    """

    def __init__(self) -> None:
        super().__init__()
        self.later_s = 0.0

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return super().monotonic() + self.later_s


@contextlib.asynccontextmanager
async def lora_hub(
    folder: Path, *, clock: Clock | None = None, **lora: Any
) -> AsyncIterator[BrokerHub]:
    """Run a hub that takes the stations of `STATIONS`; `lora` are further settings."""
    section = {"port": 0, "stations": [f"{each:016X}" for each in STATIONS], **lora}
    async with running_hub(folder, routes=ROUTES, clock=clock, lora=section) as hub:
        yield hub


def uri(hub: BrokerHub, scheme: str = "ws") -> str:
    """Return where its stations connect."""
    [head] = [part.head for part in hub.hub.parts if isinstance(part, LoraPart)]
    assert head is not None
    return f"{scheme}://127.0.0.1:{head.addresses[0][1]}"


def a_station(hub: BrokerHub, number: int = 0) -> SimulatedStation:
    """Return a station of a hub, not connected yet."""
    return SimulatedStation(uri(hub), STATIONS[number], clock=SystemClock())


def abp_session(nwk_s_key: bytes, app_s_key: bytes) -> LorawanSession:
    """Return a session of 1.0."""
    key = nwk_s_key.hex()
    return LorawanSession(
        f_nwk_s_int_key=key, s_nwk_s_int_key=key, nwk_s_enc_key=key, app_s_key=app_s_key.hex()
    )


async def answer(
    station: SimulatedStation, device: SimulatedLorawanDevice, timeout_s: float = 5
) -> tuple[ReceivedDownlink | JoinAcceptFields, dict[str, Any]]:
    """Wait for an answer to a device; returns what the device reads, and the station's message."""
    async with asyncio.timeout(timeout_s):
        message = await station.downlinks.get()
    return device.receive(bytes.fromhex(message["pdu"])), message


async def registered(
    hub: BrokerHub, dev_eui: int, *, nwk_key: bytes | None = None, **members: Any
) -> SimulatedLorawanDevice:
    """Register a device that joins; with a second root key it is one of 1.1."""
    if nwk_key is not None:
        members |= {"mac_version": "1.1", "nwk_key": nwk_key.hex()}
    await hub.call("lora device add", dev_eui=f"{dev_eui:016X}", app_key=APP_KEY.hex(), **members)
    return SimulatedLorawanDevice(dev_eui, APP_KEY, nwk_key=nwk_key)


async def joined(
    hub: BrokerHub,
    station: SimulatedStation,
    dev_eui: int,
    *,
    heard: dict[str, int] | None = None,
    **members: Any,
) -> SimulatedLorawanDevice:
    """Register a device and have it join; `heard` is on what the station hears it."""
    device = await registered(hub, dev_eui, **members)
    await station.hear(device.join_request(), **(heard or {}))
    await answer(station, device)
    return device


async def personalised(
    hub: BrokerHub, dev_eui: int, dev_addr: int = 0x26000001, **members: Any
) -> SimulatedLorawanDevice:
    """Register a device with a session for good (ABP)."""
    await hub.call(
        "lora device add",
        dev_eui=f"{dev_eui:016X}",
        dev_addr=f"{dev_addr:08X}",
        nwk_s_key=NWK_S_KEY.hex(),
        app_s_key=APP_S_KEY.hex(),
        **members,
    )
    device = SimulatedLorawanDevice(dev_eui, APP_KEY)
    device.personalise(dev_addr, abp_session(NWK_S_KEY, APP_S_KEY))
    return device
