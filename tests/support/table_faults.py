"""Random histories of three hubs on one table, with everything that may go wrong between them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from edgehub.redis_link.link import RedisLink
from edgehub.redis_link.options import RedisOptions
from edgehub.routes.tenant import RouteKey, Tenant
from edgehub.sync.faults import StorageUnavailableError, TableError
from edgehub.sync.redis import RedisStorage
from edgehub.sync.storage import DEFAULTS, StoredRow
from tests.support.route_sync import Instance, World

if TYPE_CHECKING:
    from tests.support.redis import RedisServer

HOME = Tenant("acme", "one")
IDS = [f"r{number}" for number in range(8)]
CONDITIONS = ["a = '1'", "b = '2'", "as_number(c) > 3", "d = '4' OR e = '5'", ""]
HUBS = ("i1", "i2", "i3")
CONVERGE_S = 5.0


class History:
    """One random history.

    Args:
        server: A running Redis whose data outlives a stop.
        seed: Decides everything.
        steps: How many things happen.
    """

    def __init__(self, server: RedisServer, seed: int, steps: int) -> None:
        document = {"tenants": {"t1": {"org": "acme", "app": "one"}}, "configs": {}}
        self.world = World(document, {"id": f"seed{seed}"}, server)
        self.rng = random.Random(seed)
        self.steps = steps
        self.edits = seed % 4 == 0
        self.done: list[str] = []
        self.writes: set[asyncio.Task[Any]] = set()

    async def run(self) -> tuple[float, list[str]]:
        """Let it happen; give the seconds until all hubs equal the storage, and what is wrong."""
        world = self.world
        link = RedisLink(RedisOptions(url=world.url))
        world.control = RedisStorage(link, prefix=world.prefix, instance="control")
        try:
            async with asyncio.TaskGroup() as world.group:
                try:
                    for name in HUBS:
                        world.instances[name] = Instance(world, name)
                        await world.instances[name].start()
                    for _ in range(self.steps):
                        await self.happen()
                    await self.heal()
                    return await self.converged()
                finally:
                    for instance in world.instances.values():
                        if instance.up:
                            await instance.kill()
        finally:
            await world.control.close()
            await link.close()

    async def happen(self) -> None:
        """Let one thing happen."""
        rng = self.rng
        kinds = {
            self.write: 60,
            self.lose: 10,
            self.double: 4,
            self.hold: 4,
            self.shuffle: 4,
            self.stall: 4,
            self.cut_channel: 3,
            self.cut_connections: 3,
            self.fail_reads: 2,
            self.restart_hub: 3,
            self.restart_server: 1,
            self.forget: 0.6,
            self.remember: 2,
            self.rewind: 1.5,
            # What no revision tells is mended by the comparison, which mends all else as well.
            self.edit: 1 if self.edits else 0,
        }
        (work,) = rng.choices(list(kinds), weights=list(kinds.values()))
        self.done.append(work.__name__)
        await work()
        if rng.random() < 0.7:
            await asyncio.sleep(rng.random() * 0.01)

    def any_hub(self) -> Instance:
        """Return one that runs."""
        return self.rng.choice([each for each in self.world.instances.values() if each.serves])

    async def write(self) -> None:
        """Have a hub change a route, without waiting for it."""
        task = self.world.group.create_task(self._write(self.any_hub()))
        self.writes.add(task)
        task.add_done_callback(self.writes.discard)

    async def _write(self, hub: Instance) -> None:
        rng = self.rng
        route_id = rng.choice(IDS)
        with contextlib.suppress(TableError):
            if rng.random() < 0.3:
                await hub.table.delete(route_id, tenant=HOME, timeout_s=1)
            elif rng.random() < 0.15:
                await hub.table.disable(route_id, tenant=HOME, timeout_s=1)
            else:
                await hub.table.put(route_id, self.body(), tenant=HOME, timeout_s=1)

    def body(self) -> dict[str, Any]:
        """Make a route."""
        condition = self.rng.choice(CONDITIONS)
        where = f" WHERE {condition}" if condition else ""
        return {
            "route": f'FROM /messages/*{where} INTO Endpoint("e{self.rng.randrange(3)}")',
            "priority": self.rng.randrange(3),
        }

    async def lose(self) -> None:
        """Lose the next notices to a hub."""
        self.any_hub().around.lose += self.rng.randrange(1, 4)

    async def double(self) -> None:
        """Deliver the next notice three times."""
        self.any_hub().around.doubles = 2

    async def hold(self) -> None:
        """Hold back notices to a hub from now on."""
        self.any_hub().around.manual = True

    async def shuffle(self) -> None:
        """Hand over some of what is held back, in another order."""
        channel = self.any_hub().storage.channel
        held, channel.held = channel.held, []
        self.rng.shuffle(held)
        channel.hand_over(held[: self.rng.randrange(len(held) + 1)])

    async def stall(self) -> None:
        """Have a hub stop or go on reading notices."""
        hub = self.any_hub()
        hub.around.stalled = not hub.around.stalled
        hub.storage.channel.arrived.set()

    async def cut_channel(self) -> None:
        """Cut or mend the way of notices to a hub."""
        hub = self.any_hub()
        hub.around.cut = not hub.around.cut
        hub.storage.channel.arrived.set()

    async def fail_reads(self) -> None:
        """Have reads of a hub fail, or not any more."""
        self.any_hub().around.faults ^= {"read"}

    async def cut_connections(self) -> None:
        """Close all connections to the server."""
        self.world.server.cut()

    async def restart_hub(self) -> None:
        """Kill or stop a hub and start it anew."""
        hub = self.any_hub()
        await (hub.kill() if self.rng.random() < 0.7 else hub.stop())
        fresh = Instance(self.world, hub.name)
        self.world.instances[hub.name] = fresh
        await self._come_up(fresh)

    async def _come_up(self, hub: Instance) -> None:
        while not hub.serves:
            try:
                await hub.start()
            except StorageUnavailableError:
                await asyncio.sleep(0.05)

    async def restart_server(self) -> None:
        """Kill the server and start it with its data."""
        await asyncio.to_thread(self.world.server.stop)
        await asyncio.sleep(self.rng.random() * 0.2)
        await asyncio.to_thread(self.world.server.start)

    async def forget(self) -> None:
        """Kill the server and start it without its data."""
        await asyncio.to_thread(self.world.server.stop, forget=True)
        await asyncio.to_thread(self.world.server.start)

    async def remember(self) -> None:
        """Keep the server's data as they are, for `rewind`."""
        await asyncio.to_thread(self.world.server.remember)

    async def rewind(self) -> None:
        """Kill the server and start it with older data: revisions are given a second time."""
        await asyncio.to_thread(self.world.server.stop, rewind=True)
        await asyncio.to_thread(self.world.server.start)

    async def edit(self) -> None:
        """Take a row away behind the table's back."""
        rows = f"{{{self.world.prefix}:routes}}:rows"
        self.world.server.command("HDEL", rows, f"{HOME}/{self.rng.choice(IDS)}")

    async def heal(self) -> None:
        """End every fault; what is under way ends as it likes."""
        for instance in self.world.instances.values():
            around, channel = instance.around, instance.storage.channel
            around.faults.clear()
            around.lose = around.doubles = 0
            around.manual = around.stalled = around.cut = False
            channel.held.clear()
            channel.arrived.set()
        if self.writes:
            await asyncio.wait(self.writes)
        if "edit" in self.done:
            for instance in self.world.instances.values():
                with contextlib.suppress(StorageUnavailableError):
                    await instance.table.drift()

    async def converged(self) -> tuple[float, list[str]]:
        """Wait until all hubs equal the storage."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            wrong = await self.wrong()
            took = loop.time() - start
            if not wrong or took > CONVERGE_S:
                return took, wrong
            await asyncio.sleep(0.02)

    async def wrong(self) -> list[str]:
        """Return which hubs do not run what the storage says, or run what nobody refers to."""
        try:
            rows = {row.key: row async for page in self.world.control.scan() for row in page}
        except StorageUnavailableError as error:
            return [str(error)]
        rows.pop(DEFAULTS, None)
        want = {
            key: row.hash for key, row in rows.items() if isinstance(row, StoredRow) and row.enabled
        }
        found = []
        for name, instance in self.world.instances.items():
            ids = instance.table.live.ids()
            if ids != want:
                found.append(f"{name} runs {_shown(ids)}, want {_shown(want)}")
            if instance.host.running != set(ids.values()):
                found.append(f"{name}: what runs is not what ids refer to")
            needed = set()
            for each in instance.host.running:
                content = instance.table.live.content(each)
                needed.add(f"source:{content.tenant.label}{content.spec.route.source}")
                needed.add(f"endpoint:{content.spec.route.sink.endpoint_id}")
            if instance.host.open != needed:
                found.append(f"{name} has {instance.host.open} open, needs {needed}")
        return found


def _shown(ids: dict[RouteKey, str]) -> dict[str, str]:
    return {key.id: each[:6] for key, each in sorted(ids.items())}
