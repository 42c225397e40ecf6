"""The pump on the real store: files, commits and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.message import (
    DEFAULT_PRIORITY,
    UPSTREAM,
    DeliveryRules,
    FailureKind,
    Message,
    Order,
    Priority,
    RouteResult,
    Row,
    SendResult,
)
from edgehub.pump.pump import Pump
from edgehub.store.options import StoreOptions
from edgehub.store.store import Store
from tests.support.endpoints import FlakyEndpoint, RevivableEndpoint, StalledEndpoint
from tests.support.memory_queue import MemoryCounts, NoCreations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

LATER = SendResult(FailureKind.TRANSIENT, "later")


class Parts:
    """A store, an endpoint and the pump between them."""

    def __init__(self, store: Store, endpoint: StalledEndpoint, rules: DeliveryRules) -> None:
        self.store = store
        self.endpoint = endpoint
        self.rules = rules
        self.committed = 0
        self.bodies: dict[int, bytes] = {}
        self.pump = Pump(
            endpoint,
            queues=partial(store.queues.of, UPSTREAM),
            rules=self._rules_of,
            clock=SystemClock(),
            now_ms=store.hub_time.now_ms,
            rng=random.Random(9),
            close_counts=MemoryCounts(),
            dependency_tracker=NoCreations(),
        )
        store.queues.watch(UPSTREAM, self.pump.rows_ready)

    async def append(
        self, *names: str, priority: int = DEFAULT_PRIORITY, device: str = "d"
    ) -> None:
        """Store messages named by their bodies and wait for the commit."""
        route = RouteResult(
            endpoint_id=UPSTREAM, priority=Priority(priority), ttl_ms=None, routes=("r",)
        )
        for name in names:
            message = Message(device, None, "/messages/", {}, {}, name.encode())
            self.store.appender.append(message, [route], lambda *_: None, 0)
        await self.store.writer.flush()

    async def until_delivered(self, count: int) -> None:
        """Wait until that many rows were delivered and have left the file."""
        async with asyncio.timeout(10):
            while self.pump.statistics().sent_total < count:  # noqa: ASYNC110 - statistics have no event
                await asyncio.sleep(0.01)
        await self.store.writer.flush()

    @property
    def depth(self) -> int:
        """Return the rows in all queues."""
        return sum(queue.statistics().depth for queue in self.store.queues.all())

    def _rules_of(self, _row: Row) -> DeliveryRules:
        return self.rules


class BodyEndpoint(RevivableEndpoint):
    """Delivers at once and keeps the bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[str] = []

    def _answer(self, rows: list[Row]) -> None:
        self.bodies += [row.message.body.decode() for row in rows]
        super()._answer(rows)


@contextlib.asynccontextmanager
async def parts_on(
    folder: Path, endpoint: StalledEndpoint, rules: DeliveryRules | None = None
) -> AsyncIterator[Parts]:
    """Run store and pump for the length of the block, and stop them as a hub does."""
    store = await Store.open(folder / "queue.db", clock=SystemClock(), options=StoreOptions())
    try:
        parts = Parts(store, endpoint, rules or DeliveryRules())
        async with asyncio.TaskGroup() as group:
            storing = group.create_task(store.run())
            pumping = group.create_task(parts.pump.run())
            await endpoint.started.wait()
            yield parts
            await parts.pump.drain(SystemClock().monotonic())
            pumping.cancel()
            await store.writer.flush()
            storing.cancel()
    finally:
        await store.close()


async def test_rows_leave_the_file_after_delivery(tmp_path: Path) -> None:
    """Best priority first, each row once, nothing left behind."""
    endpoint = BodyEndpoint()
    async with parts_on(tmp_path, endpoint) as parts:
        await parts.append("bulk-1", "bulk-2")
        await parts.append("alarm", priority=0)
        assert parts.depth == 3
        endpoint.revive()
        await parts.until_delivered(3)
        assert endpoint.bodies == ["alarm", "bulk-1", "bulk-2"]
        assert parts.depth == 0


async def test_what_was_stored_offline_is_offered_after_a_restart(tmp_path: Path) -> None:
    """500 rows stored while down, a restart, link up: 500 delivered, none twice (L-08, D-03)."""
    async with parts_on(tmp_path, BodyEndpoint()) as parts:
        await parts.append(*(f"m{number}" for number in range(500)))
    endpoint = BodyEndpoint()
    async with parts_on(tmp_path, endpoint) as parts:
        endpoint.revive()
        await parts.until_delivered(500)
        assert endpoint.bodies == [f"m{number}" for number in range(500)]
    third = BodyEndpoint()
    async with parts_on(tmp_path, third) as parts:
        third.revive()
        await parts.append("new")
        await parts.until_delivered(1)
        assert third.bodies == ["new"]


async def test_rows_in_flight_at_a_stop_come_again(tmp_path: Path) -> None:
    """Without an answer they are unsent, in their own place (R-12)."""
    stalled = StalledEndpoint()
    async with parts_on(tmp_path, stalled) as parts:
        await parts.append("a", "b", "c")
        await stalled.wait_received(3)
    endpoint = BodyEndpoint()
    async with parts_on(tmp_path, endpoint) as parts:
        endpoint.revive()
        await parts.until_delivered(3)
        assert endpoint.bodies == ["a", "b", "c"]


async def test_a_refused_row_keeps_its_senders_order_on_disk(tmp_path: Path) -> None:
    """Strict: the sender's rows wait for the refused one, another sender goes on."""
    endpoint = FlakyEndpoint({})
    endpoint.up_at_start = False
    async with parts_on(tmp_path, endpoint) as parts:
        await parts.append("1", "2", "3")
        queue = parts.store.queues.of(UPSTREAM)[0]
        rows = await queue.read_batch(3, 1000)
        queue.give_back(rows, attempted=False)
        endpoint.script[rows[0].offset] = [LATER]
        endpoint.revive()
        await parts.append("other", device="e")
        await parts.until_delivered(1)
        assert parts.depth == 3
        await parts.until_delivered(4)
        assert endpoint.delivered[-3:] == [row.offset for row in rows]
        assert parts.depth == 0


async def test_order_skip_holds_only_the_refused_row_on_disk(tmp_path: Path) -> None:
    """Skip: later rows pass, the refused one follows after its back-off."""
    endpoint = FlakyEndpoint({})
    endpoint.up_at_start = False
    async with parts_on(tmp_path, endpoint, DeliveryRules(order=Order.SKIP)) as parts:
        await parts.append("1", "2", "3")
        queue = parts.store.queues.of(UPSTREAM)[0]
        rows = await queue.read_batch(3, 1000)
        queue.give_back(rows, attempted=False)
        endpoint.script[rows[0].offset] = [LATER]
        endpoint.revive()
        await parts.until_delivered(3)
        assert endpoint.delivered == [row.offset for row in [*rows[1:], rows[0]]]
        assert parts.depth == 0


async def test_rejected_rows_are_in_the_dead_letters(tmp_path: Path) -> None:
    """With endpoint, kind and reason, and out of the queue."""
    rejected = SendResult(FailureKind.REJECTED, "no such topic")

    class Refusing(StalledEndpoint):
        def _answer(self, rows: list[Row]) -> None:
            for row in rows:
                self.settle(row.offset, rejected)

    endpoint = Refusing()
    async with parts_on(tmp_path, endpoint) as parts:
        await parts.append("bad")
        await endpoint.wait_received(1)
        async with asyncio.timeout(5):
            while parts.depth:  # noqa: ASYNC110 - statistics have no event
                await asyncio.sleep(0.01)
        (letter,) = await parts.store.inspection.dead_letters()
        assert letter.reason == "no such topic"


async def test_ten_thousand_rows_once_each(tmp_path: Path) -> None:
    """A producer beside slow confirmations: as many deliveries as rows (D-01)."""
    endpoint = BodyEndpoint()
    async with parts_on(tmp_path, endpoint) as parts:
        endpoint.revive()
        for block in range(10):
            await parts.append(*(f"{block}-{number}" for number in range(1000)))
        await parts.until_delivered(10_000)
        assert len(endpoint.bodies) == len(set(endpoint.bodies)) == 10_000
