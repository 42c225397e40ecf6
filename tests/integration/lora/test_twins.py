"""LoRaWAN devices whose keys and settings are in their twins upstream, with a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from edgehub.cli.refusal import CommandError
from edgehub.lab.radio.device import SimulatedLorawanDevice
from tests.support.broker_hub import running_hub
from tests.support.lora import (
    APP_KEY,
    APP_S_KEY,
    NWK_S_KEY,
    ROUTES,
    STATIONS,
    a_station,
    abp_session,
    answer,
)
from tests.support.mosquitto import Mosquitto
from tests.support.twin_responder import TwinResponder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

DEV_EUI = 0x70B3D57ED0000001
NAME = f"{DEV_EUI:016X}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def responder(broker: Mosquitto) -> Iterator[TwinResponder]:
    """Return what answers for twins there."""
    with TwinResponder(broker.port, knows_all=False) as responder:
        yield responder


def twin_hub(folder: Path, broker: Mosquitto) -> AbstractAsyncContextManager[BrokerHub]:
    """Run a hub that finds LoRaWAN devices in twins at a broker."""
    sections: dict[str, Any] = {
        "upstream": {
            "type": "mqtt",
            "host": "127.0.0.1",
            "port": broker.port,
            "identity": "device",
        },
        "affinity": {"registry": "twin"},
        "lora": {"port": 0, "stations": [f"{each:016X}" for each in STATIONS]},
    }
    return running_hub(folder, routes=ROUTES, **sections)


def sent(hub: BrokerHub) -> int:
    """Count what the peer has confirmed."""
    return int(hub.endpoint()["sent_total"])


def counted(hub: BrokerHub, what: str) -> int:
    """Return how many joins, or frames of unknown devices, became what."""
    return int(hub.hub.status()["lora"]["joins"].get(what, 0))


async def test_a_device_joins_by_its_twin_and_goes_on_after_a_restart(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """Its session is reported, in the kit's names too, and its address is known again."""
    responder.twin(NAME)["desired"] |= {
        "AppKey": APP_KEY.hex().upper(),
        "AppEUI": "",
        "GatewayID": "",
        "ClassType": "A",
        "KeepAliveTimeout": 300,
        "SensorDecoder": "of others",
    }
    device = SimulatedLorawanDevice(DEV_EUI, APP_KEY)
    async with twin_hub(tmp_path / "hub", broker) as hub, a_station(hub) as station:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        assert (await hub.call("lora device add", dev_eui=NAME))["joins"] == 0
        await station.hear(device.join_request())
        await answer(station, device)
        await station.hear(device.uplink(b"one", confirmed=True))
        await answer(station, device)
        await hub.until(lambda: sent(hub) == 1)
        listed = await hub.call("lora device list", limit=10)
        assert [row["dev_eui"] for row in listed["devices"]] == [NAME]
        shown = await hub.call("lora device show", dev_eui=NAME)
        assert (shown["joins"], shown["activation"]) == (1, "otaa")
    reported = responder.twin(NAME)["reported"]
    assert reported["DevAddr"] == shown["dev_addr"]
    assert reported["DevNonce"] == device.dev_nonce - 1
    assert len(reported["AppSKey"]) == 32
    async with twin_hub(tmp_path / "hub", broker) as hub, a_station(hub) as station:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        await station.hear(device.uplink(b"two", confirmed=True))
        await answer(station, device)
        await hub.until(lambda: sent(hub) == 1)
        assert (await hub.call("lora device forget-nonces", dev_eui=NAME))["forgotten"] == 1
        assert responder.twin(NAME)["reported"]["edgehub"]["dev_nonces"] == []


async def test_frames_of_strangers_open_no_session_upstream(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """Joins of a device that was not named, and of one that was by other keys, and their data."""
    responder.twin(NAME)["desired"] |= {"AppKey": APP_KEY.hex().upper()}
    stranger = SimulatedLorawanDevice(DEV_EUI + 1, APP_KEY)
    stranger.personalise(0x26000001, abp_session(NWK_S_KEY, APP_S_KEY))
    forger = SimulatedLorawanDevice(DEV_EUI, bytes(16))
    async with twin_hub(tmp_path / "hub", broker) as hub, a_station(hub) as station:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        await hub.call("lora device add", dev_eui=NAME)
        for _ in range(2):
            await station.hear(forger.join_request())
        await hub.until(lambda: counted(hub, "join_join_mic_failed") == 2)
        asked = list(responder.asked)
        for _ in range(20):
            await station.hear(stranger.join_request())
            await station.hear(stranger.uplink(b"?"))
            await station.hear(forger.join_request())
        await hub.until(lambda: counted(hub, "unknown_device") == 20)
        await hub.until(lambda: counted(hub, "join_join_mic_failed") == 22)
        await hub.until(
            lambda: hub.hub.status()["affinity"]["frames"] == {"no_device_by_address": 20}
        )
        assert responder.asked == asked
        assert hub.hub.status()["affinity"]["devices"] == 1
        genuine = SimulatedLorawanDevice(DEV_EUI, APP_KEY)
        await station.hear(genuine.join_request())
        await answer(station, genuine)


async def test_a_personalised_device_is_read_once_and_then_found_by_its_address(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """Twins cannot be searched, so its DevEUI is named; what was counted upstream counts."""
    responder.twin(NAME)["desired"] |= {
        "NwkSKey": NWK_S_KEY.hex().upper(),
        "AppSKey": APP_S_KEY.hex().upper(),
        "DevAddr": "26000001",
        "ABPRelaxMode": False,
        "FCntUpStart": 5,
        "Deduplication": "Drop",
    }
    device = SimulatedLorawanDevice(DEV_EUI, APP_KEY)
    device.personalise(0x26000001, abp_session(NWK_S_KEY, APP_S_KEY))
    async with twin_hub(tmp_path / "hub", broker) as hub, a_station(hub) as station:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        added = await hub.call("lora device add", dev_eui=NAME)
        assert (added["dev_addr"], added["activation"]) == ("26000001", "abp")
        await station.hear(device.uplink(b"old"))
        device.f_cnt = 6
        await station.hear(device.uplink(b"new", confirmed=True))
        await answer(station, device)
        await hub.until(lambda: sent(hub) == 1)
        frames = hub.hub.status()["affinity"]["frames"]
        assert frames == {"invalid_frame_counter": 1, "processed": 1}
        with pytest.raises(CommandError, match="desired properties"):
            await hub.call("lora device add", dev_eui=NAME, app_key=APP_KEY.hex())
        with pytest.raises(CommandError, match="desired properties"):
            await hub.call("lora device import", devices="dev_eui\n")
        assert (await hub.call("lora device remove", dev_eui=NAME))["removed"]


async def test_what_a_twin_says_wrong_is_named(
    tmp_path: Path, broker: Mosquitto, responder: TwinResponder
) -> None:
    """The device is not taken, and the operator learns which member it is."""
    responder.twin(NAME)["desired"] |= {"AppKey": "0123"}
    async with twin_hub(tmp_path / "hub", broker) as hub:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        with pytest.raises(CommandError, match=r"desired\.AppKey.*32 hex digits"):
            await hub.call("lora device add", dev_eui=NAME)
        with pytest.raises(CommandError, match="no twin"):
            await hub.call("lora device add", dev_eui="70B3D57ED0000009")
