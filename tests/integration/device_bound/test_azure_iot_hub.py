"""Messages from Azure IoT Hub to devices: over their own sessions, or the gateway's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from tests.support.broker_hub import running_hub
from tests.support.iot_hub import WAITING_MAX, IotHub, iot_hub
from tests.support.twin_client import twin_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import mqtt5

    from tests.support.broker_hub import BrokerHub
    from tests.support.twin_client import TwinClient

pytestmark = pytest.mark.integration

ROUTES = {"all": "FROM /messages/* INTO $upstream"}


@pytest.fixture
async def azure(tmp_path: Path) -> AsyncIterator[IotHub]:
    """Return an IoT Hub with the gateway and two devices, which has nothing to complain of."""
    async with iot_hub() as hub:
        hub.enrol(tmp_path, "gw", "d1", "d2")
        yield hub
        assert hub.faults == []


@asynccontextmanager
async def listening(hub: BrokerHub, device_id: str) -> AsyncIterator[TwinClient]:
    """Sign a device in that takes messages."""
    filters = (f"devices/{device_id}/messages/devicebound/#",)
    async with twin_client(hub.mqtt_port, device_id, filters=filters) as client:
        yield client


def bag_of(packet: mqtt5.PublishPacket) -> dict[str, str]:
    """Return the properties of a message."""
    bag = parse_qs(packet.topic.rpartition("/")[2], keep_blank_values=True)
    return {name: values[0] for name, values in bag.items()}


@pytest.mark.parametrize("device_id", ["d1", "gw"])
async def test_a_message_comes_down(tmp_path: Path, azure: IotHub, device_id: str) -> None:
    """Over the session of its device, or of the gateway; completed once it is stored here."""
    has_sessions = device_id != "gw"
    link = azure.upstream(tmp_path, sessions=has_sessions)
    async with running_hub(tmp_path, upstream=link, routes=ROUTES) as hub:
        early = azure.send(device_id, b"early", kind="a")
        async with listening(hub, device_id) as client:
            first = await client.message()
            late = azure.send(device_id, b"late", expires_s=60, iothub_ack="full")
            second = await client.message()
        await azure.until(lambda: len(azure.completed) == 2)
    assert azure.completed == [early, late]
    assert (bytes(first.payload), bag_of(first)["kind"]) == (b"early", "a")
    assert (bytes(second.payload), bag_of(second)["$.mid"]) == (b"late", late)
    assert bag_of(second)["iothub-ack"] == "full"
    assert bag_of(second)["$.to"] == f"/devices/{device_id}/messages/devicebound"


async def test_a_message_to_an_absent_device_waits_in_the_cloud(
    tmp_path: Path, azure: IotHub
) -> None:
    """Nothing is subscribed for it; the queue of the cloud has its own bound."""
    link = azure.upstream(tmp_path, sessions=True)
    async with running_hub(tmp_path, upstream=link, routes=ROUTES) as hub:
        sent = [azure.send("d1", b"x") for _ in range(WAITING_MAX + 1)]
        assert sent[-1] == ""
        assert azure.completed == []
        async with listening(hub, "d1") as client:
            for _ in range(WAITING_MAX):
                await client.message()
        await azure.until(lambda: azure.completed == sent[:-1])


async def test_the_gateways_session_subscribes_for_the_gateway_alone(
    tmp_path: Path, azure: IotHub
) -> None:
    """IoT Hub would close it over another device's topic, and with it the way of all messages."""
    link = azure.upstream(tmp_path)
    async with (
        running_hub(tmp_path, upstream=link, routes=ROUTES) as hub,
        listening(hub, "d1"),
        listening(hub, "gw") as client,
    ):
        azure.send("gw", b"x")
        assert bytes((await client.message()).payload) == b"x"
        assert hub.endpoint()["state"] == "up"
    assert azure.clients["gw"].connects == 1


async def test_telemetry_goes_up_in_the_name_of_its_device(tmp_path: Path, azure: IotHub) -> None:
    """Each over its own session."""
    link = azure.upstream(tmp_path, sessions=True)
    async with running_hub(tmp_path, upstream=link, routes=ROUTES) as hub:
        for device_id in ("d1", "d2", "gw"):
            async with twin_client(hub.mqtt_port, device_id) as client:
                topic = f"devices/{device_id}/messages/events/kind=alarm"
                client.client.publish(topic, b"{}")
                await azure.until(lambda: azure.events)
                event = azure.events.pop()
                assert (event.sender, event.properties["kind"]) == (device_id, "alarm")


@pytest.mark.parametrize(
    ("sessions", "sender", "said"),
    [
        (False, "d1", "messages of gw alone"),
        (False, "gw/m1", "messages of gw alone"),
        (True, "d1/m1", "no messages of modules"),
    ],
)
async def test_what_the_cloud_would_close_over_is_not_sent(
    tmp_path: Path, azure: IotHub, sessions: bool, sender: str, said: str
) -> None:
    """It is a dead letter that says why, and the way of others stays open."""
    link = azure.upstream(tmp_path, sessions=sessions)
    async with (
        running_hub(tmp_path, upstream=link, routes=ROUTES) as hub,
        twin_client(hub.mqtt_port, sender) as client,
        twin_client(hub.mqtt_port, "gw") as gateway,
    ):
        topic = f"devices/{sender.replace('/', '/modules/')}/messages/events/"
        client.client.publish(topic, b"{}")
        await hub.until(lambda: any("dead letter" in each for each in hub.hub.status()["warnings"]))
        [dead] = (await hub.call("dead list"))["dead_letters"]
        assert said in dead["reason"]
        gateway.client.publish("devices/gw/messages/events/", b"{}")
        await azure.until(lambda: azure.events)
    assert azure.clients["gw"].connects == 1
