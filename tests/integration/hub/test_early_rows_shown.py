"""What a hub shows of rows that left, or are in flight, before their commit."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

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
async def uncommitted(folder: Path, count: int) -> AsyncIterator[tuple[Hub, MqttPeer]]:
    """Run a hub with messages in flight, which are only committed when time passes."""
    async with mqtt_peer() as peer:
        peer.acknowledge = False
        upstream = {"type": "mqtt", "host": "127.0.0.1", "port": peer.port}
        store = {"commit_delay_ms": 1000}
        async with (
            running(folder, ManualClock(), upstream=upstream, store=store) as hub,
            asyncio.TaskGroup() as senders,
        ):
            for _ in range(count):
                senders.create_task(publish(hub, "bulk", 1))
                expected = len(peer.published) + 1
                await peer.until(lambda expected=expected: len(peer.published) == expected)
            yield hub, peer
            peer.confirm()


async def ask(folder: Path, command: str, **arguments: Any) -> Any:
    """Return the result of a command."""
    path = folder / "data" / "control.sock"
    return await asyncio.to_thread(lambda: call(path, command, **arguments))


async def test_a_planned_purge_counts_what_is_in_the_file(tmp_path: Path) -> None:
    """A message in flight before its commit is not there to be removed, nor less than nothing."""
    async with uncommitted(tmp_path, 1) as (hub, _):
        assert queue(hub, "upstream_Pri7")["in_flight"] == 1
        planned = await ask(tmp_path, "queue purge", queue="upstream_Pri7", dry_run=True)
        assert {key: planned[key] for key in ("rows", "bytes", "in_flight")} == {
            "rows": 0,
            "bytes": 0,
            "in_flight": 0,
        }
