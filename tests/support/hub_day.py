"""A day that a whole hub lives on a manual clock, with real files, devices and peers.

Outage, expiry by each cause, starvation, demotion, drops, dead letters, what a person does, and
restarts are brought about on purpose. Beside the journal the day keeps the hub's own counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import aiomqtt

from edgehub.clock import ManualClock
from edgehub.hub.hub import Hub
from edgehub.settings import Settings
from tests.support.control import call
from tests.support.http_peer import Reply, results

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.http_peer import HttpPeer
    from tests.support.mqtt_peer import MqttPeer

DATE: Final = "2026-11-28"
MIDNIGHT: Final = datetime(2026, 11, 28, tzinfo=UTC)
BEGIN: Final = MIDNIGHT - timedelta(minutes=10)
HOUR_S: Final = 3_600

FLOWS: Final = {
    "enqueued": "enqueued",
    "requeued": "requeued",
    "sent": "sent",
    "expired": "expired",
    "dropped": "dropped",
    "dead_lettered": "dead_lettered",
    "purged": "purged",
    "moved": "moved_out",
}
"""What the hub calls it, and the report."""

Key = tuple[str, int]


def _route(kinds: str, sink: str, **more: object) -> dict[str, object]:
    condition = " or ".join(f"kind = '{kind}'" for kind in kinds.split())
    return {"route": f"FROM /messages/* WHERE {condition} INTO {sink}", **more}


ROUTES: Final = {
    "alarm": _route("alarm", "$upstream", priority=0, timeToLiveSecs=86_400),
    "slow": _route("slow", "$upstream", priority=0, timeToLiveSecs=120),
    "state": _route(
        "state",
        "$upstream",
        priority=1,
        timeToLiveSecs=7_200,
        Recency={"Seconds": 300, "FallbackPriority": 7},
    ),
    "bulk": _route("bulk", "$upstream", priority=5, timeToLiveSecs=900),
    "flood": _route("flood", "$upstream", priority=8, timeToLiveSecs=86_400),
    "keep": _route("keep", "$upstream", timeToLiveSecs=604_800),
    "lab": _route("fine bad busy", 'Endpoint("lab")', priority=2, timeToLiveSecs=200),
}


class HubDay:
    """See the module.

    Args:
        folder: For its files; the export goes to `export` in it.
        upstream: Confirms nothing by itself.
        lab: Answers each row by its kind.

    Attributes:
        counts: Rows of the date by queue and flow, as the hub counted them.
        carried_in: Rows and bytes that waited at the date's begin, by queue.
        carried_out: The same at its end.
        confirmed: Rows that the upstream peer has confirmed.
        accepted: Rows that the lab's peer has accepted.
    """

    def __init__(self, folder: Path, upstream: MqttPeer, lab: HttpPeer) -> None:
        self.folder = folder
        self.export = folder / "export"
        self.upstream = upstream
        self.lab = lab
        self.clock = ManualClock(wall_ms=int(BEGIN.timestamp() * 1000))
        self.counts: dict[Key, Counter[str]] = defaultdict(Counter)
        self.carried_in: dict[Key, tuple[int, int]] = {}
        self.carried_out: dict[Key, tuple[int, int]] = {}
        self.hub: Hub
        self._before: dict[Key, Counter[str]] = {}
        self._counting = False
        upstream.acknowledge = False
        self.confirmed = 0
        self.accepted = 0
        lab.script = self._answer
        manifest = {
            "schemaVersion": "1.1",
            "routes": ROUTES,
            "storeAndForwardConfiguration": {"timeToLiveSecs": 7_200},
        }
        (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
        (folder / "edgehub.toml").write_text('data_dir = "data"\n', "utf-8")

    async def live(self) -> None:
        """Live through the date, and a little of the days before and after it."""
        self.upstream.connack = -1
        async with self._life():
            await self._eve()
        await self._off_until(10)
        self.upstream.connack = 0
        async with self._life():
            await self._morning()
            await self._noon()
        await self._off_until(23.9)
        self.upstream.connack = -1
        async with self._life():
            await self._evening()

    async def _eve(self) -> None:
        """Rows wait over midnight for an uplink that is away; some expire by it."""
        await self._publish("keep", 3)
        await self._publish("bulk", 4)
        await self._wait_until(0)
        self._begin_to_count()
        await self._wait_until(0.1)
        await self._until(lambda: self._count("expired", "upstream", 5) == 4)
        await self._publish("bulk", 2)
        await self._publish("alarm", 1)

    async def _morning(self) -> None:
        """What the hub was off for has expired; the rest leaves; then a better priority starves."""
        await self._until(lambda: self._count("expired", "upstream", 5) == 6)
        await self._confirm(4)
        await self._publish("alarm", 3)
        await self._publish("bulk", 5)
        await self._publish("state", 6)
        await self._publish("keep", 2)
        for _ in range(60):
            await self._publish("alarm", 1)
            await self.clock.advance(20)
            await self._confirm(1)
        # The slow ones have no better priority before them: they wait for their turn.
        await self._publish("slow", 12)
        for _ in range(5):
            await self.clock.advance(30)
            await self._confirm(1)
        await self._until(lambda: self._count("expired", "upstream", 0) >= 8)
        await self._publish("flood", 50)

    async def _noon(self) -> None:
        """The other endpoint refuses, a person clears up, clients send what cannot be taken."""
        await self._publish("fine", 4, device="d1")
        await self._publish("bad", 3, device="d2")
        await self._publish("busy", 2, device="d3")
        await self._until(lambda: self._count("sent", "lab", 2) == 4)
        await self._until(lambda: self._count("expired", "lab", 2) == 2, tick_s=5)
        letters = (await self._ask("dead list"))["dead_letters"]
        numbers = [letter["dead_letter"] for letter in letters]
        assert len(numbers) == 3
        await self._ask("dead purge", dead_letters=numbers[:1])
        await self._ask("dead requeue", dead_letters=numbers[1:])
        await self._until(lambda: self._count("dead_lettered", "lab", 2) == 5)
        await self._ask("queue move", queue="upstream_Pri8", to="lab_Pri2", through=self._middle())
        await self._ask("queue purge", queue="upstream_Pri8")
        await self._refused()
        await self._confirm(3)

    async def _evening(self) -> None:
        """Rows wait over the second midnight; the hours before it are closed and exported."""
        await self._until(lambda: self._count("expired", "upstream", 7) == 2)
        await self._publish("keep", 2)
        await self._publish("alarm", 1)
        await self._wait_until(24)
        self._stop_counting()
        await self._publish("alarm", 1)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edgehub", "--config", "edgehub.toml"),
            *("journal", "export", "export", "--close"),
            cwd=self.folder,
        )
        while process.returncode is None:
            # Slowly: what takes long by this clock is paused for, or cut short.
            await self.clock.advance(0.002)
            await asyncio.sleep(0.01)
        assert process.returncode == 0

    # What happens.

    async def _publish(self, kind: str, count: int, *, device: str = "press-1") -> None:
        async with aiomqtt.Client("127.0.0.1", self.hub.mqtt_port, identifier=device) as client:
            topic = f"devices/{device}/messages/events/kind={kind}"
            for number in range(count):
                await client.publish(topic, b"x" * (50 + number), qos=1)

    async def _refused(self) -> None:
        async with aiomqtt.Client("127.0.0.1", self.hub.mqtt_port, identifier="press-1") as client:
            await client.publish("nowhere/at/all", b"x" * 10, qos=1)
            topic = "devices/press-1/messages/events/"
            await client.publish(topic, b"x" * 300_000, qos=1)

    async def _confirm(self, rows: int) -> None:
        """Let the peer confirm rows, one after another."""
        for _ in range(rows):
            wanted = self._sent_upstream() + 1
            await self._until(lambda: bool(self.upstream.unconfirmed))
            self.upstream.confirm(1)
            self.confirmed += 1
            await self._until(lambda wanted=wanted: self._sent_upstream() >= wanted)

    async def _ask(self, command: str, **arguments: object) -> Any:
        return await asyncio.to_thread(
            call, self.folder / "data" / "control.sock", command, **arguments
        )

    # The hub.

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        hub = Hub(self._settings(), clock=self.clock)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(hub.run(), name="hub")
            async with asyncio.timeout(10):
                await hub.started.wait()
            self.hub = hub
            self._before = {}
            try:
                yield
            finally:
                hub.stop()
                async with asyncio.timeout(20):
                    while not task.done():
                        await self.clock.advance(0.1)
                assert await task
        if self._counting:
            self._add_up()

    def _settings(self) -> Settings:
        url = f"http://127.0.0.1:{self.lab.port}/rows"
        return Settings(
            hub_id="gw",
            data_dir=self.folder / "data",
            manifest=self.folder / "manifest.json",
            mqtt={"port": 0},
            store={"queue_rows_max": 40},
            upstream={
                "type": "mqtt",
                "host": "127.0.0.1",
                "port": self.upstream.port,
                "keep_alive_s": 65_535,
                "ack_timeout_s": 3_600,
                "in_flight_max": 1,
            },
            endpoints={"lab": {"type": "http", "url": url, "batch_rows_max": 10}},
        )

    async def _off_until(self, hour: float) -> None:
        """Let time pass without a hub."""
        await self.clock.advance(self._seconds_until(hour))

    async def _wait_until(self, hour: float) -> None:
        await self.clock.advance(self._seconds_until(hour) + 1)

    def _seconds_until(self, hour: float) -> float:
        return MIDNIGHT.timestamp() + hour * HOUR_S - self.clock.wall_ms() / 1000

    async def _until(self, condition: Callable[[], bool], *, tick_s: float = 0.1) -> None:
        """Let time pass as long as sockets and disk take."""
        async with asyncio.timeout(20):
            while not condition():
                await self.clock.advance(tick_s)
                await asyncio.sleep(0.001)

    # What it counts.

    def _figures(self) -> dict[Key, Counter[str]]:
        return {
            (queue["endpoint"], queue["priority"]): Counter({name: queue[name] for name in FLOWS})
            for queue in self.hub.status()["queues"]
        }

    def _depths(self) -> dict[Key, tuple[int, int]]:
        return {
            (queue["endpoint"], queue["priority"]): (queue["depth"], queue["bytes"])
            for queue in self.hub.status()["queues"]
            if queue["depth"]
        }

    def _count(self, flow: str, endpoint: str, priority: int) -> int:
        """Return rows of the date so far."""
        key = (endpoint, priority)
        now, before = self._figures().get(key, Counter()), self._before.get(key, Counter())
        return self.counts[key][flow] + now[flow] - before[flow]

    def _sent_upstream(self) -> int:
        return sum(
            figures["sent"]
            for (endpoint, _), figures in self._figures().items()
            if endpoint == "upstream"
        )

    def _middle(self) -> int:
        """Return an offset in the middle of the rows that flood a queue."""
        queue = next(each for each in self.hub.status()["queues"] if each["id"] == "upstream_Pri8")
        return queue["checkpoint"] + 10

    def _begin_to_count(self) -> None:
        self._counting = True
        self._before = self._figures()
        self.carried_in = self._depths()

    def _stop_counting(self) -> None:
        self._add_up()
        self._counting = False
        self.carried_out = self._depths()

    def _add_up(self) -> None:
        for key, figures in self._figures().items():
            self.counts[key].update(figures)
            self.counts[key].subtract(self._before.get(key, Counter()))

    def _answer(self, records: list[dict[str, Any]]) -> Reply:
        """Answer rows by their kind."""
        status = {"bad": 422, "busy": 503}
        by_id = {record["id"]: status.get(record["properties"]["kind"], 200) for record in records}
        self.accepted += sum(1 for each in by_id.values() if each == 200)
        return results(by_id)
