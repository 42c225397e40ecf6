"""What is to be written: messages in groups, results of rows, operations, other transactions.

Owns the open group, the sealed ones and the queues whose rows have results; the `Committer` takes
what it commits from here. Invariant: whatever is accepted is committed or refused, and its waiter
is notified.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from edgehub.clock import Pause
from edgehub.errors import StoreError
from edgehub.message import Refusal
from edgehub.store.commit_timer import CommitTimer
from edgehub.store.group import GROUP_BYTES_MAX, GROUP_ROWS_MAX, Group

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from edgehub.clock import Clock
    from edgehub.message import Row
    from edgehub.store.event_log import EventBatch, EventLog
    from edgehub.store.failure import Failure
    from edgehub.store.queue import Queue
    from edgehub.store.queue_rows import QueueRows

    Job = tuple[Callable[[sqlite3.Connection], Any], Callable[[Any], int]]
    """A transaction: what runs on the connection, and what applies the result to memory and returns
    how many bytes were written."""
    PrepareJob = Callable[[EventBatch | None], Job | None]
    """Called right before, on the loop, with what the transaction writes for the journal, None =
    there is no journal; returns None = there is nothing to do any more."""

RESULTS_DELAY_S: Final = 0.05
EARLY_DELAYS: Final = 5
"""After so many commit delays the events of rows that were never written are committed alone."""
RESULTS_MAX: Final = 4096
"""Rows that left and wait for their commit, above which it begins at once."""


class Writer:
    """Gathers what is to be written.

    Args:
        clock: Timers.
        events: Records events for the journal, None = there is no journal.
        delay_s: The fixed commit delay, 0 = adaptive.
    """

    def __init__(self, clock: Clock, events: EventLog | None, delay_s: float) -> None:
        self.events = events
        self.group = Group()
        self.sealed: deque[Group] = deque()
        self.wake_at = GROUP_ROWS_MAX
        """`append` calls `rows_waiting` once the open group has so many rows."""
        self.changed_queues: dict[Queue, None] = {}
        """Queues whose rows have results."""
        self.jobs: deque[tuple[PrepareJob, asyncio.Future[bool]]] = deque()
        self.idle = Pause()
        """Ended by whatever there is to write."""
        self.due = CommitTimer(clock, self.idle.cut)
        self.failure: Failure | None = None
        """The commits that fail now, None = the last one succeeded."""
        self.is_closing = False
        self.pending_bytes = 0
        self.refused_total = 0
        self.early_rows_total = 0
        self.result_commits_total = 0
        """Commits that took along all results that could be stored."""
        self._is_together = False
        self._changed_rows = 0
        self._results_delay_s = max(RESULTS_DELAY_S, delay_s)
        self._early_delay_s = max(RESULTS_DELAY_S, EARLY_DELAYS * delay_s)
        self._jobs_held = False
        self._is_closed = False

    def rows_waiting(self) -> None:
        """Record that the open group has reached `wake_at` rows, or its bytes."""
        if self.group.rows >= GROUP_ROWS_MAX or self.group.bytes >= GROUP_BYTES_MAX:
            self.seal_early()
        self.idle.cut()

    @contextmanager
    def together(self) -> Iterator[object]:
        """Put all that is handed in inside the block into one transaction; nothing may be awaited.

        Blocks may be nested: the outermost one counts.

        Yields:
            The transaction; it takes more as long as the same object is returned.
        """
        was_together, self._is_together = self._is_together, True
        try:
            yield self.group
        finally:
            self._is_together = was_together
            if self.group.rows >= GROUP_ROWS_MAX or self.group.bytes >= GROUP_BYTES_MAX:
                self.rows_waiting()

    def seal(self) -> None:
        """Close the open group for further rows, and open another one."""
        self.group.seal()
        self.sealed.append(self.group)
        self.group = Group()

    def seal_early(self) -> None:
        """Seal the open group, unless rows are being put into it `together`."""
        if not self._is_together:
            self.seal()
        self.idle.cut()

    def changed(self, queue: Queue, rows: int) -> None:
        """Record that rows of a queue have results; they are committed within 50 ms."""
        self.changed_queues[queue] = None
        self._schedule_results(rows, self._results_delay_s)

    def commit_events(self) -> None:
        """Commit the events that wait within 50 ms."""
        if self.events is not None:
            self.events.urgent = True
            self.due.within(self._results_delay_s)

    def withdraw(self, queue: Queue, joined: QueueRows, rows: Sequence[Row], size: int) -> bool:
        """Remove rows that have left before their commit, and acknowledge them; see `Group`.

        Returns:
            False = they stay, since a transaction writes their group now.
        """
        group = self._group_of(queue, joined)
        if group is None:
            return False
        settled = group.withdraw(joined, rows, size)
        self.pending_bytes -= size
        self.early_rows_total += len(rows)
        if self.events is not None:
            self._schedule_results(len(rows), self._early_delay_s)
        if group is not self.group:
            queue.rows_refused(len(rows), size)
            if group.withdrawn_rows >= group.rows:
                # While commits fail, there may be any number of sealed groups.
                group.prune()
                if not group:
                    self.sealed.remove(group)
        # Last: a sender may submit its next message at once.
        for settle, token in settled:
            settle(token, None)
        return True

    def transact(
        self,
        operation: Callable[[sqlite3.Connection], Any],
        *,
        commit_now: bool = True,
        later: bool = False,
        frees: bool = False,
    ) -> asyncio.Future[Any]:
        """Run `operation` in the transaction of the messages appended so far.

        What it raises fails the future and undoes the operation alone; it may run again when the
        transaction has to be repeated. Each one costs a savepoint: gather what is frequent.

        Args:
            operation: Runs on the connection's thread.
            commit_now: The transaction does not wait for more rows.
            later: Nothing waits for it: it is committed with what else is, or within 50 ms.
            frees: It only deletes: it runs before the others, and while commits fail it is tried
                without what needs space, so it must not depend on that.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_closing:
            future.set_exception(StoreError("the store is closed"))
            return future
        operations = self.group.freeing if frees else self.group.operations
        operations.append((operation, future))
        if later:
            self.due.within(self._results_delay_s)
        elif commit_now:
            self.commit_now()
        elif self.wake_at == 1:
            self.idle.cut()
        return future

    def commit_now(self) -> None:
        """Commit the open group without waiting for more rows."""
        self.group.commit_now = self.due.is_now = True
        self.idle.cut()

    def between(self, prepare: PrepareJob) -> asyncio.Future[bool]:
        """Run a transaction of its own between two groups; see `PrepareJob`.

        Returns:
            Whether a transaction was committed; fails with `StoreBusyError` when it could not be.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_result(False)
            return future
        self.jobs.append((prepare, future))
        self.idle.cut()
        return future

    def hold_jobs(self) -> None:
        """Start no more transactions of `between`; those handed in end with the store."""
        self._jobs_held = True

    def touch(self) -> None:
        """Commit a transaction, whatever there is to write."""
        # Its error is not awaited: that of the commit is reported.
        self.transact(_do_nothing).add_done_callback(lambda future: future.exception())

    async def flush(self) -> None:
        """Wait until all rows and results handed in before are in the file."""
        await self.transact(_do_nothing)
        commits = self.result_commits_total
        while self.changed_queues and self.result_commits_total == commits:
            # Results that had to stay behind: of rows in a later group, or after a failure.
            await self.transact(_do_nothing)

    async def flush_within(self, seconds: float) -> None:
        """Wait for `flush`, so long at most; not at all while commits fail."""
        if self.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.flush()

    @property
    def pending_rows(self) -> int:
        """Rows that wait for their commit, those in the running one left out."""
        return self.group.rows + sum([group.rows for group in self.sealed])

    @property
    def is_urgent(self) -> bool:
        """Whether events wait for a commit that no row may bring."""
        return self.events is not None and self.events.urgent

    def has_work(self) -> bool:
        """Return whether something is to be committed now."""
        return bool(
            self.sealed
            or self.group
            or (self.due.is_now and (self.changed_queues or self.is_urgent))
            or self.has_job()
        )

    def has_job(self) -> bool:
        """Return whether a transaction of `between` waits that may start."""
        return bool(self.jobs) and not self._jobs_held

    def may_wait(self) -> bool:
        """Return whether the open group may wait for more rows."""
        return bool(self.group) and not (self.is_closing or self.failure or self.group.commit_now)

    def take_changed(self) -> dict[Queue, None]:
        """Remove and return the queues whose rows have results."""
        changed, self.changed_queues = self.changed_queues, {}
        self._changed_rows = 0
        self.due.reset()
        return changed

    def close(self) -> None:
        """Refuse what waits, and accept no more."""
        self.is_closing = self._is_closed = True
        if self.group:
            self.seal()
        for group in self.sealed:
            for settle, token in group.waiters.values():
                settle(token, Refusal.CLOSED)
            for _, future in (*group.freeing, *group.operations):
                if not future.done():
                    future.set_exception(StoreError("the store is closed"))
        self.sealed.clear()
        for _, done in self.jobs:
            if not done.done():
                done.set_result(False)
        self.jobs.clear()
        self.pending_bytes = 0
        self.idle.cut()

    def _group_of(self, queue: Queue, joined: QueueRows) -> Group | None:
        if joined is queue.reader.open_rows:
            return self.group
        return next((each for each in self.sealed if each.rows_of.get(queue) is joined), None)

    def _schedule_results(self, rows: int, delay_s: float) -> None:
        self._changed_rows += rows
        if self._changed_rows >= RESULTS_MAX:
            self.due.at_once()
        else:
            self.due.within(delay_s)


def _do_nothing(_connection: sqlite3.Connection) -> None:
    """Join a transaction only to learn when it is committed."""
