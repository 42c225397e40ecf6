"""Messages of a broker's devices, heard by several hubs: one of them stores each."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.broker_hub import BrokerHub, broker_hub, sender
from tests.support.mosquitto import Mosquitto
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import aiomqtt

pytestmark = pytest.mark.integration

DEVICES = ["site/{device}/#", "line/{device}/{module}/#"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Return a running Redis."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


async def send(client: aiomqtt.Client, topic: str, sequence: object, body: str) -> None:
    """Publish a message with a number."""
    said = Properties(PacketTypes.PUBLISH)
    said.UserProperty = [("sequence", str(sequence))]
    await client.publish(topic, body, qos=1, properties=said)


async def stored(hub: BrokerHub) -> list[str]:
    """Return the bodies that a hub keeps."""
    return [row["body"] for row in await hub.rows()]


async def test_each_message_is_stored_by_one_of_two_hubs(
    tmp_path: Path, broker: Mosquitto, redis: RedisServer
) -> None:
    """Both acknowledge it; what is not numbered, of a module or of no sender is stored by both."""
    async with AsyncExitStack() as stack:
        hubs = [
            await stack.enter_async_context(
                broker_hub(
                    tmp_path / name,
                    broker.port,
                    broker={"devices": DEVICES, "client_id": f"{name}-broker"},
                    hub_id=name,
                    redis={"url": redis.url},
                    affinity={"coordinator": "redis", "processing_delay_ms": 100},
                )
            )
            for name in ("hub-a", "hub-b")
        ]
        client = await stack.enter_async_context(sender(broker.port))
        for hub in hubs:
            await hub.until_subscribed("#")
        for number in range(1, 6):
            for device in ("d1", "d2", "d3"):
                await send(client, f"site/{device}/t", number, f"{device}/{number}")
        for topic, sequence in (
            ("line/d4/m1/t", 1),
            ("other", 1),
            ("site/d1/t", -1),
            ("site/d1/t", "x"),
            ("site/d1/t", 2**32),
            ("site/d1/t", "1.0"),
        ):
            await send(client, topic, sequence, "both")
        for hub in hubs:
            await hub.until(lambda hub=hub: hub.broker["acknowledged_total"] == 21)
        rows = [await stored(hub) for hub in hubs]
    elected = [[body for body in bodies if body != "both"] for bodies in rows]
    wanted = sorted(f"{device}/{number}" for device in ("d1", "d2", "d3") for number in range(1, 6))
    assert sorted(elected[0] + elected[1]) == wanted
    for bodies in rows:
        assert bodies.count("both") == 6
    for device in ("d1", "d2", "d3"):
        holders = [any(body.startswith(device) for body in bodies) for bodies in elected]
        assert holders.count(True) == 1, "the first hub keeps a device"


async def test_without_a_coordinator_the_broker_is_not_acknowledged(
    tmp_path: Path, broker: Mosquitto, redis: RedisServer
) -> None:
    """The message waits, and is stored once it is back; others of the broker go through before."""
    async with (
        broker_hub(
            tmp_path / "hub",
            broker.port,
            broker={"devices": DEVICES},
            redis={"url": redis.url},
            affinity={"coordinator": "redis"},
        ) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        await send(client, "site/d1/t", 1, "one")
        await hub.until(lambda: hub.broker["acknowledged_total"] == 1)
        await asyncio.to_thread(redis.stop)
        await send(client, "site/d1/t", 2, "two")
        await hub.until(lambda: hub.broker["holding"])
        assert hub.broker["acknowledged_total"] == 1
        await asyncio.to_thread(redis.start)
        await hub.until(lambda: hub.broker["acknowledged_total"] == 2)
        assert await stored(hub) == ["one", "two"]


async def test_a_message_that_comes_again_is_stored_once(tmp_path: Path, broker: Mosquitto) -> None:
    """As a broker sends again what was not confirmed in time."""
    async with (
        broker_hub(
            tmp_path / "hub",
            broker.port,
            broker={"devices": DEVICES},
            affinity={"coordinator": "in-process"},
        ) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        for sequence in (1, 2, 2, 1, 3):
            await send(client, "site/d1/t", sequence, str(sequence))
        await hub.until(lambda: hub.broker["acknowledged_total"] == 5)
        found = await stored(hub)
        assert [body for body in found if body != "1"] == ["2", "3"]
