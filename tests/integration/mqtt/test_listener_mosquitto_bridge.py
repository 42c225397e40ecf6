"""A real Mosquitto bridges to the listener, with the settings that it has by itself."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from tests.support import mqtt_wire as wire
from tests.support.mosquitto import Mosquitto
from tests.support.mqtt_listener import running
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

STATE = "$SYS/broker/connection/site.hub/state"
END = "site/end"


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the listener says when it is asked: there is no event for it."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


@asynccontextmanager
async def bridged(
    folder: Path, bench: Bench, *lines: str, name: str = f"{socket.gethostname()}.hub"
) -> AsyncIterator[Mosquitto]:
    """Run a Mosquitto with a bridge to the listener, and wait until it has joined."""
    bridge = ["connection hub", f"address 127.0.0.1:{bench.port}", "restart_timeout 1", *lines]
    with Mosquitto(folder / "mosquitto", *bridge) as broker:
        await until(lambda: name in bench.client_ids())
        yield broker


async def taken(client: aiomqtt.Client) -> list[tuple[str, bytes, bool]]:
    """Return what has come up to the message that ends a test, and whether it is retained."""
    found = []
    async with asyncio.timeout(10):
        async for message in client.messages:
            if str(message.topic) == END:
                break
            found.append((str(message.topic), bytes(message.payload), bool(message.retain)))
    return found


async def subscribed(bench: Bench, topic_filter: str) -> None:
    """Wait until the bridge has subscribed at the listener."""
    await until(lambda: any(topic_filter in each.subscriptions for each in bench.connections()))


@pytest.mark.parametrize("version", ["", "mqttv31", "mqttv311", "mqttv50"])
async def test_messages_cross_both_ways_once(tmp_path: Path, version: str) -> None:
    """Topics that both share: each side gets the other's, none comes back, retained ones are so."""
    lines = ["topic site/# both 1", *([f"bridge_protocol_version {version}"] if version else [])]
    async with (
        running(local_topics=("site/#",)) as bench,
        aiomqtt.Client("127.0.0.1", bench.port, identifier="here") as here,
        bridged(tmp_path, bench, *lines) as broker,
        aiomqtt.Client("127.0.0.1", broker.port) as there,
    ):
        await subscribed(bench, "site/#")
        for client in (here, there):
            await client.subscribe("site/#", qos=1)
        await here.publish("site/a", b"1", qos=1, retain=True)
        await there.publish("site/b", b"2", qos=1, retain=True)
        await here.publish("site/c", b"3", qos=1)
        await there.publish("site/d", b"4", qos=1)
        both = {("site/a", b"1", False), ("site/b", b"2", False), ("site/c", b"3", False)}
        await there.publish(END, b"", qos=1)
        seen = [await taken(here), await taken(there)]
        for each in seen:
            assert sorted(each) == sorted({*both, ("site/d", b"4", False)})
        async with aiomqtt.Client("127.0.0.1", broker.port) as late:
            await late.subscribe("site/#", qos=1)
            await there.publish(END, b"", qos=1)
            assert ("site/a", b"1", True) in await taken(late)
        assert {each.topic for each in bench.listener.context.space.retained("site/#")} == {
            "site/a",
            "site/b",
        }
        assert bench.dropped().keys() == {"bridge_state"}


async def test_a_bridge_feeds_devices_to_the_hub(tmp_path: Path) -> None:
    """Topics of the dialect, under an identity that speaks for the devices of the site."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as identities:
        password = PasswordHash.of(b"secret")
        identities["site"] = Identity(id="site", password=password, on_behalf=("press-*",))
    lines = [
        "topic devices/+/messages/events/# out 1",
        "topic devices/press-1/messages/devicebound/# in 1",
        "remote_clientid site",
        "remote_username site",
        "remote_password secret",
    ]
    async with (
        running(identities_file=path) as bench,
        bridged(tmp_path, bench, *lines, name="site") as broker,
        aiomqtt.Client("127.0.0.1", broker.port) as there,
    ):
        await subscribed(bench, "devices/press-1/messages/devicebound/#")
        await there.publish("devices/press-1/messages/events/kind=alarm", b"hot", qos=1)
        (message,) = await bench.router.received(1)
        assert (message.sender, message.body) == ("press-1", b"hot")
        assert message.properties == {"kind": "alarm"}


@pytest.mark.parametrize("name", ["MQTT", "MQIsdp"])
async def test_what_a_bridge_says_of_itself_is_dropped(name: str) -> None:
    """Message and will are acknowledged and counted; nobody is refused, warned or told."""
    level = 0x84 if name == "MQTT" else 0x83
    async with running() as bench:
        client = await RawClient.signed_in(
            bench.port, "bridge", protocol=(name, level), will=(STATE, b"0"), will_flags=0x28
        )
        client.send(wire.publish(STATE, b"1", qos=1, packet_id=7, flags=1))
        assert await client.read_pubacks(1) == [7]
        client.cut()
        await until(lambda: not bench.connections())
        assert bench.dropped() == {"bridge_state": 2}
        assert bench.listener.statistics().wills_total == 0
        assert bench.router.told == []
