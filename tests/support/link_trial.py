"""Measure an endpoint behind a saturated link: how long alarms wait, how much of the link is used.

Owns the load: a queue of bulk rows that never runs empty, alarms at random moments, and a peer that
notes what arrives when. Waits are counted beyond the bare way, which is measured before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import paho.mqtt.client as paho

from edgehub.clock import SystemClock
from edgehub.mqtt.batch import read_batch
from tests.support.memory_queue import a_row
from tests.support.mosquitto import Mosquitto
from tests.support.uplink import batched_rows, http_uplink, uplink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.memory_queue import MemoryQueue
    from tests.support.thin_path import ThinPath
    from tests.support.uplink import Uplink

DEVICES = 20
ALARMING_DEVICES = 5
ALARM = b"alarm "
BULK_WAITING = {"mqtt": 160, "http": 160, "batches": 400}
"""Rows: seconds of a thin link; a batch takes up to 256 at once."""
ALARM_BYTES = 250
ALARM_SHARE = 0.05
BARE_ALARMS = 3
STEP_S = 0.02
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
LAST_ALARMS_S = 90
DRAIN_S = 240


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed.

    Attributes:
        bare_s: An alarm's way over the idle link, in seconds.
        waits_s: What the alarms took beyond that, sorted.
        used: Share of the time in which the link transmitted upward.
        bodies_s: Bulk rows that arrived per second.
    """

    bare_s: float
    waits_s: list[float]
    used: float
    bodies_s: float

    def wait_s(self, share: float) -> float:
        """Return a quantile of the waits in seconds."""
        return self.waits_s[min(len(self.waits_s) - 1, int(len(self.waits_s) * share))]

    def __str__(self) -> str:
        return (
            f"bare {self.bare_s:.3f} s, {len(self.waits_s)} alarms: p50 {self.wait_s(0.5):.3f} "
            f"p99 {self.wait_s(0.99):.3f} max {self.waits_s[-1]:.3f} s, "
            f"link {100 * self.used:.1f} % used, {self.bodies_s:.1f} bulk rows/s"
        )


class Arrivals:
    """What the peer got; `take` may be called from any thread."""

    def __init__(self) -> None:
        self.at: dict[bytes, float] = {}
        self.bulk = 0
        self._clock = SystemClock()

    def take(self, body: bytes) -> None:
        """Note one body."""
        if body.startswith(ALARM):
            self.at.setdefault(body, self._clock.monotonic())
        else:
            self.bulk += 1

    def take_payload(self, payload: bytes) -> None:
        """Record the body, or the bodies of a batch."""
        if payload.startswith(ZSTD_MAGIC):
            for record in read_batch(payload, bytes_max=2**21):
                self.take(record["body"].encode())
        else:
            self.take(payload)


class Trial:
    """One measurement.

    Args:
        parts: Pump and endpoint, started.
        path: The link between it and the peer.
        arrivals: The peer's notes.
        bit_s: Rate of the link upward; to be kept true by who changes it.
        bulk_waiting: Bulk rows that wait whenever the link is saturated.
    """

    def __init__(
        self,
        parts: Uplink,
        path: ThinPath,
        arrivals: Arrivals,
        *,
        bit_s: float,
        bulk_waiting: int,
        seed: int = 5,
    ) -> None:
        self.path = path
        self.bit_s = bit_s
        self._parts = parts
        self._arrivals = arrivals
        self._rng = random.Random(seed)
        self._clock = SystemClock()
        self._bulk: MemoryQueue = parts.queue()
        self._alarms: MemoryQueue = parts.queue(0)
        self._bulk_waiting = bulk_waiting
        self._offset = 0
        self._put_at: dict[bytes, float] = {}
        self._bare_s = 0.0

    async def measure_bare(self) -> None:
        """Measure the way of an alarm over the idle link."""
        await self._parts.until(lambda: self._parts.endpoint.state == "up", 60)
        took: list[float] = []
        for _ in range(BARE_ALARMS):
            body = self._put_alarm(self._alarms)
            await self._parts.until(lambda body=body: body in self._arrivals.at, 60)
            await self._parts.until(lambda: not self._alarms.in_flight, 60)
            took.append(self._arrivals.at[body] - self._put_at[body])
        self._bare_s = min(took)

    async def saturate(self, seconds: float) -> None:
        """Let bulk flow, without measuring."""
        end = self._clock.monotonic() + seconds
        while self._clock.monotonic() < end:
            self._top_up(self._bulk_waiting)
            await asyncio.sleep(STEP_S)

    async def measure(self, seconds: float) -> Outcome:
        """Saturate the link, with alarms of their own priority among the bulk."""
        return await self._measure(seconds, self._alarms, self._bulk_waiting)

    async def measure_fifo(self, seconds: float, *, backlog_s: float) -> Outcome:
        """Do the same with alarms that stand in one queue with the bulk.

        Args:
            seconds: How long.
            backlog_s: How long the link takes for what waits.
        """
        rows = round(backlog_s * self.bit_s / 8 / ALARM_BYTES)
        await self._parts.until(lambda: len(self._bulk.rows) <= rows, DRAIN_S)
        return await self._measure(seconds, self._bulk, rows)

    async def _measure(self, seconds: float, queue: MemoryQueue, waiting: int) -> Outcome:
        every_s = max(0.5, ALARM_BYTES * 8 / self.bit_s / ALARM_SHARE)
        self._put_at.clear()
        passed, bulk = self.path.bytes_passed, self._arrivals.bulk
        began = self._clock.monotonic()
        next_alarm_at = began + every_s * self._rng.random()
        while (now := self._clock.monotonic()) < began + seconds:
            self._top_up(waiting)
            if now >= next_alarm_at:
                self._put_alarm(queue)
                next_alarm_at = now + every_s * self._rng.uniform(0.5, 1.5)
            await asyncio.sleep(STEP_S)
        took_s = self._clock.monotonic() - began
        used = (self.path.bytes_passed - passed) * 8 / self.bit_s / took_s
        bodies_s = (self._arrivals.bulk - bulk) / took_s
        with contextlib.suppress(TimeoutError):
            await self._parts.until(
                lambda: self._put_at.keys() <= self._arrivals.at.keys(), LAST_ALARMS_S
            )
        missing = [body for body in self._put_at if body not in self._arrivals.at]
        assert not missing, missing
        waits = [self._arrivals.at[body] - at - self._bare_s for body, at in self._put_at.items()]
        return Outcome(self._bare_s, sorted(waits), used, bodies_s)

    def _put_alarm(self, queue: MemoryQueue) -> bytes:
        self._offset += 1
        body = (ALARM + b"%d " % self._offset).ljust(200, b"-")
        self._put_at[body] = self._clock.monotonic()
        # From one device, over HTTP, each would wait for the answer to the one before.
        device = f"alarmer-{len(self._put_at) % ALARMING_DEVICES}"
        queue.put(a_row(self._offset, device=device, body=body))
        return body

    def _top_up(self, waiting: int) -> None:
        missing = waiting - len(self._bulk.rows)
        rows = []
        for _ in range(missing):
            self._offset += 1
            device = f"dev-{self._offset % DEVICES}"
            body = telemetry(self._rng, self._offset)
            rows.append(a_row(self._offset, device=device, body=body))
        if rows:
            self._bulk.put(*rows)


def telemetry(rng: random.Random, number: int) -> bytes:
    """Give what a machine says of itself every few seconds: 200 bytes, every value another one."""
    values = {
        "ts": 1_764_300_000_000 + number * 137,
        "temperature": round(rng.gauss(64, 4), 2),
        "pressure": round(rng.gauss(1013, 6), 2),
        "vibration": [round(rng.random(), 3) for _ in range(3)],
        "rpm": rng.randint(1000, 2000),
        "power_w": round(rng.gauss(740, 90), 1),
        "oil": {"temperature": round(rng.gauss(51, 2), 1), "level": round(rng.random(), 2)},
        "state": rng.choice(("run", "run", "run", "idle", "stop")),
        "cycle": number // DEVICES,
    }
    return json.dumps(values).encode()


@contextlib.asynccontextmanager
async def trial(
    kind: str, path: ThinPath, folder: Path, *, bit_s: float, holds: bool = True
) -> AsyncIterator[Trial]:
    """Set up a peer behind the link and an endpoint before it, and measure the bare way.

    Args:
        kind: `mqtt`, towards a Mosquitto with a subscriber, `batches` with compressed batches, or
            `http`.
        path: The link.
        folder: For the broker.
        bit_s: Rate of the link upward.
        holds: The broker holds a confirmation back until the one before is acknowledged, as a
            Mosquitto does that is not told otherwise; a parent hub does not.
    """
    arrivals = Arrivals()
    with contextlib.ExitStack() as stack:
        with path.far():
            if kind != "http":
                lines = () if holds else ("set_tcp_nodelay true",)
                broker = stack.enter_context(Mosquitto(folder, *lines, host=path.host))
                stack.enter_context(_subscriber(path.host, broker.port, arrivals))
                port = broker.port
            else:
                port = stack.enter_context(_collector(path.host, arrivals))
        stack.enter_context(path.near())
        host, port = path.reach(port)
        if kind == "mqtt":
            running = uplink(port, host=host)
        elif kind == "batches":
            running = uplink(port, host=host, payloads=batched_rows())
        else:
            running = http_uplink(f"http://{host}:{port}/in")
        async with running as parts:
            measured = Trial(parts, path, arrivals, bit_s=bit_s, bulk_waiting=BULK_WAITING[kind])
            await measured.measure_bare()
            yield measured


@contextlib.contextmanager
def _subscriber(host: str, port: int, arrivals: Arrivals) -> Iterator[None]:
    subscribed = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: arrivals.take_payload(message.payload)
    client.on_subscribe = lambda *_arguments: subscribed.set()
    client.connect(host, port)
    client.loop_start()
    try:
        client.subscribe("#", 1)
        assert subscribed.wait(10)
        yield
    finally:
        client.disconnect()
        client.loop_stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._sockets: list[socket.socket] = []

    def process_request(self, request: socket.socket, client_address: object) -> None:
        """Remember the connection: one over a link that is gone would never end by itself."""
        self._sockets.append(request)
        super().process_request(request, client_address)

    def end_connections(self) -> None:
        """Wake every handler that still reads."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: connections end as the link does."""


@contextlib.contextmanager
def _collector(host: str, arrivals: Arrivals) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            for record in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
                arrivals.take(record["body"].encode())
            self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")

        def log_message(self, *_arguments: object) -> None:
            """Keep the test's output clean."""

    server = _Server((host, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        server.end_connections()
        thread.join(10)
