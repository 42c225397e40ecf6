"""One group commit: from live objects to values, and from the outcome back to memory.

Runs on the loop's thread before and after the job. Invariant: memory changes in `apply` alone,
after COMMIT has returned; `roll_back` leaves memory as it was before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.journal.row_events import EventColumns, JoinedRows, RowEvent
from edgehub.store.dead_letters import bytes_of, dead_ms_of
from edgehub.store.transaction import Outcome, QueueWrite, Transaction
from edgehub.store.zones import ZoneChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgehub.journal.row_events import QueueEvents
    from edgehub.store.checkpointer import Results
    from edgehub.store.encoding import Params
    from edgehub.store.group import Group
    from edgehub.store.queue import Queue
    from edgehub.store.queue_rows import QueueRows
    from edgehub.store.shared_state import SharedState

CHANGE_BYTES: Final = 1024
"""Estimate of what a changed row of another table writes: a page with a few changed rows."""


class _QueueCommit(Struct, eq=False):
    queue: Queue
    write: QueueWrite
    joined: QueueRows | None = None
    results: Results | None = None


class Commit:
    """One transaction."""

    __slots__ = (
        "_dead_letters",
        "_high_water",
        "_queues",
        "_shared",
        "group",
        "other_bytes",
        "transaction",
    )

    def __init__(
        self, group: Group, queues_with_results: Iterable[Queue], shared: SharedState
    ) -> None:
        """Prepare to write `group` and the results of some queues."""
        self.group = group
        self.other_bytes = 0
        """Estimate of what was written of other tables."""
        self._shared = shared
        self._dead_letters: list[Params] = []
        by_queue = {
            queue: _QueueCommit(queue, QueueWrite(queue.number), joined)
            for queue, joined in group.rows_of.items()
        }
        for queue in queues_with_results:
            entry = by_queue.get(queue)
            if entry is None:
                entry = by_queue[queue] = _QueueCommit(queue, QueueWrite(queue.number))
            entry.results = queue.checkpointer.take()
            self._dead_letters.extend(entry.results.dead_letters.values())
        self._queues = list(by_queue.values())
        # Gathered queue by queue, and over hours while commits fail; the oldest get the lowest ids.
        self._dead_letters.sort(key=dead_ms_of)
        offsets = shared.offsets
        self._high_water = offsets.high_water()
        last = max([joined.rows[-1].offset for joined in group.rows_of.values()], default=0)
        self.transaction = Transaction(
            boot=shared.boot.record(self._high_water),
            empty_checkpoint=max(offsets.committed, last),
        )
        self._fill()

    def apply(self, outcome: Outcome) -> None:
        """Update memory to what the file contains now."""
        self.other_bytes = outcome.changes * CHANGE_BYTES
        shared = self._shared
        committed = self.transaction.empty_checkpoint
        shared.offsets.stored(self._high_water, committed)
        shared.labels.saved(self.transaction.labels)
        if self._dead_letters:
            shared.dead_letters.committed(self._dead_letters, outcome.evicted)
        if shared.events is not None and self.transaction.events is not None:
            shared.events.committed(self.transaction.events)
        for entry in self._queues:
            queue, joined, results = entry.queue, entry.joined, entry.results
            queue.zones.replace(entry.write.zones)
            if joined is not None:
                queue.rows_committed(joined)
            if results is not None:
                if queue.number in outcome.lowest:
                    queue.lowest_committed(outcome.lowest[queue.number], committed)
                queue.results_committed(results)

    @property
    def deleted_bytes(self) -> int:
        """Sum of the sizes of the rows that leave."""
        return sum([sum(entry.results.sizes) for entry in self._queues if entry.results])

    @property
    def dead_letter_bytes(self) -> int:
        """Sum of the sizes of the dead letters that join."""
        return bytes_of(self._dead_letters)

    def roll_back(self) -> None:
        """Return the results, so that they join a later transaction."""
        for entry in self._queues:
            if entry.results is not None:
                entry.queue.checkpointer.roll_back()
        if self._shared.events is not None and self.transaction.events is not None:
            self._shared.events.failed(self.transaction.events)

    def settle(self, outcome: Outcome) -> None:
        """Notify waiters in the order of their messages, then the watchers of the queues."""
        for settle, token in self.group.waiters.values():
            settle(token, None)
        for entry in self._queues:
            if entry.joined is not None:
                entry.queue.wake()
        for (_, future), (result, error) in zip(
            (*self.group.freeing, *self.group.operations), outcome.operations, strict=True
        ):
            _resolve(future, result, error)

    def _fill(self) -> None:
        transaction, shared = self.transaction, self._shared
        transaction.labels = list(shared.labels.unsaved)
        transaction.bodies = self.group.bodies
        operations = (*self.group.freeing, *self.group.operations)
        transaction.operations = [operation for operation, _ in operations]
        transaction.dead_letters = self._dead_letters
        if self._dead_letters:
            transaction.evict = shared.dead_letters.excess(self._dead_letters)
        for entry in self._queues:
            queue, joined, results, write = entry.queue, entry.joined, entry.results, entry.write
            changes = ZoneChanges()
            if joined is not None:
                write.plain, write.full = joined.plain(shared.labels), joined.full
                changes.add_rows(joined.rows, recency=joined.recency)
                if not queue.registered:
                    write.registration = (
                        queue.number,
                        queue.id,
                        queue.endpoint_id,
                        queue.priority,
                        joined.rows[0].offset - 1,
                    )
            if results is not None:
                write.deletes = results.offsets
                write.attempts = [(count, offset) for offset, count in results.attempts.items()]
                changes.remove_rows(results.offsets, results.sizes)
            write.zones = queue.zones.values_after(changes)
            transaction.queues.append(write)
        if shared.events is not None:
            transaction.events = shared.events.begin(
                self._row_events(summing=shared.events.summing)
            )

    def _row_events(self, *, summing: bool) -> list[QueueEvents]:
        events: list[QueueEvents] = []
        for entry in self._queues:
            queue, joined, results = entry.queue, entry.joined, entry.results
            if joined is not None:
                columns = self._enqueued(joined, entry.write.plain, summing=summing)
                events.append((queue.endpoint_id, queue.priority, columns))
            if results is not None:
                events.append((queue.endpoint_id, queue.priority, results.events))
        return events

    def _enqueued(
        self, joined: QueueRows, plain: Sequence[Params], *, summing: bool
    ) -> EventColumns | JoinedRows:
        if len(plain) == len(joined.rows) and not summing:
            # The property costs twice as much.
            senders = [
                row.message.device_id if row.message.module_id is None else row.message.sender
                for row in joined.rows
            ]
            return JoinedRows(plain, senders, self._shared.labels.routes)
        columns = EventColumns()
        columns.add(RowEvent.ENQUEUED, joined.rows, None)
        return columns


def _resolve(future: Any, result: Any, error: Exception | None) -> None:
    if future.done():
        return  # its waiter was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
