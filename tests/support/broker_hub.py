"""A hub in the test's own process, by itself or joined to a real Mosquitto."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiomqtt

from edgehub.hub.broker import BrokerPart
from edgehub.hub.hub import Hub
from edgehub.settings import check_settings
from tests.support.control import call
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from edgehub.clock import Clock

STEP_S = 0.005
UPSTREAM = {"all": "FROM /mqtt/# INTO $upstream"}


def write_manifest(folder: Path, routes: dict[str, Any]) -> Path:
    """Write a manifest; gives its path."""
    folder.mkdir(exist_ok=True)
    file = folder / "routes.json"
    store = {"timeToLiveSecs": 7200}
    document = {"schemaVersion": "1.1", "routes": routes, "storeAndForwardConfiguration": store}
    file.write_text(json.dumps(document), "utf-8")
    return file


class BrokerHub:
    """A running hub, as tests ask it."""

    def __init__(self, hub: Hub, socket: Path) -> None:
        self.hub = hub
        self._socket = socket

    @property
    def mqtt_port(self) -> int:
        """Return the port of its own listener."""
        return self.hub.mqtt_port

    @property
    def broker(self) -> dict[str, Any]:
        """Return the status of the broker head."""
        return dict(self.hub.status()["broker"])

    def endpoint(self, endpoint_id: str = "upstream") -> dict[str, Any]:
        """Return the status of an endpoint."""
        found = {each["id"]: each for each in self.hub.status()["endpoints"]}
        return dict(found[endpoint_id])

    def depth(self, queue: str = "upstream") -> int:
        """Count the rows of a queue."""
        depths = {each["id"]: each["depth"] for each in self.hub.status()["queues"]}
        return int(depths.get(queue, 0))

    async def rows(self, queue: str = "upstream", limit: int = 100) -> list[dict[str, Any]]:
        """Return the oldest rows of a queue with bodies and properties."""
        answer = await self.call("queue peek", queue=queue, limit=limit, payload=True)
        return list(answer["rows"])

    async def call(self, command: str, **arguments: Any) -> Any:
        """Ask over the control socket."""
        return await asyncio.to_thread(call, self._socket, command, **arguments)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition on what the hub says of itself holds."""
        # Asking the hub is what is waited with: there is no event for a change of its status.
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - see above
                await asyncio.sleep(STEP_S)

    async def until_subscribed(self, *wires: str) -> None:
        """Wait until the broker granted exactly these subscriptions, and has taken back others."""
        [head] = [part.head for part in self.hub.parts if isinstance(part, BrokerPart)]
        assert head is not None
        known = head._subscriptions  # noqa: SLF001 - what is being taken back is shown nowhere
        await self.until(
            lambda: (
                self.broker["state"] == "up"
                and set(self.broker["subscriptions"]) == set(wires)
                and not any(each.is_leaving for each in known)
            )
        )


@contextlib.asynccontextmanager
async def running_hub(
    folder: Path,
    *,
    routes: dict[str, Any] | None = None,
    clock: Clock | None = None,
    **sections: Any,
) -> AsyncIterator[BrokerHub]:
    """Run a hub for the length of the block.

    Args:
        folder: For its data and manifest; another hub in the same folder goes on with them.
        routes: Of its manifest.
        clock: Its clock, None = the system's.
        sections: Further sections of the settings.
    """
    document = {
        "hub_id": "gw",
        "data_dir": str(folder / "data"),
        "manifest": str(write_manifest(folder, UPSTREAM if routes is None else routes)),
        "mqtt": {"port": 0},
        **sections,
    }
    hub = Hub(check_settings(document, file=None), clock=clock)
    async with serving(hub, start_s=10, stop_s=15):
        yield BrokerHub(hub, folder / "data" / "control.sock")


@contextlib.asynccontextmanager
async def broker_hub(
    folder: Path, port: int, *, broker: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[BrokerHub]:
    """Run a hub that joins a Mosquitto; see `running_hub`.

    Args:
        folder: See there.
        port: Mosquitto's.
        broker: Further settings of `[broker]`.
        more: For `running_hub`.
    """
    section = {"host": "127.0.0.1", "port": port, **(broker or {})}
    async with running_hub(folder, broker=section, **more) as hub:
        yield hub


@contextlib.asynccontextmanager
async def sender(port: int, *, version: int = 5) -> AsyncIterator[aiomqtt.Client]:
    """Connect a client of the site."""
    protocol = aiomqtt.ProtocolVersion.V5 if version == 5 else aiomqtt.ProtocolVersion.V311
    async with aiomqtt.Client("127.0.0.1", port, protocol=protocol) as client:
        client.pending_calls_threshold = 1000
        yield client


async def publish_all(client: aiomqtt.Client, topic: str, bodies: list[bytes]) -> None:
    """Publish with QoS 1, in order."""
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(client.publish(topic, body, qos=1))


def bodies_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the bodies of peeked rows."""
    return [row["body"] for row in rows]


def route(filter_: str, **more: Any) -> dict[str, Any]:
    """Make a route of one topic filter upstream."""
    return {"route": f"FROM /mqtt/{filter_} INTO $upstream", **more}
