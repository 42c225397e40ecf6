"""What a hub shows of rows that left, or are in flight, before their commit, or never have one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import aiomqtt
import pytest

from edgehub.clock import ManualClock
from tests.support.control import call
from tests.support.manual_hub import publish, queue, running
from tests.support.mqtt_peer import mqtt_peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from edgehub.hub.hub import Hub
    from tests.support.mqtt_peer import MqttPeer

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def uncommitted(
    folder: Path, count: int, **more: Any
) -> AsyncIterator[tuple[Hub, MqttPeer, list[asyncio.Task[None]]]]:
    """Run a hub with messages in flight, which are only committed when time passes."""
    async with mqtt_peer() as peer:
        peer.acknowledge = False
        upstream = {"type": "mqtt", "host": "127.0.0.1", "port": peer.port}
        store = {"commit_delay_ms": 1000}
        async with (
            running(folder, ManualClock(), upstream=upstream, store=store, **more) as hub,
            aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="press-1") as client,
            asyncio.TaskGroup() as senders,
        ):
            topic = "devices/press-1/messages/events/kind=bulk"
            sent = [senders.create_task(client.publish(topic, b"x", qos=1)) for _ in range(count)]
            await peer.until(lambda: len(peer.published) == count)
            yield hub, peer, sent
            peer.confirm()


async def ask(folder: Path, command: str, **arguments: Any) -> Any:
    """Return the result of a command."""
    path = folder / "data" / "control.sock"
    return await asyncio.to_thread(lambda: call(path, command, **arguments))


async def test_a_planned_purge_counts_what_is_in_the_file(tmp_path: Path) -> None:
    """A message in flight before its commit is not there to be removed, nor less than nothing."""
    async with uncommitted(tmp_path, 1) as (hub, _, _):
        assert queue(hub, "upstream_Pri7")["in_flight"] == 1
        planned = await ask(tmp_path, "queue purge", queue="upstream_Pri7", dry_run=True)
        assert {key: planned[key] for key in ("rows", "bytes", "in_flight")} == {
            "rows": 0,
            "bytes": 0,
            "in_flight": 0,
        }


async def explained(folder: Path, topic: str) -> dict[str, Any]:
    """Return what is known of a message that the peer has seen."""
    (message_id,) = parse_qs(topic.rpartition("/")[2])["$.mid"]
    document = await ask(folder, "why", id=message_id)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("journal", [False, True])
async def test_a_message_that_left_before_its_commit_is_known_to_have_left(
    tmp_path: Path, journal: bool
) -> None:
    """Nothing of it is ever stored, and nothing else has to be."""
    async with uncommitted(tmp_path, 1, journal={"enabled": journal}) as (hub, peer, sent):
        peer.confirm()
        await sent[0]
        known = await explained(tmp_path, peer.topics[0])
        assert known["state"] == ("delivered" if journal else "left")
        assert hub.status()["store"]["committed_rows_total"] == 0


@pytest.mark.parametrize("journal", [False, True])
async def test_a_message_that_is_in_flight_before_its_commit_is_found(
    tmp_path: Path, journal: bool
) -> None:
    """The question stores what was not yet; whether it is confirmed then does not matter."""
    async with uncommitted(tmp_path, 1, journal={"enabled": journal}) as (_, peer, _):
        known = await explained(tmp_path, peer.topics[0])
        assert known["state"] == "in_flight"
        assert [copy["queue"] for copy in known["copies"]] == ["upstream_Pri7"]


async def test_a_message_that_found_no_room_is_known_to_be_dropped(tmp_path: Path) -> None:
    """It has no commit of its own, and nothing is stored after it."""
    store = {"rows_max": 1, "overflow": "drop_newest"}
    async with running(tmp_path, ManualClock(), store=store) as hub:
        await publish(hub, "bulk", 2)
        (stored,) = (await ask(tmp_path, "queue peek", queue="upstream_Pri7"))["rows"]
        prefix = stored["id"].removesuffix("-1")
        assert (await ask(tmp_path, "why", id=f"{prefix}-2"))["state"] == "dropped"
        assert (await ask(tmp_path, "why", id=f"{prefix}-3"))["state"] == "unknown"
