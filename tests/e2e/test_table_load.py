"""Messages go on while a large table is compared row by row and the API is polled."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import threading
import time
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from edgehub.routes.content import read_body
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.storage import Change
from tests.support import mqtt_wire
from tests.support.redis import RedisServer
from tests.support.route_tables import storages
from tests.support.web import Api, web_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.support.daemon import Daemon

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
ROUTES = 10_000 if SOAK else 1_000
PAIRS = 5 if SOAK else 3
MESSAGES = 400 if SOAK else 100
MOVED_S = 0.05
"""So much the 99th percentile may move, in the median of some rounds, by comparisons without pause,
and by polls of the largest answers in addition: what a hub does without end it does in turn with
its messages. How long a comparison keeps them waiting is bounded in test_table_size."""

PATHS = ("/api/v1/status", "/metrics", "/api/v1/routes?limit=1000", "/api/v1/routes?after=r5")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.scaled,
    pytest.mark.alone,
    pytest.mark.timeout(600 if SOAK else 120),
]


def test_a_comparison_and_a_poll_do_not_move_the_acknowledgement(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """The 99th percentile from publish to PUBACK is as it was without them."""
    with RedisServer(tmp_path) as server:
        asyncio.run(fill(server, tmp_path))
        shared = f'[redis]\nurl = "{server.url}"\nprefix = "test"\n'
        shared += '[routing_table]\nstorage = "redis"\n'
        daemon, api = web_daemon(make_daemon, extra=shared)
        assert daemon.call("status")["routing_table"]["live_routes"] == ROUTES
        # A row that no table can hold: sums differ, so that each comparison reads every row.
        server.command("HSET", "{test:routes}:rows", "x", "y")
        quiet, compared, polled = [], [], []
        for _ in range(PAIRS):
            quiet.append(latency(daemon))
            with comparing(daemon) as rounds:
                compared.append(latency(daemon))
            assert rounds[0] > 0
            with comparing(daemon), polling(api) as polls:
                polled.append(latency(daemon))
            assert polls[0] > 0
        for name, each in (("quiet", quiet), ("compared", compared), ("polled", polled)):
            print(name, " ".join(f"{1000 * p99:.1f}" for p99 in each), "ms")
        before = statistics.median(quiet)
        assert statistics.median(compared) < before + MOVED_S
        assert statistics.median(polled) < before + MOVED_S
        assert daemon.stop() == 0


async def fill(server: RedisServer, folder: Path) -> None:
    """Store routes that nobody shares."""
    changes = []
    for number in range(ROUTES):
        body = {"route": f"FROM /messages/* WHERE kind = 'k{number}' INTO $upstream"}
        content = read_body(body, DEFAULT_TENANT).content
        key = RouteKey(DEFAULT_TENANT, f"r{number}")
        changes.append(Change(key=key, hash=content.hash, text=content.text))
    async with storages("redis", folder, server.url) as (storage,):
        for start in range(0, ROUTES, 1_000):
            await storage.write(changes[start : start + 1_000], session="s")


def latency(daemon: Daemon) -> float:
    """Return the 99th percentile from publish to PUBACK in seconds."""
    return statistics.quantiles(acknowledged(daemon.mqtt_port), n=100)[98]


def acknowledged(port: int) -> list[float]:
    """Publish one message after the other; gives the seconds of each until its PUBACK."""
    took = []
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(mqtt_wire.connect("d1"))
        assert client.recv(4)[0] == mqtt_wire.CONNACK
        for number in range(MESSAGES):
            topic = f"devices/d1/messages/events/kind=k{number % ROUTES}"
            message = mqtt_wire.publish(topic, b"x" * 200, qos=1, packet_id=number + 1)
            start = time.perf_counter()
            client.sendall(message)
            assert client.recv(4)[0] == mqtt_wire.PUBACK
            took.append(time.perf_counter() - start)
            # As from a device that has something to say now and then.
            time.sleep(0.002)
    return took


def comparing(daemon: Daemon) -> AbstractContextManager[list[int]]:
    """Compare all rows again and again meanwhile; gives how often."""

    def compare() -> None:
        assert daemon.call("route drift")["compared"] >= ROUTES

    return repeated(compare, 0.0)


def polling(api: Api) -> AbstractContextManager[list[int]]:
    """Ask the API for large answers meanwhile; gives how often."""
    paths = cycle(PATHS)

    def poll() -> None:
        assert api.get(next(paths)).status == 200

    return repeated(poll, 0.02)


@contextmanager
def repeated(work: Callable[[], None], wait_s: float) -> Iterator[list[int]]:
    """Do something again and again on another thread; gives how often."""
    done, rounds = threading.Event(), [0]

    def run() -> None:
        while not done.wait(wait_s):
            work()
            rounds[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield rounds
    finally:
        done.set()
        thread.join()
