"""A whole hub on a manual clock: real file, real sockets, time only as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiomqtt

from edgehub.hub.hub import Hub
from edgehub.settings import Settings
from tests.support.control import call
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from edgehub.clock import ManualClock

ROUTES = {
    kind: {
        "route": f"FROM /messages/* WHERE kind = '{kind}' INTO $upstream",
        "priority": priority,
        "timeToLiveSecs": ttl_s,
    }
    for kind, priority, ttl_s in (("alarm", 0, 86_400), ("bulk", 7, 900))
}


@contextlib.asynccontextmanager
async def running(
    folder: Path, clock: ManualClock, *, routes: dict[str, Any] = ROUTES, **more: object
) -> AsyncIterator[Hub]:
    """Run a hub with the routes above, or others."""
    manifest = {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    (folder / "m.json").write_text(json.dumps(manifest), "utf-8")
    settings = Settings(
        hub_id="gw", data_dir=folder / "data", manifest=folder / "m.json", mqtt={"port": 0}, **more
    )
    async with serving(Hub(settings, clock=clock)) as hub:
        yield hub


async def publish(hub: Hub, kind: str, count: int) -> None:
    """Hand messages of 200 bytes in."""
    async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="press-1") as client:
        for _ in range(count):
            topic = f"devices/press-1/messages/events/kind={kind}"
            await client.publish(topic, b"x" * 200, qos=1)


def queue(hub: Hub, name: str) -> dict[str, Any]:
    """Return what is shown of one queue."""
    return next(each for each in hub.status()["queues"] if each["id"] == name)


async def until(
    clock: ManualClock, folder: Path, condition: Callable[[], bool], *, tick_s: float = 0.5
) -> None:
    """Let time pass until something is so, after each tick as long as the disk takes."""
    async with asyncio.timeout(15):
        while not condition():
            await clock.advance(tick_s)
            # Answered by the thread that does all that was asked of the file before.
            await asyncio.to_thread(call, folder / "data" / "control.sock", "dead list")
