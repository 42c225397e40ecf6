"""The store: opens the database file, builds the parts that work on it, runs and closes them.

Heads append through the router, pumps read queues. Invariant: a message that was settled with None
is on disk, and leaves it only when it was delivered, when its time to live ended, by a limit, by an
operator or as a dead letter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import structlog

from edgehub.errors import StartupError, StoreError, StoreRemovedError, first_of
from edgehub.store.appender import Appender
from edgehub.store.boots import Boot
from edgehub.store.commit_delay import CommitDelay
from edgehub.store.committer import Committer
from edgehub.store.database import Database
from edgehub.store.dead_letters import DeadLetters
from edgehub.store.event_log import EventLog, forget_losses
from edgehub.store.inspection import Inspection
from edgehub.store.journal_feed import JournalFeed
from edgehub.store.labels import Labels
from edgehub.store.limits import Limits
from edgehub.store.lock import DatabaseLock
from edgehub.store.maintenance.ageing import Timekeeper
from edgehub.store.maintenance.demotion import Demotion
from edgehub.store.maintenance.eviction import Evictor
from edgehub.store.maintenance.retention import Retention
from edgehub.store.maintenance.space import SpaceMonitor
from edgehub.store.maintenance.vacuum import Vacuum
from edgehub.store.offsets import Offsets
from edgehub.store.opening import open_file, open_in_memory
from edgehub.store.purge import Purger
from edgehub.store.queues import Queues
from edgehub.store.requeue import Requeuer
from edgehub.store.shared_state import Cache, SharedState, Staleness
from edgehub.store.statistics import StoreStatistics
from edgehub.store.suspects import Suspects
from edgehub.store.wal import Wal
from edgehub.store.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgehub.clock import Clock, HubTime
    from edgehub.store.caps import Caps
    from edgehub.store.options import StoreOptions
    from edgehub.store.recovery import Recovered

log = structlog.get_logger(__name__)


class Store:
    """All queues of one hub in one file.

    Attributes:
        store_id: Names the database file, and begins the ids of its messages.
        hub_time: Hub time.
        utc_ms: Returns the best known UTC of a hub time.
        queues: The queues.
        writer: Runs operations in the transactions of messages.
        appender: Appends messages.
        limits: Of rows, bytes and disk.
        database: Runs reading operations between two groups.
        inspection: Reads single rows and dead letters.
        purger: Removes and moves rows.
        requeuer: Requeues and purges dead letters.
        suspects: Counts of closes by peers.
        journal: Events for the journal, None = there is no journal.
        damage: Losses by damage of the file, while the file that was set aside exists.
    """

    def __init__(
        self,
        lock: DatabaseLock,
        database: Database,
        recovered: Recovered,
        clock: Clock,
        options: StoreOptions,
    ) -> None:
        """Build the parts; use `open` to open a store."""
        self._lock = lock
        self._recovered = recovered
        self._is_closed = False
        self._shared = shared = _share(database, recovered, clock, options)
        self.store_id = shared.store_id
        self.hub_time: HubTime = shared.hub_time
        self.utc_ms: Callable[[int], int] = shared.boot.utc_ms
        self.database = database
        self.damage = recovered.damage
        self.writer = writer = Writer(clock, shared.events, shared.commit_delay.fixed_s)
        self.queues = queues = Queues(shared, writer, recovered.queues)
        self._wal = wal = Wal(database, clock, options.wal_bytes_max)
        self._retention = retention = Retention(
            shared, queues, writer, head_only=not options.check_entire_queue_on_cleanup
        )
        self.limits = limits = Limits(
            options.caps,
            queues,
            clock=clock,
            events=shared.events,
            seal=writer.seal_early,
            clean_up_soon=retention.run_soon,
        )
        self._space = space = SpaceMonitor(shared, writer, limits, wal)
        self._committer = committer = Committer(
            shared,
            writer,
            limits=limits,
            evictor=Evictor(shared, queues, limits, retention),
            space=space,
            wal=wal,
        )
        self._timekeeper = Timekeeper(shared, queues, writer, committer, recovered.ageing)
        self._background = {
            "writer": committer.run,
            "clean-up": retention.run,
            "demotion": Demotion(shared, queues, writer).run,
            "vacuum": Vacuum(shared, writer, wal).run,
            "space": space.run,
            "timekeeper": self._timekeeper.run,
        }
        self.appender = Appender(
            shared, queues, writer, limits, retention, pending_bytes_max=options.pending_bytes_max
        )
        self.inspection = Inspection(shared, queues)
        self.purger = Purger(shared, writer)
        self.requeuer = Requeuer(shared, queues, writer, retention)
        self.suspects = Suspects(recovered.suspects, writer)
        self.journal: JournalFeed | None = None
        if shared.events is not None:
            self.journal = JournalFeed(shared.events, writer, database, store_id=self.store_id)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        options: StoreOptions,
        database_type: type[Database] = Database,
    ) -> Self:
        """Open the file, create it if it does not exist, and load every queue in it.

        Args:
            path: The database file; its lock and its log are in the same folder.
            clock: All times and timers.
            options: Limits and times.
            database_type: The adapter; tests inject faults with it.

        Raises:
            StartupError: In use, damaged, newer than this program, or not to be opened; or the
                id of this boot cannot be read.
        """
        await asyncio.to_thread(_check_boot, clock)
        lock = await asyncio.to_thread(DatabaseLock.take, path)
        try:
            if options.durable:
                database, recovered = await open_file(lock, database_type, clock)
            else:
                database, recovered = await open_in_memory(lock, database_type)
            try:
                store = cls(lock, database, recovered, clock, options)
            except BaseException:
                # Its thread would keep the process alive.
                await database.close()
                raise
        except BaseException:
            lock.release()
            raise
        log.info(
            "store.opened",
            path=str(path),
            queues=len(recovered.queues),
            rows=sum([queue.zones.depth for queue in store.queues.all()]),
            next_offset=store._shared.offsets.next,
        )
        return store

    async def run(self) -> None:
        """Commit, clean up and return space until cancelled.

        Raises:
            ExceptionGroup: The file is damaged or does not exist any more, or a bug; nothing more
                is acknowledged.
        """
        await self._space.measure()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._start_journal()
                for name, run in self._background.items():
                    tasks.create_task(run(), name=f"store[{name}]")
        except* StoreError as group:
            # Waiters are notified at once, so that nothing delays the stop that follows.
            self.appender.closed = True
            self._committer.give_up()
            error = first_of(group)
            if isinstance(error, StoreRemovedError):
                log.error("store.file_removed", error=str(error))  # noqa: TRY400 - no bug of ours
            raise

    def _start_journal(self) -> None:
        lost = self._recovered.unreported_losses
        if self.journal is None:
            if lost is not None:
                done = self.writer.transact(forget_losses)
                done.add_done_callback(lambda future: future.exception())
            return
        boot = self._shared.boot
        last = self._recovered.boots[-1] if self._recovered.boots else None
        self.journal.begin(
            None if last is None else (last.hub_ms, last.wall_ms),
            [
                (queue.endpoint_id, queue.priority, queue.zones.depth, queue.zones.bytes)
                for queue in self.queues.all()
            ],
            lost=lost,
            relations=boot.relations() if boot.trusted else None,
        )

    @property
    def last_offset(self) -> int:
        """Highest offset whose row is in the file, or was."""
        return self._shared.offsets.committed

    def adjust(
        self, *, check_entire_queue_on_cleanup: bool, cache_bytes_max: int, caps: Caps
    ) -> None:
        """Apply the options that can change while the store is open."""
        self._retention.head_only = not check_entire_queue_on_cleanup
        self._shared.cache.bytes_max = cache_bytes_max
        self.limits.change(caps)

    @property
    def clock_trusted(self) -> bool:
        """Whether UTC is known to be right; see `ClockStatistics`."""
        return self._shared.boot.trusted

    async def close(self) -> None:
        """Commit what is there, empty the write-ahead log and release the file.

        Messages that cannot be committed now are refused as closed; they were never acknowledged.
        """
        if self._is_closed:
            return
        self._is_closed = self.appender.closed = True
        self.writer.touch()  # the last commit stores hub time and UTC of the end
        try:
            await self._committer.drain()
            for queue in self.queues.all():
                queue.closed = True
            await self._wal.truncate()
        finally:
            await self.database.close()
            await asyncio.to_thread(self._release_lock)
        log.info("store.closed", next_offset=self._shared.offsets.next)

    def _release_lock(self) -> None:
        if not self.database.in_memory:
            high_water = self._shared.offsets.high_water()
            self._lock.closed(high_water, is_there=self.database.has_file())
        self._lock.release()

    def statistics(self) -> StoreStatistics:
        """Return a snapshot."""
        shared, recovered, wal = self._shared, self._recovered, self._wal
        writer, committer, failure = self.writer, self._committer, self.writer.failure
        queues = self.queues.all()
        return StoreStatistics(
            durable=not self.database.in_memory,
            failing=failure.reason if failure else None,
            failing_for_s=shared.clock.monotonic() - failure.since_s if failure else 0.0,
            rows=sum([queue.zones.depth for queue in queues]),
            bytes=sum([queue.zones.bytes for queue in queues]),
            pending_rows=sum([queue.pending_rows for queue in queues]),
            pending_bytes=writer.pending_bytes,
            cache_bytes=shared.cache.bytes,
            next_offset=shared.offsets.next,
            commits_total=committer.commits_total,
            committed_rows_total=committer.committed_rows_total,
            early_rows_total=writer.early_rows_total,
            commit_failures_total=committer.commit_failures_total,
            refused_total=writer.refused_total,
            checkpoint_repaired_total=recovered.checkpoints_repaired,
            zone_repaired_total=recovered.zones_repaired,
            dead_letter_rows=shared.dead_letters.rows,
            dead_letter_bytes=shared.dead_letters.bytes,
            dead_letters=shared.dead_letters.by_queue(),
            wal_bytes_total=wal.bytes_total,
            wal_bytes=wal.size,
            wal_held_for_s=wal.held_for_s,
            row_bytes_total=committer.row_bytes_total,
            damage=recovered.damage,
            missing=recovered.missing,
            damaged_logs=recovered.damaged_logs,
            expiry_lag_seconds=self._retention.lag_ms / 1000,
            clock=shared.boot.statistics(ageing=self._timekeeper.pending is not None),
            limits=self.limits.statistics(),
        )


def _share(
    database: Database, recovered: Recovered, clock: Clock, options: StoreOptions
) -> SharedState:
    boot = Boot(
        clock,
        recovered.boots,
        high_water=recovered.high_water,
        trust=options.clock_trust,
        while_off=options.ttl_while_off,
    )
    labels = Labels(recovered.labels)
    events = None
    if options.journal:
        events = EventLog(recovered.events, boot=boot, bytes_max=options.journal_bytes_max)
    return SharedState(
        database=database,
        clock=clock,
        store_id=recovered.store_id,
        boot=boot,
        hub_time=boot.hub_time,
        labels=labels,
        commit_delay=CommitDelay(options.commit_delay_ms),
        offsets=Offsets(
            max(recovered.high_water, boot.first_offset - 1),
            is_start_recorded=recovered.is_start_recorded,
        ),
        dead_letters=DeadLetters(labels, options, stored=recovered.dead_letters),
        cache=Cache(options.cache_bytes_max),
        staleness=Staleness(),
        events=events,
    )


def _check_boot(clock: Clock) -> None:
    """Check that the id of the boot can be read."""
    try:
        boot_id = clock.boot_id()
    except (OSError, ValueError) as exc:
        raise StartupError(
            f"the kernel's id of this boot cannot be read ({exc}), and without it times to live"
            " mean nothing; let the hub read /proc/sys/kernel/random/boot_id"
        ) from exc
    if not boot_id:
        raise StartupError(
            "the kernel's id of this boot is empty, and without it times to live mean nothing;"
            " let the hub read /proc/sys/kernel/random/boot_id"
        )
