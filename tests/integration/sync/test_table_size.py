"""A table of ten thousand routes (a thousand in short runs): start, change and comparison.

What is bounded here is processor time, and for changes the middle of many: others use the machine
too. The figures of a quiet one are in docs/explanation/routing-table.md.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest

from edgehub.cli.main import GC_THRESHOLDS
from edgehub.routes.content import read_body
from edgehub.routes.tenant import DEFAULT_TENANT, RouteKey
from edgehub.sync.storage import Change
from edgehub.telemetry.log import configure
from edgehub.web.answers import encoded
from tests.support.redis import RedisServer
from tests.support.route_tables import PREFIX, make_table, running, storages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.scaled, pytest.mark.timeout(120)]

ROUTES = 10_000 if os.environ.get("EDGEHUB_SOAK") else 1_000
START_S = 5.0
COMPARE_S = 1.0
CHANGE_S = 0.1
STEP_S = 0.005
"""Processor time of one step of the loop, whatever else the machine does meanwhile."""


def a_route(number: int, word: str = "k") -> dict[str, object]:
    """Make a route that nobody shares."""
    return {
        "route": f"FROM /messages/* WHERE kind = '{word}{number}' INTO $upstream",
        "priority": number % 10,
    }


@pytest.fixture(autouse=True)
def _as_the_daemon() -> Iterator[None]:
    """Collect garbage as seldom as the daemon does, and log as much."""
    configure(level="info", fmt="json")
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


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
            with spent("start") as took_s:
                await first.open()
            assert took_s[0] < START_S
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
                gc.collect()
                gc.freeze()
                with steps() as found, spent("sums") as took_s:
                    report = await second.drift()
                assert took_s[0] < COMPARE_S
                assert (report.total, report.compared) == (0, ROUTES)
                # A row that no table can hold: the sums differ, so that every row is read.
                server.command("HSET", f"{{{PREFIX}:routes}}:rows", "x", "y")
                with steps() as every_row, spent("rows") as took_s:
                    assert (await second.drift()).total == 0
                assert took_s[0] < COMPARE_S
                with steps() as listed:
                    page = await second.list(limit=1_000)
                    assert len(encoded(page)) > 100_000
                for name, each in (("sums", found), ("rows", every_row), ("list", listed)):
                    print(f"{name}: {len(each)} steps, longest {1000 * max(each):.2f} ms")
                    assert max(each) < STEP_S, name


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


@contextmanager
def spent(name: str) -> Iterator[list[float]]:
    """Collect the seconds of processor that something takes, whatever else the machine does."""
    took: list[float] = []
    wall, processor = time.perf_counter(), time.process_time()
    yield took
    took.append(time.process_time() - processor)
    print(f"{name}: {time.perf_counter() - wall:.2f} s, of processor {took[0]:.2f} s")


@contextmanager
def steps() -> Iterator[list[float]]:
    """Collect how long others had to wait for each step of the loop, in seconds of processor."""
    found: list[float] = []
    run = asyncio.Handle._run  # noqa: SLF001 - there is no other way to see a step

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        found.append(time.thread_time() - began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        yield found
