"""A pump on a manual clock with in-memory queues."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.clock import ManualClock
from edgehub.message import DEFAULT_PRIORITY, DeliveryRules, Priority, Row
from edgehub.pump.options import PumpOptions
from edgehub.pump.pump import Pump
from tests.support.memory_queue import MemoryCounts, MemoryQueue, NoCreations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from edgehub.pump.dependency_tracker import DependencyTracker
    from tests.support.endpoints import StalledEndpoint


class Bench:
    """The parts around one pump."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.queues: dict[int, MemoryQueue] = {}
        self.rules = DeliveryRules()
        self.pump: Pump

    def start(
        self,
        group: asyncio.TaskGroup,
        endpoint: StalledEndpoint,
        dependency_tracker: DependencyTracker,
        **options: Any,
    ) -> None:
        """Build the pump and run it in the group."""
        self.pump = Pump(
            endpoint,
            queues=lambda: list(self.queues.values()),
            rules=self._rules_of,
            clock=self.clock,
            now_ms=self.clock.boottime_ms,
            rng=random.Random(7),
            close_counts=MemoryCounts(),
            options=PumpOptions(**options),
            dependency_tracker=dependency_tracker,
        )
        self.task = group.create_task(self.pump.run())

    def queue(self, priority: int = DEFAULT_PRIORITY) -> MemoryQueue:
        """Return the queue of a priority, new or not."""
        if priority not in self.queues:
            queue = MemoryQueue("upstream", Priority(priority))
            queue.wake = self._rows_ready
            self.queues[priority] = queue
        return self.queues[priority]

    async def settle(self) -> None:
        """Let everything that is due now happen."""
        await self.clock.advance(0)

    def _rows_ready(self, queue: MemoryQueue) -> None:
        self.pump.rows_ready(queue)

    def _rules_of(self, _row: Row) -> DeliveryRules:
        return self.rules


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Bench]]:
    """Return a function that starts a pump; it ends with the test."""
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            benches: list[Bench] = []

            def start(
                endpoint: StalledEndpoint,
                *,
                clock: ManualClock | None = None,
                dependency_tracker: DependencyTracker | None = None,
                **options: Any,
            ) -> Bench:
                bench = Bench(clock or ManualClock())
                bench.start(
                    group,
                    endpoint,
                    NoCreations() if dependency_tracker is None else dependency_tracker,
                    **options,
                )
                benches.append(bench)
                return bench

            yield start
            for bench in benches:
                bench.task.cancel()
