"""A pump with in-memory queues in front of a real MQTT or HTTP endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from edgehub.clock import Clock, SystemClock
from edgehub.endpoints.http import HttpEndpoint, HttpEndpointOptions
from edgehub.endpoints.http_link import HttpLinkOptions
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_link import LinkOptions
from edgehub.endpoints.mqtt_payload import BatchedRows, BatchTopic
from edgehub.hub.endpoints import BATCH_PIECE_SHARE
from edgehub.message import DEFAULT_PRIORITY, UPSTREAM, DeliveryRules, Priority
from edgehub.pump.options import PumpOptions
from edgehub.pump.pump import Pump
from tests.support.memory_queue import MemoryCounts, MemoryQueue, NoCreations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from edgehub.endpoints.device_bound import Deliver
    from edgehub.endpoints.endpoint import Endpoint
    from edgehub.endpoints.mqtt_link import SharedAccess
    from edgehub.endpoints.mqtt_topic import Topics
    from edgehub.message import Row
    from edgehub.storage.credentials import TlsOptions


CLIENT_ID = "hub-1"


class Uplink:
    """The parts of one uplink."""

    def __init__(
        self, endpoint: Endpoint, clock: Clock, options: PumpOptions | None = None
    ) -> None:
        self.clock = clock
        self.endpoint = endpoint
        self.queues: dict[int, MemoryQueue] = {}
        self.pump = Pump(
            endpoint,
            queues=lambda: list(self.queues.values()),
            rules=_rules,
            clock=self.clock,
            now_ms=self.clock.boottime_ms,
            rng=random.Random(3),
            close_counts=MemoryCounts(),
            dependency_tracker=NoCreations(),
            options=options,
        )

    def queue(self, priority: int = DEFAULT_PRIORITY) -> MemoryQueue:
        """Return the queue of a priority, new or not."""
        if priority not in self.queues:
            queue = self.queues[priority] = MemoryQueue(UPSTREAM, Priority(priority))
            queue.wake = self.pump.rows_ready
        return self.queues[priority]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition on pump or queues holds; they have no events of their own."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - statistics have no event
                await asyncio.sleep(0.01)


def _rules(_row: Row) -> DeliveryRules:
    return DeliveryRules()


def batched_rows(
    *, topics: Topics | None = None, packet_bytes_max: int | None = None, rows_max: int = 256
) -> BatchedRows:
    """Return the payloads of an endpoint with `batch = "zstd"`."""
    return BatchedRows(
        topics or BatchTopic(CLIENT_ID, compress=True),
        lambda hub_ms: hub_ms,
        rows_max=rows_max,
        bytes_max=65_536,
        compress=True,
        packet_bytes_max=packet_bytes_max,
    )


@contextlib.asynccontextmanager
async def uplink(  # noqa: PLR0913 - the options of a link, each by name
    port: int,
    *,
    username: str | None = None,
    password_file: Path | None = None,
    shared_access: SharedAccess | None = None,
    tls: TlsOptions | None = None,
    host: str = "127.0.0.1",
    device_bound: Deliver | None = None,
    connect_timeout_s: float = 5.0,
    keep_alive_s: int = 60,
    **options: Any,
) -> AsyncIterator[Uplink]:
    """Run a pump and an MQTT endpoint towards a port for the length of the block."""
    clock: Clock = options.pop("clock", None) or SystemClock()
    link = LinkOptions(
        host=host,
        port=port,
        client_id=CLIENT_ID,
        username=username,
        password_file=password_file,
        shared_access=shared_access,
        tls=tls,
        connect_timeout_s=connect_timeout_s,
        keep_alive_s=keep_alive_s,
        level=options.pop("level", 4),
    )
    is_batched = isinstance(options.get("payloads"), BatchedRows)
    pump_options = PumpOptions(piece_share=BATCH_PIECE_SHARE) if is_batched else None
    endpoint = MqttEndpoint(
        UPSTREAM,
        MqttOptions(link=link, **options),
        clock=clock,
        rng=random.Random(3),
        device_bound=device_bound,
    )
    async with _running(endpoint, clock, pump_options) as parts:
        yield parts


@contextlib.asynccontextmanager
async def http_uplink(url: str, **options: Any) -> AsyncIterator[Uplink]:
    """Run a pump and an HTTP endpoint towards a URL for the length of the block."""
    clock = SystemClock()
    endpoint = HttpEndpoint(
        UPSTREAM,
        HttpEndpointOptions(link=HttpLinkOptions(url=url), **options),
        clock=clock,
        rng=random.Random(3),
        utc_ms=lambda hub_ms: hub_ms,
    )
    async with _running(endpoint, clock) as parts:
        yield parts


@contextlib.asynccontextmanager
async def _running(
    endpoint: Endpoint, clock: Clock, options: PumpOptions | None = None
) -> AsyncIterator[Uplink]:
    parts = Uplink(endpoint, clock, options)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(parts.pump.run())
        yield parts
        task.cancel()
