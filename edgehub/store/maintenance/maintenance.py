"""The background work of an open store: clean-up, demotion, vacuum, space and clock.

Owns the tasks, and that the writer can ask for room. Invariant: they change the file between groups
only, by the writer's leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.store.maintenance.ageing import Timekeeper
from edgehub.store.maintenance.demotion import Demotion
from edgehub.store.maintenance.eviction import Evictor
from edgehub.store.maintenance.retention import Retention
from edgehub.store.maintenance.space import SpaceWatch
from edgehub.store.maintenance.vacuum import Vacuum

if TYPE_CHECKING:
    import asyncio

    from edgehub.store.database import Database
    from edgehub.store.maintenance.ageing import Ageing
    from edgehub.store.maintenance.demotion import Staleness
    from edgehub.store.registry import Registry
    from edgehub.store.shared_state import SharedState
    from edgehub.store.writer import Writer


class Maintenance:
    """See the module.

    Args:
        shared: What all parts share.
        registry: The queues.
        writer: Lets the work have its turns.
        database: The file.
        staleness: What readers have met.
        ageing: What a run before has left to be done, None = nothing.
        head_only: Clean-up stops at the first live row of a queue.
    """

    __slots__ = ("_demotion", "_space", "_vacuum", "retention", "timekeeper")

    def __init__(
        self,
        shared: SharedState,
        registry: Registry,
        writer: Writer,
        database: Database,
        staleness: Staleness,
        *,
        ageing: Ageing | None,
        head_only: bool,
    ) -> None:
        clock, hub_time = shared.clock, shared.boot.hub_time
        offsets, labels = shared.offsets, shared.labels
        self.retention = Retention(
            registry,
            writer,
            shared.dead_letters,
            offsets,
            clock=clock,
            hub_time=hub_time,
            head_only=head_only,
            labels=labels,
        )
        self._demotion = Demotion(
            registry, writer, offsets, staleness, clock=clock, hub_time=hub_time, labels=labels
        )
        self._vacuum = Vacuum(database, writer, clock)
        self._space = SpaceWatch(database, writer, clock, shared.dead_letters)
        self.timekeeper = Timekeeper(
            shared.boot, registry, writer, offsets, clock=clock, pending=ageing
        )
        writer.limits.attach(registry, self.retention.run_soon)
        writer.evictor = Evictor(
            writer.limits, registry, self.retention, database=database, labels=labels
        )
        writer.look_at_space = self._space.look

    async def begin(self) -> None:
        """Do what must be done before the first group."""
        await self._space.look()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the tasks."""
        tasks.create_task(self.retention.run(), name="store[clean-up]")
        tasks.create_task(self._demotion.run(), name="store[demotion]")
        tasks.create_task(self._vacuum.run(), name="store[vacuum]")
        tasks.create_task(self._space.run(), name="store[space]")
        tasks.create_task(self.timekeeper.run(), name="store[timekeeper]")
