"""The store: takes messages, keeps them by endpoint and priority, says when they are durable.

Owns the database file of all that is acknowledged, and wires the store's parts. Heads reach it
through the router (`append`), the pump through its queues. Invariant: what was settled with None
is on disk, and leaves it only when it was delivered, when its time to live ended, or as a dead
letter.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import structlog

from edgehub.errors import StartupError, StoreError, StoreGoneError, first_of
from edgehub.store.appender import Appender
from edgehub.store.database import Database
from edgehub.store.dead_letters import DeadLetter, dead_offsets
from edgehub.store.event_log import forget_losses
from edgehub.store.group import GROUP_BYTES_MAX, GROUP_ROWS_MAX
from edgehub.store.inspection import Inspection
from edgehub.store.journal_feed import JournalFeed
from edgehub.store.lock import DatabaseLock
from edgehub.store.maintenance.demotion import Staleness
from edgehub.store.maintenance.maintenance import Maintenance
from edgehub.store.opening import open_file, open_in_memory
from edgehub.store.purge import Purger
from edgehub.store.queue import Queue, QueueHost
from edgehub.store.registry import Registry
from edgehub.store.requeue import Requeuer
from edgehub.store.shared_state import SharedState
from edgehub.store.statistics import StoreStatistics
from edgehub.store.suspects import Suspects
from edgehub.store.writer import Writer

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from edgehub.clock import Clock, HubTime
    from edgehub.message import EndpointId, Message, Priority, RouteResult
    from edgehub.store.caps import Caps
    from edgehub.store.group import Settle
    from edgehub.store.options import StoreOptions
    from edgehub.store.recovery import Recovered
    from edgehub.store.salvage.damage import Damage

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Store:
    """All queues of one hub in one file."""

    def __init__(
        self,
        hold: DatabaseLock,
        database: Database,
        recovered: Recovered,
        clock: Clock,
        options: StoreOptions,
    ) -> None:
        """Wire the parts; `open` is the way to a store."""
        self._hold = hold
        self._database = database
        self._clock = clock
        self._recovered = recovered
        self._is_closed = False
        self.store_id = recovered.store_id
        """Names the database file, and begins the ids of its messages."""
        self._shared = shared = SharedState(recovered, clock, options)
        self.hub_time: HubTime = shared.boot.hub_time
        self.utc_ms: Callable[[int], int] = shared.boot.utc_ms
        """Gives the UTC of a hub time, as well as it is known by now."""
        self._offsets = shared.offsets
        self._dead_letters = shared.dead_letters
        self._writer = writer = Writer(database, clock, shared.commit_context(), options)
        staleness = Staleness()
        source = shared.read_source(database, staleness, recovered.store_id)
        host = QueueHost(
            source, shared.dead_letters, writer.changed, writer.withdraw, shared.events
        )
        self._registry = registry = Registry(host, recovered.queues)
        self._upkeep = Maintenance(
            shared,
            registry,
            writer,
            database,
            staleness,
            ageing=recovered.ageing,
            head_only=not options.check_entire_queue_on_cleanup,
        )
        retention = self._upkeep.retention
        self._intake = Appender(
            registry,
            writer,
            retention,
            staleness,
            source,
            pending_bytes_max=options.pending_bytes_max,
        )
        self.inspection = Inspection(source, registry, shared.dead_letters)
        self.removals = Purger(source, writer)
        self.release = Requeuer(source, registry, writer, shared.dead_letters, retention)
        self.suspects = Suspects(recovered.suspects, writer)
        self.journal: JournalFeed | None = None
        if shared.events is not None:
            self.journal = JournalFeed(shared.events, writer, database, store_id=recovered.store_id)

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
            StartupError: In use, damaged, newer than this program, or not to be opened; or the
                kernel does not say which boot this is.
        """
        await asyncio.to_thread(_look_at_boot, clock)
        hold = await asyncio.to_thread(DatabaseLock.take, path)
        try:
            if options.durable:
                database, recovered = await open_file(hold, database_type, clock)
            else:
                database, recovered = await open_in_memory(hold, database_type)
            try:
                store = cls(hold, database, recovered, clock, options)
            except BaseException:
                # Its thread would keep the process alive.
                await database.close()
                raise
        except BaseException:
            hold.release()
            raise
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
            ExceptionGroup: The file is damaged or gone, or a bug; nothing more is acknowledged.
        """
        await self._upkeep.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._begin_journal()
                tasks.create_task(self._writer.run(), name="store[writer]")
                self._upkeep.start(tasks)
        except* StoreError as group:
            self._end_intake()
            error = first_of(group)
            if isinstance(error, StoreGoneError):
                log.error("store.file_gone", error=str(error))  # noqa: TRY400 - no bug of ours
            raise

    def _end_intake(self) -> None:
        # Whoever waits is told at once, so that nothing delays the stop that follows.
        self._intake.closed = True
        self._writer.give_up()

    def _begin_journal(self) -> None:
        if self.journal is None:
            if self._recovered.unreported_losses is not None:
                done = self._writer.transact(forget_losses)
                done.add_done_callback(lambda future: future.exception())
            return
        boot = self._shared.boot
        last = self._recovered.boots[-1] if self._recovered.boots else None
        queues = [queue.statistics() for queue in self.queues()]
        self.journal.begin(
            None if last is None else (last.hub_ms, last.wall_ms),
            [(each.endpoint_id, each.priority, each.depth, each.bytes) for each in queues],
            lost=self._recovered.unreported_losses,
            relations=boot.relations() if boot.trusted else None,
        )

    def append(
        self,
        message: Message,
        results: Sequence[RouteResult],
        settle: Settle,
        token: int,
        *,
        overdraw: bool = False,
    ) -> int:
        """Hand in a message without waiting; gives it its id.

        `settle(token, None)` follows its commit, in the order of appends; at once when there is
        nothing to store. `settle(token, refusal)` says that it was not taken.

        Args:
            message: Not changed afterwards.
            results: The best route of each endpoint, no endpoint twice.
            settle: Called on the loop's thread.
            token: The caller's, handed back.
            overdraw: It joins although a limit is reached: who hands it in cannot take back what
                caused it, and asks `has_room` beforehand.

        Returns:
            Offset of the first row; the others follow in the order of `results`, those left out
            that found no room. 0 = there is none, or the message is refused.
        """
        return self._intake.append(message, results, settle, token, overdraw=overdraw)

    def drop(self, message: Message, result: RouteResult, reason: str) -> None:
        """Count and tell of a copy that is not stored, though others of its message may be."""
        self._intake.drop(message, result, reason)

    def refuse(self, message: Message, reason: str) -> None:
        """Count and tell of a message that its sender is refused."""
        self._intake.refuse(message, reason)

    def has_room(self) -> bool:
        """Return whether messages may come that cannot be refused; see `append`."""
        return self._intake.has_room()

    @contextmanager
    def together(self) -> Iterator[object]:
        """Have all that is handed in meanwhile in one transaction; nothing may be awaited.

        Yields:
            That transaction, to be told from others: it takes more as long as this does not change.
        """
        self._writer.together = True
        try:
            yield self._writer.group
        finally:
            self._writer.together = False
            group = self._writer.group
            if group.rows >= GROUP_ROWS_MAX or group.bytes >= GROUP_BYTES_MAX:
                self._writer.rows_waiting()

    def queues(self) -> list[Queue]:
        """List all queues, by endpoint, best priority first."""
        return self._registry.queues()

    def queues_of(self, endpoint_id: EndpointId) -> list[Queue]:
        """List the queues of one endpoint, best priority first."""
        return self._registry.queues_of(endpoint_id)

    def queue(self, endpoint_id: EndpointId, priority: Priority) -> Queue:
        """Return the queue of an endpoint and a priority, a new one if need be."""
        return self._registry.queue(endpoint_id, priority)

    @property
    def last_offset(self) -> int:
        """Highest offset whose row is in the file, or was."""
        return self._offsets.committed

    def watch(self, endpoint_id: EndpointId, wake: Callable[[Queue], None]) -> None:
        """Call `wake` after each commit that made rows of the endpoint readable, once per queue."""
        self._registry.watch(endpoint_id, wake)

    def unwatch(self, endpoint_id: EndpointId, wake: Callable[[Queue], None]) -> None:
        """End a `watch`."""
        self._registry.unwatch(endpoint_id, wake)

    def adjust(
        self, *, check_entire_queue_on_cleanup: bool, cache_bytes_max: int, caps: Caps
    ) -> None:
        """Take over the options that can change while the store is open."""
        self._upkeep.retention.head_only = not check_entire_queue_on_cleanup
        self._shared.cache.bytes_max = cache_bytes_max
        self._writer.limits.change(caps)

    @property
    def caps(self) -> Caps:
        """The limits in force."""
        return self._writer.limits.caps

    def count_other_tables(self, beside: Callable[[], int]) -> None:
        """Count bytes of other tables of the file into those of the hub's cap."""
        self._writer.limits.count_other_tables(beside)

    async def flush(self) -> None:
        """Wait until all that was handed in before, results included, has been committed."""
        await self._writer.flush()

    def transact(
        self,
        operation: Callable[[sqlite3.Connection], T],
        *,
        commit_now: bool = True,
        frees: bool = False,
    ) -> asyncio.Future[T]:
        """Let an operation join the transaction of the messages appended so far.

        What it raises goes to the caller and undoes the operation alone; it may run again when
        the transaction has to be repeated. Each one costs a savepoint: gather what is frequent.
        `commit_now` False lets the transaction linger for more rows as it would without. One that
        `frees` only deletes: it comes before the others, and while commits fail it is tried without
        what needs space, so it must not depend on that.
        """
        return self._writer.transact(operation, commit_now=commit_now, frees=frees)

    async def read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        """Run a short reading operation between two groups."""
        return await self._database.run(operation)

    async def dead_letters(self, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Read up to `limit` dead letters with an id above `after`, oldest first."""
        return await self.read(lambda conn: self._dead_letters.page(conn, after, limit))

    async def dead_among(self, offsets: Collection[int]) -> set[int]:
        """Return which of some rows are dead letters, by their offsets."""
        if not offsets:
            return set()
        return await self.read(lambda conn: dead_offsets(conn, offsets))

    async def dead_letter(self, letter_id: int) -> DeadLetter | None:
        """Read one dead letter, None = there is none of that number."""
        return await self.read(lambda conn: self._dead_letters.find(conn, letter_id))

    async def close(self) -> None:
        """Commit what is there, empty the write-ahead log and let go of the file.

        Messages that cannot be committed now are refused as closed; they were never acknowledged.
        """
        if self._is_closed:
            return
        self._is_closed = self._intake.closed = True
        self._writer.note_end()
        try:
            await self._writer.drain()
            for queue in self.queues():
                queue.closed = True
            await self._writer.wal.truncate()
        finally:
            await self._database.close()
            await asyncio.to_thread(self._end_hold)
        log.info("store.closed", next_offset=self._offsets.next)

    def _end_hold(self) -> None:
        if not self._database.in_memory:
            self._hold.closed(self._offsets.high_water(), is_there=self._database.has_file())
        self._hold.release()

    @property
    def damage(self) -> Damage | None:
        """What damage of the file has cost, as long as the file that was set aside is there."""
        return self._recovered.damage

    def statistics(self) -> StoreStatistics:
        """Return a snapshot."""
        writer = self._writer
        failure = writer.failure
        queues = self.queues()
        return StoreStatistics(
            durable=not self._database.in_memory,
            failing=failure.reason if failure else None,
            failing_for_s=self._clock.monotonic() - failure.since_s if failure else 0.0,
            rows=sum([queue.zones.depth for queue in queues]),
            bytes=sum([queue.zones.bytes for queue in queues]),
            pending_rows=writer.pending_rows,
            pending_bytes=writer.pending_bytes,
            cache_bytes=self._shared.cache.bytes,
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
            dead_letters=self._dead_letters.by_queue(),
            wal_bytes_total=writer.wal.bytes_total,
            wal_bytes=writer.wal.size,
            wal_held_for_s=writer.wal.held_for_s,
            row_bytes_total=writer.row_bytes_total,
            damage=self._recovered.damage,
            missing=self._recovered.missing,
            damaged_logs=self._recovered.damaged_logs,
            expiry_lag_seconds=self._upkeep.retention.lag_ms / 1000,
            clock=self._shared.boot.statistics(ageing=self._upkeep.timekeeper.pending is not None),
            limits=writer.limits.statistics(),
        )


def _look_at_boot(clock: Clock) -> None:
    """Have the name of the boot read from its file, once."""
    try:
        boot_id = clock.boot_id()
    except (OSError, ValueError) as exc:
        raise StartupError(
            f"the kernel's name of this boot cannot be read ({exc}), and without it times to live"
            " mean nothing; let the hub read /proc/sys/kernel/random/boot_id"
        ) from exc
    if not boot_id:
        raise StartupError(
            "the kernel's name of this boot is empty, and without it times to live mean nothing;"
            " let the hub read /proc/sys/kernel/random/boot_id"
        )
