"""One group commit: from live objects to values, and from the outcome back to memory.

Runs on the loop's thread on both sides of the job. Invariant: memory changes in `apply` alone,
after COMMIT has returned; `roll_back` leaves memory as it was before `prepare`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.journal.row_events import EventColumns, JoinedRows, RowEvent
from edgehub.store.dead_letters import bytes_of, dead_ms_of
from edgehub.store.transaction import Outcome, QueueWrite, Transaction
from edgehub.store.zones import ZoneChanges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.journal.row_events import QueueEvents
    from edgehub.store.boots import Boot
    from edgehub.store.checkpointer import Results
    from edgehub.store.dead_letters import DeadLetters
    from edgehub.store.encoding import Params
    from edgehub.store.event_log import EventLog
    from edgehub.store.group import Group, Part
    from edgehub.store.labels import Labels
    from edgehub.store.offsets import Offsets
    from edgehub.store.queue import Queue

CHANGE_BYTES: Final = 1024
"""What a changed row of another table rewrites: a page with a few of its neighbours."""


class CommitContext:
    """What every commit writes beside rows and results."""

    __slots__ = ("boot", "dead_letters", "events", "labels", "offsets")

    def __init__(
        self,
        boot: Boot,
        labels: Labels,
        dead_letters: DeadLetters,
        offsets: Offsets,
        events: EventLog | None,
    ) -> None:
        self.boot = boot
        self.labels = labels
        self.dead_letters = dead_letters
        self.offsets = offsets
        self.events = events


class _QueueCommit:
    __slots__ = ("part", "queue", "results", "write")

    def __init__(self, queue: Queue, part: Part | None, results: Results | None) -> None:
        self.queue = queue
        self.part = part
        self.results = results
        self.write = QueueWrite(queue.number)


class Commit:
    """One transaction in the making, running, or done."""

    __slots__ = (
        "_context",
        "_dead_letters",
        "_high_water",
        "_queues",
        "group",
        "other_bytes",
        "transaction",
    )

    def __init__(
        self, group: Group, queues_with_results: Iterable[Queue], context: CommitContext
    ) -> None:
        """Prepare to write `group` and the results of some queues."""
        self.group = group
        self.other_bytes = 0
        """What else was written, about."""
        self._context = context
        self._dead_letters: list[Params] = []
        self._queues = [_QueueCommit(part.queue, part, None) for part in group.parts]
        by_queue = {entry.queue: entry for entry in self._queues}
        for queue in queues_with_results:
            results = queue.checkpointer.take()
            entry = by_queue.get(queue)
            if entry is None:
                entry = _QueueCommit(queue, None, None)
                self._queues.append(entry)
            entry.results = results
            self._dead_letters.extend(results.dead_letters.values())
        # Gathered queue by queue, and over hours while commits fail; the oldest get the lowest ids.
        self._dead_letters.sort(key=dead_ms_of)
        offsets = context.offsets
        self._high_water = offsets.high_water()
        last = max([part.rows[-1].offset for part in group.parts], default=0)
        self.transaction = Transaction(
            boot=context.boot.record(self._high_water),
            empty_checkpoint=max(offsets.committed, last),
        )
        self._fill()

    def apply(self, outcome: Outcome) -> None:
        """Bring memory to what the file holds now."""
        self.other_bytes = outcome.changes * CHANGE_BYTES
        context = self._context
        committed = self.transaction.empty_checkpoint
        context.offsets.stored(self._high_water, committed)
        context.labels.saved(self.transaction.labels)
        if self._dead_letters:
            context.dead_letters.committed(self._dead_letters, outcome.evicted)
        if context.events is not None and self.transaction.events is not None:
            context.events.committed(self.transaction.events)
        for entry in self._queues:
            queue, part, results = entry.queue, entry.part, entry.results
            queue.zones.replace(entry.write.zones)
            if part is not None:
                queue.rows_committed(part)
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
        """Let the results join a later transaction."""
        for entry in self._queues:
            if entry.results is not None:
                entry.queue.checkpointer.roll_back()
        if self._context.events is not None and self.transaction.events is not None:
            self._context.events.failed(self.transaction.events)

    def settle(self, outcome: Outcome) -> None:
        """Tell waiters in the order of their messages, then who watches the queues."""
        for settle, token, _ in self.group.waiters:
            settle(token, None)
        for entry in self._queues:
            if entry.part is not None:
                entry.queue.wake()
        for (_, future), (result, error) in zip(
            (*self.group.freeing, *self.group.operations), outcome.operations, strict=True
        ):
            _resolve(future, result, error)

    def _fill(self) -> None:
        transaction, context = self.transaction, self._context
        transaction.labels = list(context.labels.unsaved)
        transaction.bodies = self.group.bodies
        operations = (*self.group.freeing, *self.group.operations)
        transaction.operations = [operation for operation, _ in operations]
        transaction.dead_letters = self._dead_letters
        if self._dead_letters:
            transaction.evict = context.dead_letters.excess(self._dead_letters)
        for entry in self._queues:
            queue, part, results, write = entry.queue, entry.part, entry.results, entry.write
            changes = ZoneChanges()
            if part is not None:
                write.plain, write.full = part.plain, part.full
                changes.add_rows(part.rows, recency=part.recency)
                if not queue.registered:
                    write.registration = (
                        queue.number,
                        queue.id,
                        queue.endpoint_id,
                        queue.priority,
                        part.rows[0].offset - 1,
                    )
            if results is not None:
                write.deletes = results.offsets
                write.attempts = [(count, offset) for offset, count in results.attempts.items()]
                changes.remove_rows(results.offsets, results.sizes)
            write.zones = queue.zones.values_after(changes)
            transaction.queues.append(write)
        if context.events is not None:
            transaction.events = context.events.begin(
                self._row_events(summing=context.events.summing)
            )

    def _row_events(self, *, summing: bool) -> list[QueueEvents]:
        events: list[QueueEvents] = []
        for entry in self._queues:
            queue, part, results = entry.queue, entry.part, entry.results
            if part is not None:
                joined = self._joined(part, summing=summing)
                events.append((queue.endpoint_id, queue.priority, joined))
            if results is not None:
                events.append((queue.endpoint_id, queue.priority, results.events))
        return events

    def _joined(self, part: Part, *, summing: bool) -> EventColumns | JoinedRows:
        if len(part.senders) == len(part.rows) and not summing:
            return JoinedRows(part.plain, part.senders, self._context.labels.routes)
        columns = EventColumns()
        columns.add(RowEvent.ENQUEUED, part.rows, None)
        return columns


def _resolve(future: Any, result: Any, error: Exception | None) -> None:
    if future.done():
        return  # its waiter was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
