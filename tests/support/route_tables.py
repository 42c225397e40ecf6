"""Routing tables of several hubs on one storage, with a host that counts what routes need."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.routes.live import BuildError
from edgehub.routes.manifest import parse_manifest
from edgehub.storage.state_file import StateFile
from edgehub.sync.options import TableOptions
from edgehub.sync.redis import RedisStorage
from edgehub.sync.routing_table import RoutingTable
from edgehub.sync.sqlite import SCRIPT, TEMPORARY, SqliteStorage
from tests.support.fast_clock import FastClock
from tests.support.memory_table import MemoryStorage, MemoryTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

EMPTY = parse_manifest(
    {
        "schemaVersion": "1.1",
        "routes": {},
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    },
    file="empty manifest",
)
PREFIX = "test"


class CountingHost:
    """Stands below live routes: counts what is open, and refuses to build what it is told to.

    Attributes:
        open: What is open, each with the number of routes that need it.
        closed: How often each was closed.
        starts: How often the live route of a hash was started.
        stops: Likewise stopped.
        broken: Hashes that cannot be built.
        tables: Tables put in force so far.
    """

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.closed: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.running: set[str] = set()
        self.broken: set[str] = set()
        self.tables = 0
        self.table = None

    def check(self, content) -> None:
        """Refuse what is broken."""
        if content.hash in self.broken:
            raise BuildError("the host refuses it")

    def open_source(self, tenant, source) -> None:
        """See `RouteHost`."""
        self._open(f"source:{tenant.label}{source}")

    def close_source(self, tenant, source) -> None:
        """See `RouteHost`."""
        self._close(f"source:{tenant.label}{source}")

    def open_endpoint(self, endpoint_id) -> None:
        """See `RouteHost`."""
        self._open(f"endpoint:{endpoint_id}")

    def close_endpoint(self, endpoint_id) -> None:
        """See `RouteHost`."""
        self._close(f"endpoint:{endpoint_id}")

    def put_in_force(self, table) -> None:
        """See `RouteHost`."""
        self.tables += 1
        self.table = table

    def started(self, content) -> None:
        """See `RouteHost`."""
        assert content.hash not in self.running
        self.running.add(content.hash)
        self.starts[content.hash] += 1

    def stopped(self, content) -> None:
        """See `RouteHost`."""
        self.running.discard(content.hash)
        self.stops[content.hash] += 1

    def _open(self, name: str) -> None:
        assert name not in self.open, f"{name} is open already"
        self.open.add(name)

    def _close(self, name: str) -> None:
        self.open.remove(name)
        self.closed[name] += 1


def make_table(storage, name: str, *, host=None, manifest=EMPTY, clock=None, **options):
    """Make one hub's table, not opened yet."""
    return RoutingTable(
        storage,
        CountingHost() if host is None else host,
        TableOptions(instance=name, **{"hub_id": name, "shared": True, "check_s": 0.2, **options}),
        manifest,
        clock=clock or FastClock(5),
        rng=random.Random(name),
    )


@asynccontextmanager
async def running(*tables: RoutingTable) -> AsyncIterator[None]:
    """Open tables and run them meanwhile."""
    for table in tables:
        await table.open()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(table.run()) for table in tables]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for table in tables:
                await table.close()


@asynccontextmanager
async def storages(kind: str, folder: Path, url: str = "", count: int = 1) -> AsyncIterator[list]:
    """Return `count` hubs' accesses `i1`, `i2`, ... to one storage."""
    names = [f"i{number}" for number in range(1, count + 1)]
    clock = FastClock(5)
    if kind == "double":
        shared = MemoryTable(clock)
        yield [MemoryStorage(shared, instance=name) for name in names]
    elif kind in {"sqlite", "memory"}:
        assert count == 1
        scripts = [SCRIPT if kind == "sqlite" else TEMPORARY]
        file = await StateFile.open(folder / "state.db", scripts)
        try:
            yield [SqliteStorage(file, clock, kind=kind)]
        finally:
            await file.close()
    else:
        links = [RedisLink(RedisOptions(url=url)) for _ in names]
        try:
            yield [
                RedisStorage(link, prefix=PREFIX, instance=name)
                for link, name in zip(links, names, strict=True)
            ]
        finally:
            for link in links:
                await link.close()


def lose(table: MemoryTable) -> None:
    """Have a table in memory lose all that it has, as a server that restarts without its data."""
    for each in (table.rows, table.texts, table.uses, table.log, table.reports):
        each.clear()
    table.epoch = table.revision = 0
    table.begun = None


async def until(condition, timeout_s: float = 5.0) -> None:
    """Wait until something that gives no event is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
