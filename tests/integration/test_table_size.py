"""A table of ten thousand routes (a thousand in short runs): start, change and comparison.

What is bounded here is time on a machine that others use too; the figures of a quiet one are in
docs/routing-table.md.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.run import GC_THRESHOLDS
from edgehub.routes.content import read_body
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.storage import Change
from tests.support.redis import RedisServer
from tests.support.route_tables import make_table, running, storages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.scaled, pytest.mark.timeout(120)]

ROUTES = 10_000 if os.environ.get("EDGEHUB_SOAK") else 1_000
START_S = 5.0
COMPARE_S = 1.0
CHANGE_S = 0.1
STALL_S = 0.1


def a_route(number: int, word: str = "k") -> dict[str, object]:
    """Make a route that nobody shares."""
    return {
        "route": f"FROM /messages/* WHERE kind = '{word}{number}' INTO $upstream",
        "priority": number % 10,
    }


@pytest.fixture(autouse=True)
def _collector_of_the_daemon() -> Iterator[None]:
    """Collect garbage as seldom as the daemon does."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)


async def test_many_routes(tmp_path: Path) -> None:
    """Hubs load them in time, a change reaches all, and a comparison stops nobody."""
    loop = asyncio.get_running_loop()
    changes = []
    for number in range(ROUTES):
        content = read_body(a_route(number), DEFAULT_TENANT).content
        key = RouteKey(DEFAULT_TENANT, f"r{number}")
        changes.append(Change(key=key, hash=content.hash, text=content.text))
    with RedisServer(tmp_path) as server:
        async with storages("redis", tmp_path, server.url, 2) as (one, two):
            for start in range(0, ROUTES, 1_000):
                await one.write(changes[start : start + 1_000], session="s")
            first, second = make_table(one, "i1", check_s=2.0), make_table(two, "i2", check_s=2.0)
            began = loop.time()
            await first.open()
            assert loop.time() - began < START_S
            assert first.statistics().live_routes == ROUTES
            async with running(second), running_on(first):
                took = []
                for number in range(20):
                    began = loop.time()
                    written = await first.put(f"r{number}", a_route(number, "new"), wait=True)
                    took.append(loop.time() - began)
                    assert written.applied is not None
                    assert written.applied.result == "complete"
                assert statistics.median(took) < CHANGE_S
                async with stalls() as found:
                    began = loop.time()
                    report = await second.drift()
                    assert loop.time() - began < COMPARE_S
                assert (report.total, report.compared) == (0, ROUTES)
                assert statistics.quantiles(found, n=100)[98] < STALL_S


@asynccontextmanager
async def running_on(table) -> AsyncIterator[None]:
    """Run a table that is open."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(table.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            await table.close()


@asynccontextmanager
async def stalls() -> AsyncIterator[list[float]]:
    """Collect how long others had to wait for their turn meanwhile, in seconds."""
    loop, found = asyncio.get_running_loop(), [0.0, 0.0]

    async def look() -> None:
        while True:
            due = loop.time() + 0.001
            await asyncio.sleep(0.001)
            found.append(loop.time() - due)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(look())
        yield found
        task.cancel()
