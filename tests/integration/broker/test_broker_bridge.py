"""Topics that a hub and a real Mosquitto share, both ways."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from tests.support.broker_hub import broker_hub, route, sender
from tests.support.mosquitto import Mosquitto
from tests.support.subscriber import subscriber

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


async def test_local_topics_are_shared_both_ways(tmp_path: Path, broker: Mosquitto) -> None:
    """What broker clients publish reaches local ones, and back; nothing comes twice."""
    settings = {"local_topics": ["te/#"], "devices": ["te/device/{device}/#"]}
    async with (
        broker_hub(
            tmp_path / "hub", broker.port, routes={"all": route("te/#")}, broker=settings
        ) as hub,
        sender(broker.port) as client,
        aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="panel") as panel,
    ):
        await hub.until_subscribed("te/#")
        await panel.subscribe("te/#", qos=1)
        async with subscriber(broker.port, "te/#") as site:
            await client.publish("te/device/p1///m/", b"1", qos=1)
            await client.publish("te/device/p1///twin/x", b"2", qos=1, retain=True)
            await panel.publish("te/errors", b"3", qos=1)
            await panel.publish("te/device/p1///cmd/restart/1", b"4", qos=1, retain=True)
            await site.wait(4)
            await hub.until(lambda: hub.depth() == 4)
            assert sorted(site.bodies) == [b"1", b"2", b"3", b"4"]
            got = [await anext(panel.messages) for _ in range(4)]
        assert sorted(bytes(message.payload) for message in got) == [b"1", b"2", b"3", b"4"]
        assert hub.broker["received_total"] == 2
        assert hub.broker["published_total"] == 2
        senders = {row["body"]: row["device"] for row in await hub.rows()}
        assert senders == {"1": "p1", "2": "p1", "3": "panel", "4": "panel"}
        async with subscriber(broker.port, "te/+/+/+/+/cmd/#") as late:
            await late.wait(1)
        async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="late") as late_panel:
            await late_panel.subscribe("te/+/+/+/+/twin/#", qos=1)
            message = await anext(late_panel.messages)
            assert (message.payload, message.retain) == (b"2", True)


async def test_what_is_published_locally_waits_for_the_broker_on_disk(tmp_path: Path) -> None:
    """Errors and commands reach the broker though it was away and the hub was started anew."""
    broker = Mosquitto(tmp_path / "broker")
    settings = {"local_topics": ["te/#"]}
    try:
        async with broker_hub(tmp_path / "hub", broker.port, routes={}, broker=settings) as hub:
            async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="panel") as panel:
                for number in range(20):
                    await panel.publish("te/errors", b"%d" % number, qos=1)
            assert hub.broker["unpublished"] == 20
        await asyncio.to_thread(broker.start)
        async with (
            subscriber(broker.port, "te/#") as site,
            broker_hub(tmp_path / "hub", broker.port, routes={}, broker=settings) as hub,
        ):
            await site.wait(20)
            assert site.bodies == [b"%d" % number for number in range(20)]
            await hub.until(lambda: hub.broker["unpublished"] == 0)
    finally:
        broker.stop()


async def test_a_retained_value_that_is_cleared_while_the_broker_is_away_goes(
    tmp_path: Path,
) -> None:
    """M-12: the clearing waits like any other message, and the broker's value is gone after it."""
    lines = [f"persistence_location {tmp_path}/", "autosave_interval 1", "autosave_on_changes true"]
    broker = Mosquitto(tmp_path / "broker", *lines, "persistence true")
    settings = {"local_topics": ["te/#"]}
    try:
        await asyncio.to_thread(broker.start)
        async with (
            broker_hub(tmp_path / "hub", broker.port, routes={}, broker=settings) as hub,
            aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="panel") as panel,
        ):
            await hub.until_subscribed("te/#")
            await panel.publish("te/door", b"open", qos=1, retain=True)
            async with subscriber(broker.port, "te/#") as site:
                await site.wait(1)
                await hub.until(lambda: hub.broker["published_total"] == 1)
            await asyncio.to_thread(broker.stop)
            await hub.until(lambda: hub.broker["state"] == "down")
            await panel.publish("te/door", b"", qos=1, retain=True)
            await asyncio.to_thread(broker.start)
            async with subscriber(broker.port, "te/#") as site:
                await site.wait(1)
                assert site.bodies == [b"open"]
                await hub.call("config reload")
                await site.wait(2)
                assert site.bodies == [b"open", b""]
            async with subscriber(broker.port, "te/#") as late, sender(broker.port) as client:
                await client.publish("te/last", b"now", qos=1)
                await late.wait(1)
                assert late.arrivals == [("te/last", b"now")]
    finally:
        broker.stop()


async def test_a_finished_command_that_the_broker_has_again_is_cleared_there(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """A broker that was set back, or lost the clearing: the cloud is told nothing twice."""
    command = "te/device/main///cmd/restart/c8y-mapper-7"
    finished = b'{"status":"successful"}'
    settings = {"session_expiry_s": 0}
    mapper = {"enabled": True, "external_id": "gw", "alarm_sync_ms": 0}
    routes = {"all": "FROM /messages/modules/c8y-mapper/* INTO $upstream"}

    async def left_at_the_broker() -> list[tuple[str, bytes]]:
        async with subscriber(broker.port, "te/#") as looker, sender(broker.port) as client:
            await client.publish("te/last", b"now", qos=1)
            await looker.wait(1)
            while looker.arrivals[-1][0] != "te/last":
                await looker.wait(len(looker.arrivals) + 1)
            return looker.arrivals[:-1]

    for _ in range(3):
        async with sender(broker.port) as client:
            await client.publish(command, finished, qos=1, retain=True)
        assert await left_at_the_broker() == [(command, finished)]
        async with broker_hub(
            tmp_path / "hub", broker.port, routes=routes, broker=settings, mapper=mapper
        ) as hub:
            await hub.until(lambda: hub.broker["published_total"] == 1)
            await hub.until(lambda: hub.broker["unpublished"] == 0)
            bodies = [row["body"] for row in await hub.rows()]
            assert bodies.count("506,7") == 1
        assert await left_at_the_broker() == []
