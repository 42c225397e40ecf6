"""The one writer: gathers what is to be written into groups, commits them, bears the failures.

Owns the open group, the sealed ones, and the rule what goes into the next transaction. Everything
that changes the file passes here, one transaction after another, so what memory is told of
outcomes comes in the order of commits. Invariant: nobody is told that a message is stored before
COMMIT has returned, and everybody who waits is told in the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.errors import StoreError
from edgehub.message import Refusal
from edgehub.store.commit import Commit
from edgehub.store.commit_delay import CommitDelay
from edgehub.store.commit_timer import CommitTimer
from edgehub.store.database import StoreBusyError, StoreValueError, settled
from edgehub.store.failure import Failure
from edgehub.store.group import GROUP_BYTES_MAX, GROUP_ROWS_MAX, Group, take_freeing
from edgehub.store.limits import Limits
from edgehub.store.pause import Pause
from edgehub.store.wal import Wal

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock
    from edgehub.message import Row
    from edgehub.store.commit import CommitContext
    from edgehub.store.database import Database
    from edgehub.store.maintenance.eviction import Evictor
    from edgehub.store.options import StoreOptions
    from edgehub.store.queue import Queue

log = structlog.get_logger(__name__)

RESULTS_DELAY_S: Final = 0.05
EARLY_LINGERS: Final = 5
"""After so many lingers the events of rows that were never written are, where nothing else is."""
RESULTS_MAX: Final = 4096
"""Rows that left and wait for their commit, above which it begins at once."""
DRAIN_ATTEMPTS: Final = 3

Job = tuple["Callable[[sqlite3.Connection], Any]", "Callable[[Any], None]"]
"""A transaction of its own: what runs on the connection, and what memory learns from it."""


class Writer:
    """Group commit."""

    def __init__(
        self, database: Database, clock: Clock, context: CommitContext, options: StoreOptions
    ) -> None:
        self._database = database
        self._clock = clock
        self._context = context
        self.events = context.events
        """Takes what the journal is to be told, None = there is no journal."""
        self.group = Group()
        self.wake_at = GROUP_ROWS_MAX
        """`append` calls `rows_waiting` once the open group has so many rows."""
        self.together = False
        """What is handed in joins one group, however much it is; nothing is awaited meanwhile."""
        self.pending_bytes = 0
        self.failure: Failure | None = None
        self.commits_total = 0
        self.committed_rows_total = 0
        self.commit_failures_total = 0
        self.refused_total = 0
        self.early_rows_total = 0
        self.row_bytes_total = 0
        self.limits = Limits(
            options.caps, clock=clock, events=context.events, seal=self._seal_for_room
        )
        self.evictor: Evictor | None = None
        """Makes room where limits are reached; set once the queues are known."""
        self.look_at_space: Callable[[], Awaitable[None]] | None = None
        """Tells the limits how full the volume is; set once they know the queues."""
        self._space_is_due = False
        self.wal = Wal(database, clock, options.wal_bytes_max)
        self._commit_delay = CommitDelay(options.commit_delay_ms)
        self._results_delay_s = max(RESULTS_DELAY_S, self._commit_delay.fixed_s)
        self._early_delay_s = max(RESULTS_DELAY_S, EARLY_LINGERS * self._commit_delay.fixed_s)
        self._sealed: deque[Group] = deque()
        self._idle = Pause()
        self._changed: dict[Queue, None] = {}
        self._changed_rows = 0
        self._due = CommitTimer(clock, self._idle.cut)
        self._jobs: deque[tuple[Callable[[], Job | None], asyncio.Future[bool]]] = deque()
        self._jobs_held = False
        self._back_off = Pause()
        self._turns = asyncio.Lock()
        self._cancelled = False
        self._closing = False
        self._closed = False

    async def run(self) -> None:
        """Commit what comes until cancelled or closed.

        Raises:
            StoreCorruptError, StoreGoneError: The file is damaged, or not there any more; nothing
                more is acknowledged.
        """
        while not self._closed:
            if not self._has_work():
                await self._wait(None, 1)
                continue
            if self._may_linger():
                await self._wait_for_rows()
                if not self._has_work():
                    continue  # what waited was confirmed
            async with self._turns:
                await self._turn()
                await self._between()
            if self._cancelled:
                self._cancelled = False
                raise asyncio.CancelledError

    def rows_waiting(self) -> None:
        """Record that the open group has reached `wake_at` rows, or its bytes."""
        full = self.group.rows >= GROUP_ROWS_MAX or self.group.bytes >= GROUP_BYTES_MAX
        if full and not self.together:
            self._seal()
        self._idle.cut()

    def changed(self, queue: Queue, rows: int) -> None:
        """Record that rows of a queue have results; they are committed within 50 ms."""
        self._changed[queue] = None
        self._schedule_results(rows, self._results_delay_s)

    def events_due(self) -> None:
        """Have the events that wait committed within 50 ms."""
        self._due.within(self._results_delay_s)

    def _schedule_results(self, rows: int, delay_s: float) -> None:
        self._changed_rows += rows
        if self._changed_rows >= RESULTS_MAX:
            self._due.at_once()
        else:
            self._due.within(delay_s)

    def withdraw(self, queue: Queue, row: Row) -> bool:
        """Take a row that was confirmed before its commit out of the open group.

        Returns:
            False when its commit has begun; it leaves as any other row then.
        """
        part = queue.reader.open_part
        if part is None or row.offset < part.rows[0].offset:
            return False
        self.group.withdraw(part, row)
        self.pending_bytes -= row.size
        self.early_rows_total += 1
        if self.events is not None:
            self._schedule_results(1, self._early_delay_s)
        return True

    def transact(
        self,
        operation: Callable[[sqlite3.Connection], Any],
        *,
        commit_now: bool = True,
        frees: bool = False,
    ) -> asyncio.Future[Any]:
        """Let `operation` join the transaction of the messages appended so far.

        With `commit_now` the transaction does not wait for more rows. One that `frees` comes first.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closing:
            future.set_exception(StoreError("the store is closed"))
            return future
        operations = self.group.freeing if frees else self.group.operations
        operations.append((operation, future))
        if commit_now:
            self.group.commit_now = self._due.is_now = True
        if commit_now or self.wake_at == 1:
            self._idle.cut()
        return future

    def between(self, prepare: Callable[[], Job | None]) -> asyncio.Future[bool]:
        """Run a transaction of its own between two groups.

        Args:
            prepare: Called right before, on the loop; None = nothing to do any more.

        Returns:
            Whether a transaction was committed; fails with `StoreBusyError` when it could not be.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(False)
            return future
        self._jobs.append((prepare, future))
        self._idle.cut()
        return future

    def note_end(self) -> None:
        """Have a commit write hub time and UTC as of the end, whatever else there is to write."""
        # Nobody waits for it, so nobody would take its error either.
        self.transact(_nothing).add_done_callback(lambda future: future.exception())

    def hold_jobs(self) -> None:
        """Begin no transaction of `between` any more; those handed in are answered at the end."""
        self._jobs_held = True

    def trim(self) -> None:
        """Have limits looked at again, if some are still exceeded: rows in flight may be back."""
        if self.limits.makes_room and not self.pending_rows:
            self.transact(_nothing).add_done_callback(lambda future: future.exception())

    async def flush(self) -> None:
        """Wait until all rows and results handed in before are in the file."""
        await self.transact(_nothing)
        while self._changed:
            # Results that had to stay behind: of rows in a later group, or after a failure.
            await self.transact(_nothing)

    @property
    def pending_rows(self) -> int:
        """Rows that wait for their commit, those in the running one left out."""
        return self.group.rows + sum([group.rows for group in self._sealed])

    async def drain(self) -> None:
        """Commit what is there, refuse what cannot be committed, and take no more."""
        self._closing = True
        self._idle.cut()
        self._back_off.cut()
        async with self._turns:
            try:
                if not self._closed:
                    await self._drain_turns()
            except StoreError as exc:
                log.error("store.drain_failed", error=str(exc))  # noqa: TRY400 - no bug of ours
            self._refuse_rest()
            self._closed = True
        self._idle.cut()
        if self._cancelled:
            raise asyncio.CancelledError

    def give_up(self) -> None:
        """Refuse what waits, and take no more: nothing can be acknowledged any more."""
        self._closing = self._closed = True
        self._refuse_rest()

    async def _drain_turns(self) -> None:
        attempts = 0
        while (self._has_work() or self._changed or self._urgent()) and attempts < DRAIN_ATTEMPTS:
            await self._turn()
            await self._between()
            if self.failure is not None:
                attempts += 1

    def _has_work(self) -> bool:
        return bool(
            self._sealed
            or self.group
            or (self._due.is_now and (self._changed or self._urgent()))
            or (self._jobs and not self._jobs_held)
            or self._context.offsets.scarce()
        )

    def _may_linger(self) -> bool:
        return not (self._sealed or self._due.is_now) and self._may_wait_on()

    def _may_wait_on(self) -> bool:
        return bool(self.group) and not (self._closing or self.failure or self.group.commit_now)

    async def _wait_for_rows(self) -> None:
        while self._may_linger() and (delay_s := self._remaining_s()) > 0:
            await self._wait(delay_s, GROUP_ROWS_MAX)
            if self._jobs and not self._jobs_held:
                return
        before = self.group.rows
        delay_s = self._commit_delay.delay_s(before, self._clock.monotonic())
        if delay_s > 0:
            await self._wait(delay_s, GROUP_ROWS_MAX)
            if not self._due.is_now:
                self._commit_delay.waited(before, self.group.rows)

    def _remaining_s(self) -> float:
        return self._commit_delay.remaining_s(self.group, self._context.boot.hub_time.now_ms())

    async def _wait(self, delay_s: float | None, wake_at: int) -> None:
        """Wait until woken, or until `delay_s` have passed."""
        self.wake_at = wake_at
        try:
            await self._idle.wait(self._clock, delay_s)
        finally:
            self.wake_at = GROUP_ROWS_MAX

    def _seal(self) -> None:
        self.group.seal()
        self._sealed.append(self.group)
        self.group = Group()

    def _seal_for_room(self) -> None:
        if not self.together:
            self._seal()
        self._idle.cut()

    def _next_group(self) -> Group:
        if self.failure is not None:
            # What frees space is tried first, without new rows.
            freeing = take_freeing((*self._sealed, self.group))
            self._sealed = deque(group for group in self._sealed if group)
            if freeing or any(queue.checkpointer.is_due() for queue in self._changed):
                group = Group()
                group.freeing = freeing
                return group
        if not self._sealed:
            if self._may_wait_on() and self._remaining_s() > 0:
                return Group()  # it is the results' turn
            self._seal()
        return self._sealed.popleft()

    async def _turn(self) -> None:
        """Commit one group, or learn that it cannot be."""
        group = self._next_group()
        try:
            if self.limits.makes_room and group:
                await self._make_room(group)
            await self._commit(group)
        except StoreBusyError as exc:
            self._put_back(group)
            await self._handle_commit_failure(exc)
        except StoreValueError as exc:
            self._split(group, exc)
        except BaseException:
            self._put_back(group)
            raise
        else:
            waiting = self._sealed or self.group
            if self.failure is not None and not (group.only_frees and waiting):
                log.info(
                    "store.commit_recovered",
                    failed_for_s=round(self._clock.monotonic() - self.failure.since_s, 1),
                    attempts=self.failure.attempts,
                )
                self.failure = None

    async def _make_room(self, group: Group) -> None:
        assert self.evictor is not None
        await self.evictor.make_room(group, self._run_now, is_last=lambda: not self.pending_rows)

    async def _run_now(self, prepare: Callable[[], Job | None]) -> None:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._run_job(prepare, done)
        await done

    def _put_back(self, group: Group) -> None:
        if group:
            self._sealed.appendleft(group)

    async def _commit(self, group: Group) -> None:
        changed: dict[Queue, None] = {}
        if not (group.apart or (self.failure is not None and not group.only_frees)):
            changed = self._take_changed()
        if not (group or changed or self._context.offsets.scarce() or self._urgent()):
            return
        commit = Commit(group, changed, self._context)
        future = self._database.submit_transaction(commit.transaction.run)
        self._cancelled |= await settled(future)
        try:
            outcome = future.result()
        except BaseException:
            commit.roll_back()
            self._changed = changed | self._changed
            self._due.is_now |= bool(self._changed) or self._urgent()
            raise
        commit.apply(outcome)
        self._count(group, commit)
        commit.settle(outcome)
        for queue in changed:
            if queue.checkpointer.results:
                self.changed(queue, 0)  # of rows whose own commit is still to come

    def _urgent(self) -> bool:
        return self.events is not None and self.events.urgent

    def _take_changed(self) -> dict[Queue, None]:
        changed, self._changed = self._changed, {}
        self._changed_rows = 0
        self._due.met()
        return changed

    def _count(self, group: Group, commit: Commit) -> None:
        self.pending_bytes -= group.bytes
        self.commits_total += 1
        self.committed_rows_total += group.rows
        self.row_bytes_total += group.bytes
        dead = commit.dead_letter_bytes
        if dead:
            self.limits.other_tables_grew(dead)
        self._space_is_due = self.limits.committed(group.bytes + dead)
        # Deleting a row rewrites its page, which rows that leave in order share.
        self.wal.written(group.bytes + dead + commit.deleted_bytes // 2 + commit.other_bytes)
        if group.rows:
            self._commit_delay.committed(group.rows, self._clock.monotonic())

    async def _handle_commit_failure(self, error: StoreBusyError) -> None:
        """Count and report a failed commit, at a bounded rate, and wait before the next try."""
        now_s = self._clock.monotonic()
        self.commit_failures_total += 1
        failure = self.failure
        if failure is None:
            failure = self.failure = Failure(str(error), now_s)
        failure.met(str(error), now_s, self.pending_bytes)
        delay_s = failure.delay_s()
        failure.attempts += 1
        self.wal.checkpoint_soon()
        if self._closing or self._cancelled:
            return
        # Nothing but time or the end cuts it: a store that fails is not made better by traffic.
        await self._back_off.wait(self._clock, delay_s)

    def _split(self, group: Group, error: StoreValueError) -> None:
        """Go on with halves of a group, until the row that cannot be stored is alone."""
        assert group.waiters, f"not a row's value: {error}"
        if len(group.waiters) > 1:
            self._sealed.extendleft(reversed(group.halves()))
        elif not group.apart:
            group.apart = True
            self._sealed.appendleft(group)
        else:
            self._refuse(group, error)

    def _refuse(self, group: Group, error: StoreValueError) -> None:
        for part in group.parts:
            part.queue.reader.sealed_rows -= len(part.rows) - part.handed_out
            part.queue.rows_refused(part)
            part.queue.creations.left([row.offset for row in part.rows])
            if part.handed_out:
                part.queue.reader.refuse(part.rows[0].offset)
        self.refused_total += 1
        self.pending_bytes -= group.bytes
        log.warning("store.message_refused", error=str(error), refused_total=self.refused_total)
        if self.events is not None:
            message = group.parts[0].rows[0].message
            self.events.refused(message.sender, len(message.body), Refusal.INVALID.value)
        settle, token, _ = group.waiters[0]
        settle(token, Refusal.INVALID)
        if group.operations or group.freeing:
            rest = Group()
            rest.operations, rest.freeing = group.operations, group.freeing
            self._sealed.appendleft(rest)

    def _refuse_rest(self) -> None:
        if self.group:
            self._seal()
        for group in self._sealed:
            for settle, token, _ in group.waiters:
                settle(token, Refusal.CLOSED)
            for _, future in (*group.freeing, *group.operations):
                if not future.done():
                    future.set_exception(StoreError("the store is closed"))
        self._sealed.clear()
        for _, done in self._jobs:
            if not done.done():
                done.set_result(False)
        self._jobs.clear()
        self.pending_bytes = 0

    async def _between(self) -> None:
        if self._jobs and not self._jobs_held:
            await self._run_job(*self._jobs.popleft())
        await self.wal.checkpoint_if_due()
        if self._space_is_due and self.look_at_space is not None:
            self._space_is_due = False
            await self.look_at_space()

    async def _run_job(self, prepare: Callable[[], Job | None], done: asyncio.Future[bool]) -> None:
        job = prepare()
        if job is None:
            if not done.done():
                done.set_result(False)
            return
        work, apply = job
        future = self._database.submit_transaction(work)
        self._cancelled |= await settled(future)
        try:
            result = future.result()
        except StoreBusyError as exc:
            if not done.done():
                done.set_exception(exc)
            return
        apply(result)
        if not done.done():
            done.set_result(True)


def _nothing(_connection: sqlite3.Connection) -> None:
    """Join a transaction only to learn when it is committed."""
