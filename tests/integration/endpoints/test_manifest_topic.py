"""A manifest on a topic of the peer upstream, at a whole hub with a real Mosquitto."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker_hub import running_hub, sender
from tests.support.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import aiomqtt

    from tests.support.broker_hub import BrokerHub

pytestmark = pytest.mark.integration

TOPIC = "fleet/gw/manifest"
GOOD = {
    "$version": 7,
    "schemaVersion": "1.1",
    "routes": {"alarms": {"route": "FROM /messages/* INTO $upstream", "priority": 1}},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 60},
}
BAD = {
    **GOOD,
    "$version": 8,
    "routes": {"wrong": "FROM /messages/* WHERE level > 5 INTO $upstream"},
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


def settings(port: int, **more: Any) -> dict[str, Any]:
    """Return the sections of a hub without a manifest of its own."""
    upstream = {"type": "mqtt", "host": "127.0.0.1", "port": port, "manifest_topic": TOPIC}
    return {"manifest": None, "upstream": {**upstream, "topic": "site/{device}"}, **more}


async def routes(hub: BrokerHub) -> list[str]:
    """Return the names of the routes in force."""
    return [route["name"] for route in (await hub.call("manifest show"))["routes"]]


async def reported(parent: aiomqtt.Client, code: int, version: int) -> dict[str, Any]:
    """Return what a hub reports, once it is this outcome of this version."""
    async with asyncio.timeout(15):
        async for message in parent.messages:
            found = json.loads(message.payload)
            status = found["lastDesiredStatus"]["code"]
            if (status, found["lastDesiredVersion"]) == (code, version):
                return dict(found)
    raise AssertionError


async def desire(parent: aiomqtt.Client, payload: object) -> None:
    """Publish a manifest, retained."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload)
    await parent.publish(TOPIC, body, qos=1, retain=True)


async def test_a_manifest_of_the_topic_is_applied_and_outlives_a_restart(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """Its version is reported beside the topic; offline too it stays in force; null removes it."""
    async with sender(broker.port) as parent:
        await parent.subscribe(f"{TOPIC}/reported", qos=1)
        await desire(parent, GOOD)
        async with running_hub(tmp_path, **settings(broker.port)) as hub:
            found = await reported(parent, 200, 7)
            assert found["faults"] == []
            assert await routes(hub) == ["alarms"]
            await desire(parent, BAD)
            [fault] = (await reported(parent, 400, 8))["faults"]
            assert (fault["route"], fault["line"], fault["column"]) == ("wrong", 1, 30)
            assert await routes(hub) == ["alarms"]
            assert any(
                "topic" in each and "refused" in each for each in hub.hub.status()["warnings"]
            )
        async with running_hub(tmp_path, **settings(1)) as hub:
            assert await routes(hub) == ["alarms"]
            status = hub.hub.status()["upstream_manifest"]
            assert (status["applied_version"], status["refused"]) == (7, None)
        async with running_hub(tmp_path, **settings(broker.port)) as hub:
            await reported(parent, 400, 8)
            assert await routes(hub) == ["alarms"]
            await desire(parent, b"null")
            await reported(parent, 200, 0)
            assert await routes(hub) == ["upstream"]
        async with running_hub(tmp_path, **settings(1)) as hub:
            assert await routes(hub) == ["upstream"]


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"7",
        b'"x"',
        b" " + b"x" * (2**20 + 1),
        b'{"a":"\\ud800"}',
    ],
)
async def test_whatever_is_no_manifest_is_refused_and_reported(
    tmp_path: Path, broker: Mosquitto, payload: bytes
) -> None:
    """The hub's own one stays in force."""
    async with sender(broker.port) as parent:
        await parent.subscribe(f"{TOPIC}/reported", qos=1)
        async with running_hub(tmp_path, **settings(broker.port)) as hub:
            await desire(parent, payload)
            assert (await reported(parent, 400, 0))["faults"]
            assert await routes(hub) == ["upstream"]


async def test_a_file_of_the_settings_is_not_overruled(tmp_path: Path, broker: Mosquitto) -> None:
    """The manifest of the topic is refused with the reason."""
    sections = settings(broker.port)
    del sections["manifest"]
    async with sender(broker.port) as parent:
        await parent.subscribe(f"{TOPIC}/reported", qos=1)
        await desire(parent, GOOD)
        async with running_hub(
            tmp_path, routes={"mine": "FROM /messages/* INTO $upstream"}, **sections
        ) as hub:
            found = await reported(parent, 400, 7)
            assert "manifest of their own" in found["lastDesiredStatus"]["description"]
            assert await routes(hub) == ["mine"]
