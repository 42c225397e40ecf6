"""One queue: the rows of one endpoint and one priority, in the order of their offsets.

Owns depth, bytes and totals, and puts together what the reader, the checkpointer and the zones
know. It never writes: results go to the writer, which calls back once they are in the file.
Invariant: depth and bytes are those of the rows in the file, at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.message import queue_id
from edgehub.store.checkpointer import Checkpointer, Departure, Results
from edgehub.store.reader import Reader, ReadSource
from edgehub.store.statistics import QueueState, QueueStatistics
from edgehub.store.zones import Zones

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.message import EndpointId, FailureKind, Priority, Row
    from edgehub.store.dead_letters import DeadLetters
    from edgehub.store.group import Part

    Wake = Callable[["Queue"], None]


class QueueRecord:
    """What the file says about a queue at start."""

    __slots__ = ("checkpoint", "endpoint_id", "highest", "lowest", "number", "priority", "zones")

    def __init__(self, number: int, endpoint_id: EndpointId, priority: Priority) -> None:
        self.number = number
        self.endpoint_id = endpoint_id
        self.priority = priority
        self.checkpoint = 0
        self.lowest: tuple[int, int] | None = None
        self.highest = 0
        self.zones = Zones()


class QueueHost:
    """What a queue needs of the store it is part of.

    Attributes:
        source: How its rows are read.
        dead_letters: Makes dead letters.
        changed: Tells the writer of results.
        withdraw: Takes an uncommitted row out of the open group; False = its commit has begun.
    """

    __slots__ = ("changed", "dead_letters", "source", "withdraw")

    def __init__(
        self,
        source: ReadSource,
        dead_letters: DeadLetters,
        changed: Callable[[Queue, int], None],
        withdraw: Callable[[Queue, Row], bool],
    ) -> None:
        self.source = source
        self.dead_letters = dead_letters
        self.changed = changed
        self.withdraw = withdraw


class Queue:
    """One queue; one pump reads it."""

    __slots__ = (
        "_dead_lettered_total",
        "_enqueued_bytes_total",
        "_enqueued_total",
        "_expired_total",
        "_host",
        "_oldest_ms",
        "_sent_total",
        "_wakes",
        "checkpointer",
        "closed",
        "endpoint_id",
        "id",
        "number",
        "priority",
        "reader",
        "registered",
        "zones",
    )

    def __init__(
        self, host: QueueHost, record: QueueRecord, *, registered: bool, wakes: list[Wake]
    ) -> None:
        self.id = queue_id(record.endpoint_id, record.priority)
        self.endpoint_id = record.endpoint_id
        self.priority = record.priority
        self.number = record.number
        self.registered = registered
        self.closed = False
        self.zones = record.zones
        self.checkpointer = Checkpointer(checkpoint=record.checkpoint, proposed=record.highest)
        self.reader = Reader(
            host.source,
            record.number,
            self.checkpointer,
            self.zones,
            self.wake,
            position=record.lowest[0] if record.lowest else record.highest + 1,
        )
        self._host = host
        self._wakes = wakes
        self._oldest_ms = record.lowest[1] if record.lowest else None
        self._enqueued_total = 0
        self._enqueued_bytes_total = 0
        self._sent_total = 0
        self._expired_total = 0
        self._dead_lettered_total = 0

    def has_ready(self) -> bool:
        """Tell whether some row is neither in flight nor held.

        May say True of rows that turn out to be expired or held once they are looked at; after a
        `read_batch` that gave nothing it is False until something changes.
        """
        return self.reader.has_ready() and not self.closed

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Take the oldest rows that are ready; they are in flight from then on.

        Expired rows and rows held back are passed by. One row comes even if it is larger than
        `bytes_max`. Comes from memory where rows are cached.

        Args:
            rows_max: Rows at most, 1 or more.
            bytes_max: Sum of sizes at most.

        Returns:
            Rows in order of their offsets, fewer than `rows_max` when no more are ready.

        Raises:
            StoreCorruptError: The file is damaged.
        """
        if self.closed:
            return []
        return await self.reader.read_batch(rows_max, bytes_max)

    def confirm(self, rows: Sequence[Row]) -> None:
        """Let delivered rows leave; their deletion is committed within 50 ms."""
        self._leave(rows, Departure.SENT)

    def expire(self, rows: Sequence[Row]) -> None:
        """Let rows leave whose time to live ended in flight or just before their send."""
        self._leave(rows, Departure.EXPIRED)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Move a row that is in flight to the dead letters, in one transaction."""
        letter = self._host.dead_letters.encode(
            row,
            self.endpoint_id,
            self.priority,
            now_ms=self._host.source.hub_time.now_ms(),
            failure=(kind, reason),
        )
        self.checkpointer.withdraw((row,))
        results = self.checkpointer.results
        results.leave((row,), Departure.DEAD_LETTERED)
        results.dead_letters[row.offset] = letter
        self._host.changed(self, 1)

    def give_back(self, rows: Sequence[Row], *, attempted: bool) -> None:
        """Put rows in flight back to their old place.

        Args:
            rows: Rows in flight.
            attempted: The endpoint refused them; counted in the file with the next group.
        """
        self.checkpointer.withdraw(rows)
        if attempted:
            attempts = self.checkpointer.results.attempts
            for row in rows:
                row.attempts += 1
                attempts[row.offset] = row.attempts
            self._host.changed(self, len(rows))
        self.reader.give_back(rows)

    def hold_sender(self, sender: str) -> None:
        """Skip the rows of one sender (`Message.sender`) until released."""
        self.reader.hold_sender(sender)

    def release_sender(self, sender: str) -> None:
        """End `hold_sender`; the skipped rows come next, in their order."""
        self.reader.release_sender(sender)

    def hold_row(self, offset: int) -> None:
        """Skip one row until released."""
        self.reader.hold_row(offset)

    def release_row(self, offset: int) -> None:
        """End `hold_row`."""
        self.reader.release_row(offset)

    @property
    def state(self) -> QueueState:
        """What the queue is doing."""
        if self.closed:
            return QueueState.CLOSED
        if self.checkpointer.in_flight:
            return QueueState.SENDING
        if self.checkpointer.unstored:
            return QueueState.CHECKPOINTING
        if not self.zones.depth:
            return QueueState.IDLE
        return QueueState.WAITING if self.has_ready() else QueueState.DELAYED

    def statistics(self) -> QueueStatistics:
        """Give a snapshot."""
        return QueueStatistics(
            id=self.id,
            endpoint_id=self.endpoint_id,
            priority=self.priority,
            state=self.state,
            depth=self.zones.depth,
            bytes=self.zones.bytes,
            oldest_enqueued_ms=self._oldest_ms,
            in_flight=len(self.checkpointer.in_flight),
            checkpoint=self.checkpointer.checkpoint,
            enqueued_total=self._enqueued_total,
            enqueued_bytes_total=self._enqueued_bytes_total,
            sent_total=self._sent_total,
            expired_total=self._expired_total,
            dead_lettered_total=self._dead_lettered_total,
            dropped_total=0,
        )

    def wake(self) -> None:
        """Tell who watches the endpoint that rows can be read."""
        for wake in self._wakes:
            wake(self)

    def rows_committed(self, part: Part, size: int) -> None:
        """Count rows that are in the file now (called by the writer, zones already replaced)."""
        rows = part.rows
        self.registered = True
        self._enqueued_total += len(rows)
        self._enqueued_bytes_total += size
        if self._oldest_ms is None:
            self._oldest_ms = rows[0].enqueued_ms
        self.reader.rows_committed(rows, size, part.handed_out)

    def results_committed(self, results: Results) -> None:
        """Count results that are in the file now (zones already replaced)."""
        self._sent_total += results.count(Departure.SENT)
        self._expired_total += results.count(Departure.EXPIRED)
        self._dead_lettered_total += results.count(Departure.DEAD_LETTERED)
        self.checkpointer.commit()

    def lowest_committed(self, lowest: tuple[int, int] | None, committed: int) -> None:
        """Take over the lowest row left and the checkpoint that the file has now."""
        self._oldest_ms = lowest[1] if lowest else None
        self.checkpointer.reach(lowest[0] if lowest else None, committed)

    def rows_expired(self, rows: int) -> None:
        """Count rows that clean-up has deleted (zones already replaced)."""
        self._expired_total += rows

    def _leave(self, rows: Iterable[Row], kind: Departure) -> None:
        rows = list(rows)
        self.checkpointer.withdraw(rows)
        if self._host.source.offsets.ahead:
            rows = self._leave_early(rows, kind)
        if rows:
            self.checkpointer.results.leave(rows, kind)
            self._host.changed(self, len(rows))

    def _leave_early(self, rows: list[Row], kind: Departure) -> list[Row]:
        """Let uncommitted rows go without ever being written; returns the others."""
        proposed = self.checkpointer.proposed
        others: list[Row] = []
        for row in rows:
            if row.offset <= proposed or not self._host.withdraw(self, row):
                others.append(row)
                continue
            self.checkpointer.results.attempts.pop(row.offset, None)
            self._enqueued_total += 1
            self._enqueued_bytes_total += row.size
            if kind is Departure.SENT:
                self._sent_total += 1
            else:
                self._expired_total += 1
        return others
