"""Pump and MQTT endpoint against a real Mosquitto: rows from memory until all are confirmed.

One JSON line: messages per second, CPU microseconds per message of this process, for MQTT 3.1.1
and, with `mqtt5_` in front, for MQTT 5. Run with `python tests/bench/bench_pump.py [rows]`.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvloop

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgehub.clock import SystemClock
from edgehub.endpoints.mqtt import MqttEndpoint, MqttOptions
from edgehub.endpoints.mqtt_link import LinkOptions
from edgehub.message import DEFAULT_PRIORITY, UPSTREAM, DeliveryRules, Row, queue_id
from edgehub.mqtt.packets import LEVEL_3_1_1, LEVEL_5
from edgehub.pump.pump import Pump
from tests.support.memory_queue import MemoryCounts, NoCreations, a_row
from tests.support.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = 50_000
BODY_BYTES = 200
DEVICES = 10
TIMEOUT_S = 60


class DequeQueue:
    """The cheapest queue there can be, so that the pump and the endpoint are what is measured."""

    endpoint_id = UPSTREAM
    priority = DEFAULT_PRIORITY
    id = queue_id(UPSTREAM, DEFAULT_PRIORITY)

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = deque(rows)
        self._left = len(rows)
        self.done = asyncio.Event()

    def has_ready(self) -> bool:
        """See `PumpQueue`."""
        return bool(self._rows)

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `PumpQueue`."""
        rows = self._rows
        batch: list[Row] = []
        while rows and len(batch) < rows_max and bytes_max > 0:
            row = rows.popleft()
            bytes_max -= row.size
            batch.append(row)
        return batch

    def confirm(self, rows: Sequence[Row]) -> None:
        """See `PumpQueue`."""
        self._left -= len(rows)
        if self._left == 0:
            self.done.set()

    def give_back(self, rows: Sequence[Row], *, attempted: bool) -> None:
        """See `PumpQueue`."""
        del attempted
        self._rows.extendleft(reversed(rows))


async def measure(port: int, count: int, level: int) -> dict[str, float]:
    """Send `count` rows over a protocol level; returns the figures."""
    clock = SystemClock()
    body = b"x" * BODY_BYTES
    queue = DequeQueue(
        [a_row(number, device=f"dev-{number % DEVICES}", body=body) for number in range(count)]
    )
    link = LinkOptions(host="127.0.0.1", port=port, client_id="bench", level=level)
    endpoint = MqttEndpoint(UPSTREAM, MqttOptions(link=link), clock=clock, rng=random.Random(1))
    rules = DeliveryRules()
    pump = Pump(
        endpoint,
        queues=lambda: [queue],
        rules=lambda _row: rules,
        clock=clock,
        now_ms=clock.boottime_ms,
        rng=random.Random(1),
        close_counts=MemoryCounts(),
        dependency_tracker=NoCreations(),
    )
    async with asyncio.TaskGroup() as group:
        began, cpu = time.perf_counter(), time.process_time()
        task = group.create_task(pump.run())
        async with asyncio.timeout(TIMEOUT_S):
            await queue.done.wait()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        statistics = pump.statistics()
        task.cancel()
    return {
        "messages_s": round(count / seconds),
        "cpu_us_per_message": round(cpu_s / count * 1e6, 1),
        "window_bytes": statistics.window_bytes or 0,
    }


def main() -> None:
    """Measure once and print one JSON line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with (
        tempfile.TemporaryDirectory() as folder,
        Mosquitto(Path(folder), "max_inflight_messages 0") as broker,
    ):
        figures = uvloop.run(measure(broker.port, count, LEVEL_3_1_1))
        of_5 = uvloop.run(measure(broker.port, count, LEVEL_5))
    figures |= {f"mqtt5_{name}": value for name, value in of_5.items()}
    sys.stdout.write(json.dumps({"bench": "pump_mqtt", "rows": count, **figures}) + "\n")


if __name__ == "__main__":
    main()
