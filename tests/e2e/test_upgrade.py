"""The daemon on the state that a killed hub of the first version left: nothing is lost."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import aiomqtt
import pytest

from tests.support.released_schemas import restore_hub
from tests.support.subscriber import subscriber

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {"rest": {"route": "FROM /messages/* INTO $upstream", "priority": 5}},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 2147483647},
}
WAITING = {*(f"m{number}" for number in range(10)), *(f"n{number}" for number in range(3))}
"""Ids of the messages that devices gave the old hub."""
MAPPER = "[mapper]\nenabled = true\n"


def _upgraded(make: Callable[..., Daemon], upstream: int | None = None) -> Daemon:
    daemon = make(upstream=upstream, top='manifest = "manifest.json"', extra=MAPPER)
    (daemon.folder / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
    (daemon.folder / "data").mkdir()
    restore_hub(1, daemon.folder / "data")
    return daemon.start()


async def test_every_message_of_the_older_version_arrives_upstream(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """With its id and properties, alarms before what has a worse priority."""
    async with subscriber(broker.port, "devices/+/messages/events/#") as upstream:
        daemon = _upgraded(make_daemon, broker.port)
        await upstream.wait(len(WAITING), 15)
        bags = [dict(parse_qsl(topic.rsplit("/", 1)[1])) for topic, _ in upstream.arrivals]
        found = {bag["$.mid"]: bag.get("kind") for bag in bags if bag.get("$.mid") in WAITING}
        assert found.keys() == WAITING
        alarms = [place for place, bag in enumerate(bags) if bag.get("kind") == "alarm"]
        assert alarms == [0, 1], "they left first"
        daemon.wait_until(
            lambda: sum(queue["depth"] for queue in daemon.call("queue list")["queues"]) == 0, 10
        )


async def test_sessions_routes_and_entities_of_the_older_version_are_kept(
    make_daemon: Callable[..., Daemon],
) -> None:
    """A client that was absent gets what waited for it, and what was retained."""
    daemon = _upgraded(make_daemon)
    assert daemon.call("route show", id="hot")["priority"] == 1
    entities = {entity["@topic-id"] for entity in daemon.call("entity list")["entities"]}
    assert entities == {"device/main//", "device/child1//"}
    arrivals: list[tuple[str, bytes]] = []
    client = aiomqtt.Client(
        "127.0.0.1", daemon.mqtt_port, identifier="listener-1", clean_session=False
    )
    async with asyncio.timeout(10), client:
        async for message in client.messages:
            arrivals.append((message.topic.value, bytes(message.payload)))
            if len(arrivals) == 10:
                break
    assert arrivals[0] == ("te/device/main///a/x", b'{"text":"hi","severity":"major"}')
    assert [body for topic, body in arrivals if topic == "te/device/main///m/t"] == [
        b'{"t":0}',
        b'{"t":1}',
        b'{"t":2}',
    ]
