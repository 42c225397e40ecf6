"""Measure the store alone: append to settle, read and confirm, bytes written. One JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import uvloop

from edgehub.clock import SystemClock
from edgehub.message import UPSTREAM, Message, Priority, RouteResult
from edgehub.store import Queue, Store, StoreOptions

BODY_BYTES = 200
CACHED_ROWS = 5000


def disk_bytes() -> int:
    """Return the bytes this process has caused to be written to disk."""
    for line in Path("/proc/self/io").read_text("ascii").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


class Load:
    """A sender that keeps a number of messages unacknowledged, as many clients together would."""

    def __init__(self, store: Store, count: int, window: int, burst: int) -> None:
        self._store = store
        self._left = count
        self._unsettled = count
        self._open = 0
        self._window = window
        self._burst = burst
        self._scheduled = False
        self._results = [
            [
                RouteResult(
                    endpoint_id=UPSTREAM, priority=Priority(p), ttl_ms=7_200_000, routes=("r",)
                )
            ]
            for p in range(4)
        ]
        self.done = asyncio.Event()
        self.append_s = 0.0

    def feed(self) -> None:
        """Append one burst, and come again while the window has room."""
        self._scheduled = False
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        count = min(self._burst, self._left, self._window - self._open)
        for _ in range(count):
            number = self._left
            self._left -= 1
            message = Message(
                f"dev-{number % 100}", None, "/messages/", {"kind": "bulk"}, {}, bytes(BODY_BYTES)
            )
            self._store.appender.append(message, self._results[number % 4], self.settle, number)
        self._open += count
        self.append_s += time.perf_counter() - started
        if self._left and self._open < self._window:
            self._schedule(loop)

    def settle(self, _token: int, refusal: object) -> None:
        """Take one acknowledgement."""
        assert refusal is None
        self._open -= 1
        self._unsettled -= 1
        if not self._unsettled:
            self.done.set()
        elif self._left and not self._scheduled:
            self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self.feed)


async def drain(queues: list[Queue]) -> tuple[int, float]:
    """Read and confirm all rows; returns how many, and the seconds spent outside of waits."""
    rows = 0
    started = time.perf_counter()
    for queue in queues:
        while batch := await queue.read_batch(256, 1 << 20):
            queue.confirm(batch)
            rows += len(batch)
    return rows, time.perf_counter() - started


async def ingest(store: Store, count: int, window: int, burst: int) -> tuple[float, float]:
    """Append messages and wait for all acknowledgements; returns seconds in all, and in append."""
    started = time.perf_counter()
    load = Load(store, count, window, burst)
    load.feed()
    await load.done.wait()
    return time.perf_counter() - started, load.append_s


async def measure(
    directory: Path, count: int, window: int, burst: int, *, journal: bool
) -> dict[str, object]:
    """Fill a backlog, drain it, and let rows come and go through memory."""
    options = StoreOptions(journal=journal)
    store = await Store.open(directory / "queue.db", clock=SystemClock(), options=options)
    result: dict[str, object] = {"rows": count, "window": window, "burst": burst}
    payload = count * BODY_BYTES
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        written = [disk_bytes()]
        elapsed, append_s = await ingest(store, count, window, burst)
        result["ingest_rows_per_s"] = round(count / elapsed)
        result["append_us"] = round(append_s / count * 1e6, 2)
        result["rows_per_commit"] = round(count / store.statistics().commits_total, 1)
        written.append(disk_bytes())
        rows, seconds = await drain(store.queues.all())
        assert rows == count
        await store.writer.flush()
        result["drain_rows_per_s"] = round(rows / seconds)
        written.append(disk_bytes())
        passes = max(1, count // CACHED_ROWS)
        seconds = 0.0
        for _ in range(passes):
            await ingest(store, CACHED_ROWS, CACHED_ROWS, CACHED_ROWS)
            rows, read_s = await drain(store.queues.all())
            assert rows == CACHED_ROWS
            seconds += read_s
            await store.writer.flush()
        result["cached_read_confirm_us"] = round(seconds / passes / CACHED_ROWS * 1e6, 2)
        written.append(disk_bytes())
        running.cancel()
    await store.close()
    result["written_per_byte_filling"] = round((written[1] - written[0]) / payload, 2)
    result["written_per_byte_draining"] = round((written[2] - written[1]) / payload, 2)
    passed = passes * CACHED_ROWS * BODY_BYTES
    result["written_per_byte_passing"] = round((written[3] - written[2]) / passed, 2)
    return result


def main() -> None:
    """Print the figures of one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--burst", type=int, default=50)
    parser.add_argument("--journal", action="store_true", help="write events, read by nobody")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = uvloop.run(
            measure(
                Path(directory),
                arguments.rows,
                arguments.window,
                arguments.burst,
                journal=arguments.journal,
            )
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
