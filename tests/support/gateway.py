"""A gateway without sockets: real store, local space, mapper and pump, and a cloud that watches."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from edgehub.clock import ManualClock
from edgehub.endpoints.cumulocity import MAPPER_MODULE
from edgehub.entities.tables import load_entities
from edgehub.heads.mqtt.local.space import LocalSpace
from edgehub.heads.mqtt.local.tables import LocalTable
from edgehub.hub.entities import EntitiesPart
from edgehub.local_message import LocalMessage
from edgehub.message import UPSTREAM, DeliveryRules, EndpointId, FailureKind, Order, SendResult
from edgehub.pump.pump import Pump
from edgehub.router import Router
from edgehub.routes.manifest import parse_manifest
from edgehub.routes.table import RouteTable
from edgehub.settings import EntitySettings, MapperSettings, MqttSettings, Settings
from edgehub.store import Store, StoreOptions
from edgehub.store.database import Database
from tests.support.endpoints import StalledEndpoint
from tests.support.memory_queue import MemoryCounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from edgehub.message import Refusal, Row

LATER = SendResult(FailureKind.TRANSIENT, "later")
NEVER = SendResult(FailureKind.REJECTED, "no")
PRIORITIES = {
    "inventory": 5,
    "measurements": 1,
    "alarms": 0,
    "events": 3,
    "twin": 2,
    "health": 4,
    "operations": 6,
}
"""Creations behind nearly everything: the order is not that of the queues."""


def manifest(priorities: dict[str, int] | None = None, ttl_s: int = 7200) -> str:
    """Write a manifest that sends each output upstream with a priority of its own."""
    return json.dumps(
        {
            "schemaVersion": "1.1",
            "routes": {
                name: {
                    "route": f"FROM /messages/modules/{MAPPER_MODULE}/outputs/{name}"
                    " INTO $upstream",
                    "priority": priority,
                }
                for name, priority in (priorities or PRIORITIES).items()
            },
            "storeAndForwardConfiguration": {"timeToLiveSecs": ttl_s},
        }
    )


class Cloud(StalledEndpoint):
    """Takes rows as told and notes each one that came before what it needs."""

    def __init__(self) -> None:
        super().__init__(UPSTREAM)
        self.answer: Callable[[Row], SendResult | None] = lambda _row: None
        """Gives the answer to a row, None = it is delivered."""
        self.created: set[str] = {"gw"}
        self.offered: list[tuple[str, str]] = []
        """Topics and bodies of all rows, the refused ones too."""
        self.rows: list[tuple[str, str]] = []
        """Those that were delivered."""
        self.faults: list[str] = []

    def _answer(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._check(row)
        for row in rows:
            topic, text = row.message.properties["topic"], row.message.body.decode()
            assert topic is not None
            self.offered.append((topic, text))
            result = self.answer(row)
            if result is not None:
                self.settle(row.offset, result)
                continue
            self.rows.append((topic, text))
            if row.creation:
                self.created.add(text.split(",")[1])
            self.settle(row.offset)

    def _check(self, row: Row) -> None:
        topic = row.message.properties["topic"] or ""
        text = row.message.body.decode()
        if row.creation:
            parent = topic.removeprefix("c8y/s/us").strip("/") or "gw"
            if parent not in self.created:
                self.faults.append(f"{text} came before its parent {parent}")
        elif row.message.device_id not in self.created:
            self.faults.append(f"{topic} {text} came before {row.message.device_id}")

    def bodies(self, device: str) -> list[Any]:
        """Return the numbers that were delivered as measurements of a device, in order."""
        return self._numbers(self.rows, device)

    def bodies_offered(self, device: str) -> list[Any]:
        """Return the numbers as `bodies` does, those of refused rows too."""
        return self._numbers(self.offered, device)

    @staticmethod
    def _numbers(rows: Sequence[tuple[str, str]], device: str) -> list[Any]:
        return [
            json.loads(text)["v"]["v"]["value"]
            for topic, text in rows
            if topic == "c8y/measurement/measurements/create"
            and json.loads(text).get("externalSource", {}).get("externalId", "gw") == device
        ]


class Gateway:
    """One life of a gateway, from a start to its end."""

    def __init__(
        self, store: Store, mapping: EntitiesPart, space: LocalSpace, pump: Pump, clock: ManualClock
    ) -> None:
        self.store = store
        self.mapping = mapping
        self.space = space
        self.pump = pump
        self.clock = clock
        self.settled: dict[int, Refusal | None] = {}
        self._token = 0

    def send(
        self,
        topic: str,
        payload: Any = b"",
        *,
        retain: bool = False,
        client: str = "c",
        qos: int = 1,
    ) -> int:
        """Publish without waiting; gives the token under which `settled` has the outcome."""
        if not isinstance(payload, bytes):
            payload = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
        self._token += 1
        message = LocalMessage(topic, payload, publisher=client, qos=qos, retain=retain)
        self.space.publish(message, self._settle, self._token)
        return self._token

    def register(self, topic_id: str, external_id: str, parent: str | None = None) -> int:
        """Publish a registration."""
        document = {"@type": "child-device", "@id": external_id}
        if parent is not None:
            document["@parent"] = parent
        return self.send(f"te/{topic_id}", document, retain=True)

    def measure(self, topic_id: str, value: int, *, client: str = "c") -> int:
        """Publish a measurement."""
        return self.send(f"te/{topic_id}/m/", {"v": value}, client=client)

    async def quiet(self, *, rounds: int = 4, tick_s: float = 0.06) -> None:
        """Let commits and pump work until nothing changes any more."""
        same = 0
        before: object = None
        while same < rounds:
            await self.store.writer.flush()
            await self.clock.advance(tick_s)
            await self.store.database.run(lambda conn: conn.execute("SELECT 1").fetchone())
            figures = self.store.statistics()
            now = (figures.rows, figures.next_offset, figures.dead_letter_rows, len(self.settled))
            same = same + 1 if now == before else 0
            before = now

    async def drained(self, *, minutes: int = 30) -> None:
        """Let time pass until nothing waits, or the time is over."""
        for _ in range(minutes):
            await self.quiet()
            if not self.store.statistics().rows:
                return
            await self.clock.advance(60)

    def _settle(self, token: int, refusal: Refusal | None) -> None:
        self.settled[token] = refusal


@asynccontextmanager
async def gateway(  # noqa: PLR0913 - what a test may want otherwise
    path: Path,
    cloud: Cloud,
    *,
    clock: ManualClock | None = None,
    options: StoreOptions | None = None,
    priorities: dict[str, int] | None = None,
    ttl_s: int = 7200,
    order: Order = Order.STRICT,
    enabled: bool = True,
    store_qos0: bool = True,
    retained_max: int = 10_000,
    database_type: type[Database] = Database,
    mapper: dict[str, Any] | None = None,
    **entities: Any,
) -> AsyncIterator[Gateway]:
    """Start a gateway on a file; `mapper` and `entities` are settings of these sections."""
    clock = clock or ManualClock()
    store = await Store.open(
        path, clock=clock, options=options or StoreOptions(), database_type=database_type
    )
    settings = Settings(
        mapper=MapperSettings(enabled=enabled, external_id="gw", alarm_sync_ms=0, **(mapper or {})),
        entities=EntitySettings(**entities),
    )
    table = RouteTable.compile(
        parse_manifest(manifest(priorities, ttl_s), file="test"), endpoints=[EndpointId("upstream")]
    )
    router = Router(table, store.appender)
    space = LocalSpace(
        MqttSettings(local_topics=("c8y-internal/#",), local_retained_max=retained_max),
        LocalTable(store, clock),
        clock,
        hub_id="hub",
        known={},
    )
    mapping = EntitiesPart(
        settings,
        await store.database.run(load_entities),
        hub_id="hub",
        store=store,
        router=router,
        space=space,
        clock=clock,
        takes_qos0=lambda: store_qos0 or cloud.started.is_set(),
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(store.run(), name="store")]
            await space.load({})
            await mapping.open()
            pump = Pump(
                cloud,
                queues=partial(store.queues.of, UPSTREAM),
                rules=lambda _row: DeliveryRules(order=order),
                clock=clock,
                now_ms=store.hub_time.now_ms,
                rng=random.Random(5),
                close_counts=MemoryCounts(),
                dependency_tracker=mapping,
            )
            store.queues.watch(UPSTREAM, pump.rows_ready)
            pumping = tasks.create_task(pump.run(), name="pump")
            await cloud.started.wait()
            yield Gateway(store, mapping, space, pump, clock)
            pumping.cancel()
            await asyncio.wait({pumping})
            await mapping.close()
            await store.writer.flush()
            for task in running:
                task.cancel()
    finally:
        cloud.pending.clear()
        await store.close()
