"""One queue: the rows of one endpoint and one priority, in the order of their offsets.

Owns the totals, and joins the reader, the checkpointer and the zones of the queue. It never writes:
results go to the writer, and the commit calls back once they are in the file. Invariant: depth and
bytes are those of the rows in the file, at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from edgehub.journal.row_events import EventColumns, RowEvent
from edgehub.message import queue_id
from edgehub.store.checkpointer import Checkpointer, Results
from edgehub.store.creations import Creations
from edgehub.store.out_of_turn import OutOfTurn
from edgehub.store.reader import Reader
from edgehub.store.statistics import QueueState, QueueStatistics, QueueTotals, RowState
from edgehub.store.zones import ZONE_OFFSETS, Zones

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.journal.row_events import Record
    from edgehub.message import EndpointId, FailureKind, Priority, Row
    from edgehub.store.queue_rows import QueueRows
    from edgehub.store.shared_state import SharedState

    Wake = Callable[["Queue"], None]

COUNTED_MAX: Final = 64
"""Up to so many rows in flight are added up one by one; of more the bytes are estimated."""


class QueueRecord(Struct, eq=False):
    """What the file contains of a queue at start."""

    number: int
    endpoint_id: EndpointId
    priority: Priority
    checkpoint: int = 0
    lowest: tuple[int, int] | None = None
    highest: int = 0
    zones: Zones = field(default_factory=Zones)
    creations: Creations = field(default_factory=Creations)


class Queue:
    """One queue; one pump reads it."""

    __slots__ = (
        "_changed",
        "_oldest_ms",
        "_shared",
        "_wakes",
        "_withdraw",
        "checkpointer",
        "closed",
        "creations",
        "endpoint_id",
        "id",
        "number",
        "out_of_turn",
        "priority",
        "reader",
        "registered",
        "sealed_bytes",
        "sealed_rows",
        "totals",
        "zones",
    )

    def __init__(
        self,
        shared: SharedState,
        record: QueueRecord,
        *,
        changed: Callable[[Queue, int], None],
        withdraw: Callable[[Queue, QueueRows, Sequence[Row], int], bool],
        registered: bool,
        wakes: list[Wake],
    ) -> None:
        """Build the queue from what is stored of it.

        Args:
            shared: What the parts of the store share.
            record: What the file contains of it.
            changed: Called when so many rows have results.
            withdraw: Removes rows from their group; see `Writer.withdraw`.
            registered: It is in the file.
            wakes: Called when rows can be read.
        """
        self.id = queue_id(record.endpoint_id, record.priority)
        self.endpoint_id = record.endpoint_id
        self.priority = record.priority
        self.number = record.number
        self.registered = registered
        self.closed = False
        self.zones = record.zones
        self.creations = record.creations
        self.checkpointer = Checkpointer(checkpoint=record.checkpoint, proposed=record.highest)
        self.reader = Reader(
            shared,
            record.number,
            self.checkpointer,
            self.zones,
            self.wake,
            position=record.lowest[0] if record.lowest else record.highest + 1,
        )
        self.out_of_turn = OutOfTurn(
            shared, record.number, self.creations, self.checkpointer, self.reader
        )
        self._shared = shared
        self._changed = changed
        self._withdraw = withdraw
        self._wakes = wakes
        self._oldest_ms = record.lowest[1] if record.lowest else None
        self.totals = QueueTotals()
        self.sealed_rows = 0
        """Rows of groups that take no more and are not committed yet."""
        self.sealed_bytes = 0

    def has_ready(self) -> bool:
        """Return whether some row is neither in flight nor held.

        May be True for rows that turn out to be expired or held once they are read; after a
        `read_batch` that returned no rows it is False until something changes.
        """
        return self.reader.has_ready() and not self.closed

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Read the oldest rows that are ready; they are in flight from then on.

        Expired and held rows are skipped. One row is returned even if it is larger than
        `bytes_max`.

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
        """Remove delivered rows; their deletion is committed within 50 ms."""
        if rows:
            shared = self._shared
            age_s = (shared.hub_time.now_ms() - rows[0].enqueued_ms) / 1000
            shared.commit_delay.confirmed(age_s, shared.clock.monotonic())
        self._leave(rows, RowEvent.SENT)

    def expire(self, rows: Sequence[Row]) -> None:
        """Remove rows whose time to live ended in flight or just before their send."""
        self._leave(rows, RowEvent.EXPIRED)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Move a row that is in flight to the dead letters, in one transaction."""
        letter = self._shared.dead_letters.encode(
            row,
            self.endpoint_id,
            self.priority,
            now_ms=self._shared.hub_time.now_ms(),
            failure=(kind, reason),
        )
        self.checkpointer.withdraw((row,))
        self._forget_creations((row,))
        self.checkpointer.leave((row,), RowEvent.DEAD_LETTERED)
        self._record(RowEvent.DEAD_LETTERED, (row,), f"{kind.value}: {reason}")
        self.checkpointer.results.dead_letters[row.offset] = letter
        self._changed(self, 1)

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """Return rows in flight to their place.

        Args:
            rows: Rows in flight.
            attempted: The endpoint refused them; counted in the file with the next group.
            refusal: Why they were refused for now, for the journal; None = they were not.
        """
        self.checkpointer.withdraw(rows)
        if attempted:
            attempts = self.checkpointer.results.attempts
            for row in rows:
                row.attempts += 1
                attempts[row.offset] = row.attempts
            self._changed(self, len(rows))
        if refusal is not None and self._shared.events is not None:
            self._record(RowEvent.RETRIED, rows, refusal)
            self._changed(self, 0)
        self.reader.give_back(rows)

    def hold(self, who: str | int) -> None:
        """Skip the rows of a sender (`Message.sender`), or the row of an offset, until released."""
        self.reader.held.hold(who)
        self._note_hold(who, 1)

    def release(self, who: str | int) -> None:
        """End `hold`; the skipped rows are read next, in their order."""
        self.reader.release(who)
        self._note_hold(who, 0)

    def row_state(self, row: Row) -> RowState:
        """Return the state of a row that was just read from the file, or is not stored yet."""
        checkpointer = self.checkpointer
        if row.offset in checkpointer.in_flight:
            return RowState.IN_FLIGHT
        if row.offset in checkpointer.busy():
            return RowState.LEAVING
        if row.offset > checkpointer.proposed:
            return RowState.BEING_STORED
        if row.expires_ms <= self._shared.hub_time.now_ms():
            return RowState.EXPIRED
        return RowState.HELD if self.reader.held.holds(row) else RowState.WAITING

    @property
    def state(self) -> QueueState:
        """The state of the queue."""
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
        """Return a snapshot."""
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
            **asdict(self.totals),
        )

    def wake(self) -> None:
        """Notify the watchers of the endpoint that rows can be read."""
        for wake in self._wakes:
            wake(self)

    def rows_committed(self, joined: QueueRows) -> None:
        """Count rows that are in the file now (zones already replaced)."""
        rows, size = joined.rows, joined.bytes
        self.rows_refused(len(rows), size)
        self.registered = True
        self.totals.enqueued_total += len(rows)
        self.totals.enqueued_bytes_total += size
        if self._oldest_ms is None:
            self._oldest_ms = rows[0].enqueued_ms
        self.reader.rows_committed(joined)

    def results_committed(self, results: Results) -> None:
        """Count results that are in the file now (zones already replaced)."""
        self.totals.sent_total += results.count(RowEvent.SENT)
        self.totals.expired_total += results.count(RowEvent.EXPIRED)
        self.totals.dead_lettered_total += results.count(RowEvent.DEAD_LETTERED)
        self.totals.dropped_total += results.count(RowEvent.DROPPED)
        self.reader.forget_evicted(results.offsets)
        self.out_of_turn.left(results.offsets)
        self.checkpointer.commit()

    def lowest_committed(self, lowest: tuple[int, int] | None, committed: int) -> None:
        """Record the lowest row left and the checkpoint that the file has now."""
        self._oldest_ms = lowest[1] if lowest else None
        self.checkpointer.reach(lowest[0] if lowest else None, committed)

    def rows_aged(self, zone: int, off_ms: int, lowest: tuple[int, int] | None) -> None:
        """Move the times of the rows of a zone back (zones already replaced).

        Args:
            zone: The zone.
            off_ms: Milliseconds.
            lowest: Offset and enqueue time of the lowest row of the queue.
        """
        self._oldest_ms = lowest[1] if lowest else None
        for row in (*self.checkpointer.in_flight.values(), *self.reader.rows_ahead()):
            if row.offset // ZONE_OFFSETS == zone:
                row.age(off_ms)

    @property
    def rows_taken(self) -> int:
        """Rows that count for limits: in the file or waiting for their commit, and not left."""
        return self.zones.depth + self.pending_rows - self.checkpointer.unstored

    @property
    def bytes_taken(self) -> int:
        """Sum of their sizes."""
        opened = self.reader.open_rows
        size = self.zones.bytes + self.sealed_bytes - self.checkpointer.unstored_bytes
        return size if opened is None else size + opened.bytes

    @property
    def pending_rows(self) -> int:
        """Rows whose commit is under way or still to come."""
        opened = self.reader.open_rows
        rows = 0 if opened is None else len(opened.rows) - len(opened.withdrawn)
        return self.sealed_rows + rows

    @property
    def stored_rows(self) -> int:
        """Rows in the file that have not left."""
        return self.zones.depth - self.checkpointer.leaving

    @property
    def stored_bytes(self) -> int:
        """Sum of their sizes."""
        return self.zones.bytes - self.checkpointer.leaving_bytes

    def evictable(self, *, with_open: bool) -> tuple[int, int]:
        """Return number and bytes of the rows that could be evicted: none of them is in flight.

        Args:
            with_open: Count rows of the open group, too.
        """
        in_flight = self.checkpointer.in_flight
        rows, size = self.rows_taken, self.bytes_taken
        opened = self.reader.open_rows
        if opened is not None and not with_open:
            rows -= len(opened.rows) - len(opened.withdrawn)
            size -= opened.bytes
        if len(in_flight) <= COUNTED_MAX:
            size -= sum([row.size for row in in_flight.values()])
        elif rows:
            # Called per message while a cap is reached: an estimate will do.
            size -= size * len(in_flight) // rows
        if self.creations:
            staying = self.creations.idle(in_flight)
            rows -= staying[0]
            size -= staying[1]
        return max(0, rows - len(in_flight)), max(0, size)

    def evict(self, records: Sequence[Record], reason: str) -> int:
        """Evict rows with the next transaction; return how many are.

        Args:
            records: Rows that had neither left nor been in flight when they were read.
            reason: For the journal.
        """
        busy = set(self.checkpointer.busy())
        records = [record for record in records if record[0] not in busy]
        if not records:
            return 0
        offsets = [record[0] for record in records]
        results = self.checkpointer.results
        results.leave_unread(offsets, [record[3] for record in records], RowEvent.DROPPED)
        if self._shared.events is not None:
            now_ms = self._shared.hub_time.now_ms()
            results.events.add_records(RowEvent.DROPPED, records, now_ms, reason)
        self.reader.evict(offsets)
        self._changed(self, len(records))
        return len(records)

    def drop(self, row: Row, reason: str) -> None:
        """Count a row that found no room and is never stored."""
        self.totals.enqueued_total += 1
        self.totals.enqueued_bytes_total += row.size
        self.totals.dropped_total += 1
        if self._shared.events is not None:
            key = (self.endpoint_id, self.priority)
            self._shared.events.early(key, [row], RowEvent.DROPPED, EventColumns(), reason)
            self._changed(self, 0)

    def rows_refused(self, rows: int, size: int) -> None:
        """Record that so many rows of a sealed group do not wait for their commit any more."""
        self.sealed_rows -= rows
        self.sealed_bytes -= size

    def withdraw_left(self, joined: QueueRows) -> None:
        """Remove rows that left while a transaction wrote their group, which has failed."""
        left = self.checkpointer.take_early(joined)
        if not left:
            return
        rows = [row for row in joined.rows if row.offset in left]
        events = self.checkpointer.results.events
        events.settle()
        between = events.take(set(left))
        for event in RowEvent.SENT, RowEvent.EXPIRED:
            sizes = [row.size for row in rows if left[row.offset] == event]
            self._count_early(len(sizes), sum(sizes), event)
        if self._shared.events is not None:
            self._shared.events.early((self.endpoint_id, self.priority), rows, None, between)
        was_withdrawn = self._withdraw(self, joined, rows, sum([row.size for row in rows]))
        assert was_withdrawn

    def rows_moved_out(self, rows: int) -> None:
        """Count rows that were moved to another queue (zones already replaced)."""
        self.totals.moved_total += rows
        self.reader.drop_stale()

    def rows_moved_in(self, lowest: int, highest: int) -> None:
        """Record rows that were moved here from another queue (zones already replaced).

        Args:
            lowest: Their lowest offset.
            highest: Their highest offset.
        """
        self.checkpointer.moved_in(highest)
        self.reader.go_back(lowest)
        self.wake()

    def _leave(self, rows: Iterable[Row], event: RowEvent) -> None:
        rows = list(rows)
        self.checkpointer.withdraw(rows)
        self._forget_creations(rows)
        if self.sealed_rows or self.reader.open_rows is not None:
            rows = self._leave_early(rows, event)
        if rows:
            self.checkpointer.leave(rows, event)
            self._record(event, rows)
            self._changed(self, len(rows))

    def _forget_creations(self, rows: Sequence[Row]) -> None:
        if self.creations:
            self.creations.discard([row.offset for row in rows])

    def _leave_early(self, rows: list[Row], event: RowEvent) -> list[Row]:
        """Remove rows that are never written; return those that are, or are being written."""
        leaving = [row.offset for row in rows]
        groups = self.reader.uncommitted_between(min(leaving, default=0), max(leaving, default=0))
        for joined in groups:
            if not joined.rows:
                continue  # removed for good when its rows had been acknowledged
            first, last = joined.rows[0].offset, joined.rows[-1].offset
            early = [row for row in rows if first <= row.offset <= last]
            size = sum([row.size for row in early])
            if not early or not self._withdraw(self, joined, early, size):
                continue
            offsets = {row.offset for row in early}
            results = self.checkpointer.results
            if results.attempts:
                for offset in offsets:
                    results.attempts.pop(offset, None)
            self._count_early(len(early), size, event)
            if self._shared.events is not None:
                between = self.checkpointer.take_events(offsets)
                key = (self.endpoint_id, self.priority)
                self._shared.events.early(key, early, event, between)
            if len(early) == len(rows):
                return []
            rows = [row for row in rows if row.offset not in offsets]
        return rows

    def _count_early(self, rows: int, size: int, event: RowEvent) -> None:
        totals = self.totals
        totals.enqueued_total += rows
        totals.enqueued_bytes_total += size
        if event is RowEvent.SENT:
            totals.sent_total += rows
        else:
            totals.expired_total += rows

    def _record(self, event: RowEvent, rows: Sequence[Row], reason: str | None = None) -> None:
        if self._shared.events is not None:
            now_ms = self._shared.hub_time.now_ms()
            self.checkpointer.record(event, rows, now_ms, reason)

    def _note_hold(self, held: str | int, begins: int) -> None:
        if self._shared.events is not None:
            now_ms = self._shared.hub_time.now_ms()
            key = (self.endpoint_id, self.priority)
            self._shared.events.note(["hold", *key, held, now_ms, begins])
