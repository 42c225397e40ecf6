"""The store: takes messages, keeps them by endpoint and priority, says when they are durable.

Owns the database file of all that is acknowledged, and wires the store's parts. Heads reach it
through the router (`append`), the pump through its queues. Invariant: what was settled with None
is on disk, and leaves it only when it was delivered, when its time to live ended, or as a dead
letter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, TypeVar

import structlog

from edgehub.errors import StartupError, StoreError
from edgehub.store.boots import Boot
from edgehub.store.commit import CommitContext
from edgehub.store.database import Database, open_hint
from edgehub.store.dead_letters import DeadLetter, DeadLetters
from edgehub.store.intake import Intake
from edgehub.store.labels import Labels
from edgehub.store.offsets import Offsets
from edgehub.store.queue import Queue, QueueHost
from edgehub.store.reader import Cache, ReadSource
from edgehub.store.recovery import Recovered, recover
from edgehub.store.registry import Registry
from edgehub.store.retention import Retention
from edgehub.store.statistics import StoreStatistics
from edgehub.store.vacuum import Vacuum
from edgehub.store.writer import Writer

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgehub.clock import Clock, HubTime
    from edgehub.message import EndpointId, Message, RouteResult
    from edgehub.store.group import Settle
    from edgehub.store.options import StoreOptions

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Store:
    """All queues of one hub in one file."""

    def __init__(
        self, database: Database, recovered: Recovered, clock: Clock, options: StoreOptions
    ) -> None:
        """Wire the parts; `open` is the way to a store."""
        boot = Boot(clock, recovered.boot)
        self.hub_time: HubTime = boot.hub_time
        self._database = database
        self._clock = clock
        self._recovered = recovered
        self._labels = Labels(recovered.labels)
        self._offsets = Offsets(recovered.high_water, ahead=options.commit_linger_ms > 0)
        self._dead_letters = DeadLetters(
            self._labels,
            options,
            rows=recovered.dead_letter_rows,
            size=recovered.dead_letter_bytes,
        )
        context = CommitContext(boot, self._labels, self._dead_letters, self._offsets)
        self._writer = Writer(database, clock, context, options)
        self._cache = Cache(options.cache_bytes_max)
        source = ReadSource(
            database=database,
            clock=clock,
            hub_time=self.hub_time,
            labels=self._labels,
            store_id=recovered.store_id,
            cache=self._cache,
            offsets=self._offsets,
        )
        host = QueueHost(source, self._dead_letters, self._writer.changed, self._writer.withdraw)
        self._registry = Registry(host, recovered.queues)
        self._retention = Retention(
            self._registry,
            self._writer,
            self._dead_letters,
            self._offsets,
            clock=clock,
            hub_time=self.hub_time,
            head_only=not options.check_entire_queue_on_cleanup,
        )
        self._vacuum = Vacuum(database, self._writer, clock)
        self._intake = Intake(
            self._registry,
            self._writer,
            self._retention,
            labels=self._labels,
            offsets=self._offsets,
            hub_time=self.hub_time,
            store_id=recovered.store_id,
            pending_bytes_max=options.pending_bytes_max,
        )

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        options: StoreOptions,
        database_type: type[Database] = Database,
    ) -> Self:
        """Open the file, make it if need be, and adopt every queue it holds.

        Args:
            path: The database file; its lock and its log lie beside it.
            clock: All times and timers.
            options: Limits and rhythm.
            database_type: The adapter; tests put faults into it.

        Raises:
            StartupError: In use, damaged, newer than this program, or not to be opened.
        """
        await asyncio.to_thread(clock.boot_id)  # read from a file, once
        database = await database_type.open(path)
        try:
            recovered = await database.run(recover)
        except BaseException as exc:
            await database.close()
            if isinstance(exc, StoreError):
                raise StartupError(open_hint(path, exc)) from exc
            raise
        store = cls(database, recovered, clock, options)
        log.info(
            "store.opened",
            path=str(path),
            queues=len(recovered.queues),
            rows=sum([queue.zones.depth for queue in store.queues()]),
            next_offset=store._offsets.next,
        )
        return store

    async def run(self) -> None:
        """Commit, clean up and give space back until cancelled.

        Raises:
            ExceptionGroup: The file is damaged, or a bug; nothing more is acknowledged.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._writer.run(), name="store[writer]")
            tasks.create_task(self._retention.run(), name="store[clean-up]")
            tasks.create_task(self._vacuum.run(), name="store[vacuum]")

    def append(
        self, message: Message, results: Sequence[RouteResult], settle: Settle, token: int
    ) -> None:
        """Hand in a message without waiting; gives it its id.

        `settle(token, None)` follows its commit, in the order of appends; at once when there is
        nothing to store. `settle(token, refusal)` says that it was not taken.

        Args:
            message: Not changed afterwards.
            results: The best route of each endpoint, no endpoint twice.
            settle: Called on the loop's thread.
            token: The caller's, handed back.
        """
        self._intake.append(message, results, settle, token)

    def queues(self) -> list[Queue]:
        """List all queues, by endpoint, best priority first."""
        return self._registry.queues()

    def queues_of(self, endpoint_id: EndpointId) -> list[Queue]:
        """List the queues of one endpoint, best priority first."""
        return self._registry.queues_of(endpoint_id)

    def watch(self, endpoint_id: EndpointId, wake: Callable[[Queue], None]) -> None:
        """Call `wake` after each commit that made rows of the endpoint readable, once per queue."""
        self._registry.watch(endpoint_id, wake)

    def unwatch(self, endpoint_id: EndpointId, wake: Callable[[Queue], None]) -> None:
        """End a `watch`."""
        self._registry.unwatch(endpoint_id, wake)

    def adjust(self, *, check_entire_queue_on_cleanup: bool, cache_bytes_max: int) -> None:
        """Take over the options that can change while the store is open."""
        self._retention.head_only = not check_entire_queue_on_cleanup
        self._cache.bytes_max = cache_bytes_max

    async def flush(self) -> None:
        """Wait until all that was handed in before, results included, has been committed."""
        await self._writer.flush()

    async def transact(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Let a rare operation join the transaction of the messages appended so far.

        What it raises goes to the caller and undoes the operation alone; it may run again when
        the transaction has to be repeated.
        """
        result: T = await self._writer.transact(operation)
        return result

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run a short reading operation between two groups."""
        return await self._database.run(operation)

    async def dead_letters(self, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Read up to `limit` dead letters with an id above `after`, oldest first."""
        return await self.read(lambda conn: self._dead_letters.page(conn, after, limit))

    async def dead_letter(self, letter_id: int) -> DeadLetter | None:
        """Read one dead letter, None = there is none of that number."""
        return await self.read(lambda conn: self._dead_letters.find(conn, letter_id))

    async def close(self) -> None:
        """Commit what is there, empty the write-ahead log and let go of the file.

        Messages that cannot be committed now are refused as closed; they were never acknowledged.
        """
        if self._intake.closed:
            return
        self._intake.closed = True
        try:
            await self._writer.drain()
            for queue in self.queues():
                queue.closed = True
            await self._writer.wal.truncate()
        finally:
            await self._database.close()
        log.info("store.closed", next_offset=self._offsets.next)

    def statistics(self) -> StoreStatistics:
        """Give a snapshot."""
        writer = self._writer
        failure = writer.failure
        queues = self.queues()
        return StoreStatistics(
            durable=True,
            failing=failure.reason if failure else None,
            failing_for_s=self._clock.monotonic() - failure.since_s if failure else 0.0,
            rows=sum([queue.zones.depth for queue in queues]),
            bytes=sum([queue.zones.bytes for queue in queues]),
            pending_rows=writer.pending_rows,
            pending_bytes=writer.pending_bytes,
            cache_bytes=self._cache.bytes,
            next_offset=self._offsets.next,
            commits_total=writer.commits_total,
            committed_rows_total=writer.committed_rows_total,
            early_rows_total=writer.early_rows_total,
            commit_failures_total=writer.commit_failures_total,
            refused_total=writer.refused_total,
            checkpoint_repaired_total=self._recovered.checkpoints_repaired,
            zone_repaired_total=self._recovered.zones_repaired,
            dead_letter_rows=self._dead_letters.rows,
            dead_letter_bytes=self._dead_letters.bytes,
            wal_bytes_total=writer.wal.bytes_total,
            row_bytes_total=writer.row_bytes_total,
        )
