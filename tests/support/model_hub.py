"""The hub of a model test: store, router and pumps, between ears of the list model.

A life is one process. Its endpoints and queues are the usual ones; each tells the model what it is
asked to do, and the model judges that at once.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from edgehub.message import DELIVERED, UPSTREAM, DeliveryRules, EndpointId
from edgehub.pump.pump import Pump
from edgehub.router import Router
from edgehub.store import Store
from tests.support.endpoints import StalledEndpoint
from tests.support.memory_queue import MemoryCounts, NoCreations
from tests.support.model import READ_PAUSE_S
from tests.support.stepped_disk import Disk, stepped_database
from tests.support.stores import LAB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgehub.message import FailureKind, Row, SendResult
    from edgehub.store import Queue
    from tests.support.model_rows import Key
    from tests.support.model_world import World


class Life:
    """What one process holds; the model hears nothing of it once it is over."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.disk = Disk(world.rng)
        self.store: Store
        self.router: Router
        self.pumps: list[Pump] = []
        self.endpoints: dict[EndpointId, ModelEndpoint] = {}
        self.keys: dict[int, Key] = {}
        self.started_s = world.clock.monotonic()
        self.is_over = False
        self.stop = asyncio.Event()
        self.host: asyncio.Task[None] | None = None

    async def open(self, path: Path) -> None:
        """Open the store; nothing moves yet."""
        world = self.world
        self.store = await Store.open(
            path,
            clock=world.clock,
            options=world.plan.options(),
            database_type=stepped_database(world.faults, self.disk),
        )
        self.router = Router(world.table(), self.store.appender)

    async def begin(self) -> None:
        """Start the store and the pumps; the links are up."""
        started = asyncio.Event()
        self.host = asyncio.get_running_loop().create_task(self._serve(started))
        await started.wait()
        for endpoint in self.endpoints.values():
            endpoint.revive()

    async def end(self) -> None:
        """Stop the parts in their order and let go of the file."""
        self.stop.set()
        if self.host is not None:
            await self.host
        await self.store.close()

    async def abandon(self) -> None:
        """Let go of everything after a failure, whatever state it is in."""
        self.is_over = True
        if self.host is not None:
            self.host.cancel()
            await asyncio.wait((self.host,))
        await self.disk.close()

    def check(self) -> None:
        """Raise what has ended the hub before its time."""
        if self.host is not None and self.host.done():
            self.host.result()
            msg = "the hub has ended"
            raise AssertionError(msg)

    async def _serve(self, started: asyncio.Event) -> None:
        world = self.world
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.store.run())]
            for endpoint_id in (UPSTREAM, LAB):
                endpoint = self.endpoints[endpoint_id] = ModelEndpoint(endpoint_id, self)
                pump = Pump(
                    endpoint,
                    queues=partial(self._queues, endpoint_id),
                    rules=partial(self._rules, endpoint_id),
                    clock=world.clock,
                    now_ms=self.store.hub_time.now_ms,
                    rng=world.rng,
                    close_counts=MemoryCounts(),
                    dependency_tracker=NoCreations(),
                )
                self.store.queues.watch(endpoint_id, pump.rows_ready)
                self.pumps.append(pump)
                tasks.append(group.create_task(pump.run()))
                await endpoint.started.wait()
            started.set()
            await self.stop.wait()
            for task in reversed(tasks):
                task.cancel()

    def _queues(self, endpoint_id: EndpointId) -> list[WatchedQueue]:
        return [WatchedQueue(queue, self) for queue in self.store.queues.of(endpoint_id)]

    def _rules(self, endpoint_id: EndpointId, _row: Row) -> DeliveryRules:
        plan = self.world.plan
        return DeliveryRules(order=self.world.orders[endpoint_id], max_attempts=plan.max_attempts)


class ModelEndpoint(StalledEndpoint):
    """Stalls, or delivers at once while `World.delivers` says so; the model hears everything."""

    def __init__(self, name: EndpointId, life: Life) -> None:
        super().__init__(name)
        self.up_at_start = False
        self._life = life

    def send_batch(self, rows: Sequence[Row], settle: Any) -> None:
        """See `Endpoint`."""
        life, world = self._life, self._life.world
        if not life.is_over:
            keys = {life.keys[row.offset] for row in rows}
            assert len(keys) == 1, f"a batch of {keys}"
            offsets = [row.offset for row in rows]
            assert offsets == sorted(offsets), f"a batch out of order: {offsets}"
            for row in rows:
                world.ledger.send(*keys, row, *world.now)
        super().send_batch(rows, settle)

    def settle(self, offset: int, result: SendResult = DELIVERED) -> None:
        """Answer for one row."""
        if not self._life.is_over:
            row = self.pending[offset][0]
            self._life.world.ledger.answer(self._life.keys[offset], row, result)
        super().settle(offset, result)

    def revive(self) -> None:
        """Have the link again."""
        self._life.world.ledger.link_up(self.id)
        super().revive()

    def _answer(self, rows: Sequence[Row]) -> None:
        if self._life.world.delivers[self.id]:
            for row in rows:
                self.settle(row.offset)


class WatchedQueue:
    """A queue of the store; the model judges every word between the pump and it."""

    def __init__(self, queue: Queue, life: Life) -> None:
        self._queue = queue
        self._life = life
        self._world = life.world
        self._key: Key = (queue.endpoint_id, queue.priority)
        self.id = queue.id
        self.endpoint_id = queue.endpoint_id
        self.priority = queue.priority
        self.has_ready = queue.has_ready

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `Queue`."""
        world, ledger = self._world, self._world.ledger
        if self._life.is_over:
            return await self._queue.read_batch(rows_max, bytes_max)
        line = ledger.line(self._key)
        ledger.choose(self._key, *world.now)
        before = line.ready(*world.now)
        raised = world.faults.raised
        rows = await self._queue.read_batch(rows_max, bytes_max)
        if self._life.is_over:
            return rows
        if world.faults.raised > raised:
            line.read_after_s = world.now[0] + READ_PAUSE_S
            before = []
        now_ms = world.now[1]
        before = [
            copy
            for copy in before
            if copy.waits(now_ms) and copy.key == self._key and not copy.is_stale(now_ms)
        ]
        ledger.take(self._key, rows, (rows_max, bytes_max), before, world.now[1])
        self._life.keys.update((row.offset, self._key) for row in rows)
        return rows

    def confirm(self, rows: Sequence[Row]) -> None:
        """See `Queue`."""
        self._leave(rows, "sent")

    def expire(self, rows: Sequence[Row]) -> None:
        """See `Queue`."""
        self._leave(rows, "expired")

    def give_back(self, rows: Sequence[Row], *, attempted: bool, **words: Any) -> None:
        """See `Queue`."""
        if not self._life.is_over:
            self._world.ledger.give_back(self._key, rows, attempted, self._world.now[0])
        self._queue.give_back(rows, attempted=attempted, **words)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """See `Queue`."""
        if not self._life.is_over:
            self._world.ledger.bury(self._key, row, kind)
        self._queue.dead_letter(row, kind, reason)

    def hold(self, who: str | int) -> None:
        """See `Queue`."""
        if not self._life.is_over:
            self._world.ledger.hold(self._key, who, self._world.now[0])
        self._queue.hold(who)

    def release(self, who: str | int) -> None:
        """See `Queue`."""
        if not self._life.is_over:
            del self._world.ledger.lines[self._key].held[who]
        self._queue.release(who)

    def _leave(self, rows: Sequence[Row], why: str) -> None:
        ledger = self._world.ledger
        if not self._life.is_over:
            ledger.leave(self._key, rows, why, self._world.now)
        (self._queue.confirm if why == "sent" else self._queue.expire)(rows)
