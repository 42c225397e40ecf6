"""The one task that commits: groups, results and other transactions, one after the other.

Owns the choice of what goes into the next transaction, and the retries while commits fail. Memory
is changed in the order of the commits. Invariant: a message that its receiver has not confirmed is
not acknowledged before COMMIT has returned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.clock import Pause
from edgehub.errors import StoreError
from edgehub.message import Refusal
from edgehub.store.commit import Commit
from edgehub.store.database import StoreBusyError, StoreValueError, settled
from edgehub.store.failure import Failure
from edgehub.store.group import GROUP_ROWS_MAX, Group, take_freeing

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from edgehub.store.event_log import EventBatch
    from edgehub.store.limits import Limits
    from edgehub.store.maintenance.eviction import Evictor
    from edgehub.store.maintenance.space import SpaceMonitor
    from edgehub.store.queue import Queue
    from edgehub.store.shared_state import SharedState
    from edgehub.store.wal import Wal
    from edgehub.store.writer import PrepareJob, Writer

log = structlog.get_logger(__name__)

DRAIN_ATTEMPTS: Final = 3


class Committer:
    """Group commit.

    Args:
        shared: What every commit writes in addition to rows and results.
        writer: What is to be written.
        limits: Count what was written.
        evictor: Makes room for a group where a limit is reached.
        space: Measures the volume when much was written.
        wal: Emptied between transactions.
    """

    def __init__(
        self,
        shared: SharedState,
        writer: Writer,
        *,
        limits: Limits,
        evictor: Evictor,
        space: SpaceMonitor,
        wal: Wal,
    ) -> None:
        self._shared = shared
        self._clock = shared.clock
        self._writer = writer
        self._commit_delay = shared.commit_delay
        self._limits = limits
        self._evictor = evictor
        self._space = space
        self._wal = wal
        self.commits_total = 0
        self.committed_rows_total = 0
        self.commit_failures_total = 0
        self.row_bytes_total = 0
        self._space_is_due = False
        self._measured_offset = shared.offsets.next
        self._back_off = Pause()
        self._turns = asyncio.Lock()
        self._cancelled = False
        self._closed = False

    async def run(self) -> None:
        """Commit what is handed in until cancelled or closed.

        Raises:
            StoreCorruptError, StoreRemovedError: The file is damaged, or does not exist any more;
                nothing more is acknowledged.
        """
        while not self._closed:
            if not self._has_work():
                await self._wait(None, 1)
                continue
            if self._may_delay():
                await self._wait_for_rows()
                if not self._has_work():
                    continue  # what waited was confirmed
            async with self._turns:
                if not self._closed:
                    await self._turn()
                    await self._between()
            if self._cancelled:
                self._cancelled = False
                raise asyncio.CancelledError

    async def drain(self) -> None:
        """Commit what is there, refuse what cannot be committed, and accept no more."""
        writer = self._writer
        writer.is_closing = True
        writer.idle.cut()
        self._back_off.cut()
        async with self._turns:
            try:
                if not self._closed:
                    await self._drain_turns()
            except StoreError as exc:
                log.error("store.drain_failed", error=str(exc))  # noqa: TRY400 - no bug of ours
            self.give_up()
        if self._cancelled:
            raise asyncio.CancelledError

    def give_up(self) -> None:
        """Refuse what waits, and accept no more: nothing can be acknowledged any more."""
        self._closed = True
        self._writer.close()

    async def _drain_turns(self) -> None:
        writer = self._writer
        attempts = 0
        while (
            self._has_work() or writer.changed_queues or writer.is_urgent
        ) and attempts < DRAIN_ATTEMPTS:
            await self._turn()
            await self._between()
            if writer.failure is not None:
                attempts += 1

    def _has_work(self) -> bool:
        return self._writer.has_work() or self._is_due_anyway()

    def _is_due_anyway(self) -> bool:
        """Return whether a transaction is due even if nothing waits for it."""
        # While commits fail, one is tried until it succeeds, whatever is left to be written.
        return self._writer.failure is not None or self._shared.offsets.scarce()

    def _may_delay(self) -> bool:
        writer = self._writer
        return not (writer.sealed or writer.due.is_now) and writer.may_wait()

    async def _wait_for_rows(self) -> None:
        writer = self._writer
        has_waited = False
        while self._may_delay() and (delay_s := self._remaining_s()) > 0:
            await self._wait(delay_s, GROUP_ROWS_MAX)
            has_waited = True
            self._measure_rate()
            if writer.has_job():
                return
        if has_waited:
            return
        before = writer.group.rows
        delay_s = self._commit_delay.delay_s(before, self._clock.monotonic())
        if delay_s > 0:
            await self._wait(delay_s, GROUP_ROWS_MAX)
            if not writer.due.is_now:
                self._commit_delay.waited(before, writer.group.rows)

    def _remaining_s(self) -> float:
        group, delay = self._writer.group, self._commit_delay
        if not delay.fixed_s and group.needs_commit():
            return 0.0  # no confirmation can spare it
        return delay.remaining_s(
            group.oldest_ms, self._clock.monotonic(), self._shared.hub_time.now_ms()
        )

    def _measure_rate(self) -> None:
        offset = self._shared.offsets.next
        self._commit_delay.appended(offset - self._measured_offset, self._clock.monotonic())
        self._measured_offset = offset

    async def _wait(self, delay_s: float | None, wake_at: int) -> None:
        """Wait until woken, or until `delay_s` have passed."""
        self._writer.wake_at = wake_at
        try:
            await self._writer.idle.wait(self._clock, delay_s)
        finally:
            self._writer.wake_at = GROUP_ROWS_MAX

    def _next_group(self) -> Group:
        writer = self._writer
        if writer.failure is not None:
            # What frees space is tried first, without new rows.
            freeing = take_freeing((*writer.sealed, writer.group))
            writer.sealed = deque(group for group in writer.sealed if group)
            if freeing or any(queue.checkpointer.is_due() for queue in writer.changed_queues):
                group = Group()
                group.freeing = freeing
                return group
        if not writer.sealed:
            if writer.may_wait() and self._remaining_s() > 0:
                return Group()  # only results are due
            writer.seal()
        group = writer.sealed.popleft()
        group.prune()
        return group

    async def _turn(self) -> None:
        """Commit one group, or handle that it cannot be."""
        writer = self._writer
        group = self._next_group()
        try:
            if self._limits.makes_room and group:
                await self._evictor.make_room(
                    group, self._run_now, is_last=lambda: not writer.pending_rows
                )
            await self._commit(group)
        except StoreBusyError as exc:
            self._put_back(group)
            for queue, joined in list(group.rows_of.items()):
                queue.withdraw_left(joined)
            await self._handle_commit_failure(exc)
        except StoreValueError as exc:
            self._split(group, exc)
        except BaseException:
            self._put_back(group)
            raise
        else:
            waiting = writer.sealed or writer.group
            if writer.failure is not None and not (group.only_frees and waiting):
                log.info(
                    "store.commit_recovered",
                    failed_for_s=round(self._clock.monotonic() - writer.failure.since_s, 1),
                    attempts=writer.failure.attempts,
                )
                writer.failure = None

    async def _run_now(self, prepare: PrepareJob) -> None:
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._run_job(prepare, done)
        await done

    def _put_back(self, group: Group) -> None:
        if group:
            self._writer.sealed.appendleft(group)

    async def _commit(self, group: Group) -> None:
        writer = self._writer
        changed: dict[Queue, None] = {}
        with_results = not (group.apart or (writer.failure is not None and not group.only_frees))
        if with_results:
            changed = writer.take_changed()
        if not (group or changed or writer.is_urgent or self._is_due_anyway()):
            return
        commit = Commit(group, changed, self._shared)
        future = self._shared.database.submit_transaction(commit.transaction.run)
        self._cancelled |= await settled(future)
        try:
            outcome = future.result()
        except BaseException:
            commit.roll_back()
            writer.changed_queues = changed | writer.changed_queues
            writer.due.is_now |= bool(writer.changed_queues) or writer.is_urgent
            raise
        commit.apply(outcome)
        writer.result_commits_total += with_results
        self._count(group, commit)
        commit.settle(outcome)
        for queue in changed:
            if queue.checkpointer.results:
                writer.changed(queue, 0)  # of rows whose own commit is still to come

    def _count(self, group: Group, commit: Commit) -> None:
        self._writer.pending_bytes -= group.bytes
        self.commits_total += 1
        self.committed_rows_total += group.rows
        self.row_bytes_total += group.bytes
        dead = commit.dead_letter_bytes
        if dead:
            self._limits.other_tables_grew(dead)
        self._space_is_due = self._limits.committed(group.bytes + dead)
        # Deleting a row rewrites its page, which rows that leave in order share.
        self._wal.written(group.bytes + dead + commit.deleted_bytes // 2 + commit.other_bytes)
        if group.rows:
            self._measure_rate()

    async def _handle_commit_failure(self, error: StoreBusyError) -> None:
        """Count and report a failed commit, and wait before the next try."""
        writer = self._writer
        now_s = self._clock.monotonic()
        self.commit_failures_total += 1
        failure = writer.failure
        if failure is None:
            failure = writer.failure = Failure(str(error), now_s, now_s)
        failure.report(str(error), now_s, writer.pending_bytes)
        delay_s = failure.delay_s()
        failure.attempts += 1
        self._wal.checkpoint_soon()
        if writer.is_closing or self._cancelled:
            return
        # Nothing but time or the end cuts it: more traffic does not repair a disk.
        await self._back_off.wait(self._clock, delay_s)

    def _split(self, group: Group, error: StoreValueError) -> None:
        """Go on with halves of a group, until the row that cannot be stored is alone."""
        assert group.waiters, f"not a row's value: {error}"
        if len(group.waiters) > 1:
            self._writer.sealed.extendleft(reversed(group.halves()))
        elif not group.apart:
            group.apart = True
            self._writer.sealed.appendleft(group)
        else:
            self._refuse(group, error)

    def _refuse(self, group: Group, error: StoreValueError) -> None:
        writer = self._writer
        for queue, joined in group.rows_of.items():
            queue.reader.remove(joined)
            queue.rows_refused(len(joined.rows), joined.bytes)
            queue.creations.discard([row.offset for row in joined.rows])
            if joined.handed_out:
                queue.reader.refuse(joined.rows[0].offset)
        writer.refused_total += 1
        writer.pending_bytes -= group.bytes
        log.warning("store.message_refused", error=str(error), refused_total=writer.refused_total)
        if writer.events is not None:
            message = next(iter(group.rows_of.values())).rows[0].message
            writer.events.refused(message.sender, len(message.body), Refusal.INVALID.value)
        ((settle, token),) = group.waiters.values()
        settle(token, Refusal.INVALID)
        if group.operations or group.freeing:
            rest = Group()
            rest.operations, rest.freeing = group.operations, group.freeing
            writer.sealed.appendleft(rest)

    async def _between(self) -> None:
        if self._writer.has_job():
            await self._run_job(*self._writer.jobs.popleft())
        await self._wal.checkpoint_if_due()
        if self._space_is_due:
            self._space_is_due = False
            await self._space.measure()

    async def _run_job(self, prepare: PrepareJob, done: asyncio.Future[bool]) -> None:
        events = self._writer.events
        batch = None if events is None else events.begin()
        job = prepare(batch)
        is_written = False
        error: StoreBusyError | None = None
        if job is not None:
            work, apply = job
            run = partial(_run_with_events, work, batch)
            future = self._shared.database.submit_transaction(run)
            self._cancelled |= await settled(future)
            try:
                result = future.result()
            except StoreBusyError as exc:
                error = exc
            else:
                is_written = True
                self._wal.written(apply(result))
                # Rows may have joined a queue, so the room for messages is computed again.
                self._limits.recount()
        if events is not None and batch is not None:
            (events.committed if is_written else events.failed)(batch)
        if done.done():
            return  # its waiter was cancelled
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(is_written)


def _run_with_events(
    work: Callable[[sqlite3.Connection], Any],
    batch: EventBatch | None,
    connection: sqlite3.Connection,
) -> Any:
    result = work(connection)
    if batch is not None:
        batch.write(connection)
    return result
