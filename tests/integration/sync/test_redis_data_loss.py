"""A real Redis that loses its data again and again: no route that somebody stored is lost with it.

Each seed is one history: three hubs write, one of them may be killed and come back with or without
the copy on its disk, and the server is killed without its data, or emptied by hand, at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import SystemClock
from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.storage.state_file import StateFile
from edgehub.sync.disk_copy import DiskCopy
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.redis import RedisStorage
from edgehub.sync.sqlite import SCRIPT
from edgehub.sync.storage import DEFAULTS
from tests.support.redis import RedisServer
from tests.support.route_tables import PREFIX, make_table, running, until
from tests.unit.sync.test_routing_table import manifest

if TYPE_CHECKING:
    from pathlib import Path

    from edgehub.sync.routing_table import RoutingTable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
STEPS = 60 if SOAK else 25
CONVERGE_S = 5.0
CONDITIONS = ("a", "b", "c", "d")
FILE = manifest(m1="FROM /messages/* WHERE kind = 'm' INTO $upstream")


class Hub:
    """One hub with its own link and state file."""

    def __init__(self, server: RedisServer, folder: Path, name: str) -> None:
        self.server = server
        self.folder = folder
        self.name = name
        self.stack = AsyncExitStack()
        self.table: RoutingTable

    async def start(self) -> None:
        """Open and run; the state file of an earlier run is there again."""
        link = RedisLink(RedisOptions(url=self.server.url))
        self.stack.push_async_callback(link.close)
        self.folder.mkdir(exist_ok=True)
        file = await StateFile.open(self.folder / f"{self.name}.db", [SCRIPT])
        self.stack.push_async_callback(file.close)
        storage = RedisStorage(link, prefix=PREFIX, instance=self.name)
        self.table = make_table(storage, self.name, manifest=FILE)
        self.table.copy_to(lambda known: DiskCopy(file, known, SystemClock(), table="t"))
        await self.stack.enter_async_context(running(self.table))

    async def stop(self) -> None:
        """End in order."""
        await self.stack.aclose()

    def forget(self) -> None:
        """Lose the disk as well."""
        for file in self.folder.glob(f"{self.name}.db*"):
            file.unlink()


class Losses:
    """One history.

    Args:
        server: A running Redis that keeps nothing.
        folder: For state files.
        seed: Decides everything.
    """

    def __init__(self, server: RedisServer, folder: Path, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.hubs = [Hub(server, folder, name) for name in ("i1", "i2", "i3")]
        self.want = {"m1": "FROM /messages/* WHERE kind = 'm' INTO $upstream"}
        self.done: list[str] = []

    async def run(self) -> None:
        """Let it happen, and see that every hub and the server have all routes in the end."""
        for hub in self.hubs:
            await hub.start()
        try:
            for _ in range(STEPS):
                kinds = {self.put: 12, self.remove: 4, self.kill: 2, self.flush: 1, self.restart: 2}
                (work,) = self.rng.choices(list(kinds), weights=list(kinds.values()))
                self.done.append(work.__name__)
                await work()
            await self.settle()
            for hub in self.hubs:
                assert (await hub.table.drift()).total == 0, self.done
            server = self.server.command("HKEYS", f"{{{PREFIX}:routes}}:rows").decode()
            assert all(f"/{name}\r\n" in server for name in (*self.want, DEFAULTS.id)), server
        finally:
            for hub in self.hubs:
                await hub.stop()

    async def settle(self) -> None:
        """Wait until all hubs run what people wanted last."""
        with contextlib.suppress(TimeoutError):
            await until(self.converged, CONVERGE_S)
        found = {hub.name: self.runs(hub) for hub in self.hubs}
        wrong = {name: sorted(each.items() ^ self.want.items()) for name, each in found.items()}
        assert not any(wrong.values()), (self.want, wrong, self.done)

    def converged(self) -> bool:
        """Return whether all hubs run what people wanted last."""
        return all(self.runs(hub) == self.want for hub in self.hubs)

    def runs(self, hub: Hub) -> dict[str, str]:
        """Return the routes that a hub runs."""
        live = hub.table.live
        contents = {key.id: live.content(each) for key, each in live.ids().items()}
        return {name: each.members["route"] for name, each in contents.items() if each is not None}

    async def put(self) -> None:
        """Store a route."""
        name = f"r{self.rng.randrange(6)}"
        route = f"FROM /messages/* WHERE kind = '{self.rng.choice(CONDITIONS)}' INTO $upstream"
        await self.ask("put", name, route)
        self.want[name] = route

    async def remove(self) -> None:
        """Remove a route; a hub that came to an empty server may know of none."""
        name = f"r{self.rng.randrange(6)}"
        if await self.ask("delete", name):
            self.want.pop(name, None)

    async def ask(self, name: str, *arguments: Any) -> bool:
        """Ask any hub until all have applied it; say whether it changed anything."""
        hub = self.rng.choice(self.hubs)
        changed = False
        while True:
            try:
                written = await getattr(hub.table, name)(*arguments, wait=True)
            except StorageUnavailableError:
                await asyncio.sleep(0.02)
                continue
            assert written.applied is not None
            changed = changed or written.changed
            if written.applied.result == "complete":
                return changed

    async def kill(self) -> None:
        """Stop a hub that knows no more than the others; it may come back with an empty disk."""
        await self.settle()
        hub = self.rng.choice(self.hubs)
        await hub.stop()
        if self.rng.random() < 0.5:
            hub.forget()
        if self.rng.random() < 0.5:
            # It meets a server that never heard of a table, perhaps before the others do.
            await self.restart()
        await hub.start()

    async def flush(self) -> None:
        """Empty the server by hand: its clients stay connected."""
        self.server.command("FLUSHALL")

    async def restart(self) -> None:
        """Kill the server; it comes back without its data."""
        await asyncio.to_thread(self.server.stop, forget=True)
        await asyncio.sleep(self.rng.random() * 0.3)
        await asyncio.to_thread(self.server.start)


@pytest.mark.parametrize("seed", range(15 if SOAK else 1))
@pytest.mark.scaled
async def test_no_route_is_lost_with_the_data_of_the_server(seed: int, tmp_path: Path) -> None:
    """Whatever was answered is there in the end, on every hub and in the server, and no more."""
    with RedisServer(tmp_path) as server:
        await Losses(server, tmp_path / "hubs", seed).run()
