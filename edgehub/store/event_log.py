"""Events for the journal: collected in memory, stored by the commit of the rows that they describe.

Owns the table `journal` and the numbers of commits. The journal reads the blobs, writes its lines
and then deletes the blobs, together with storing its position. Invariant: a blob is in the file if
and only if its rows are; where too many blobs wait, sums replace single events, so that the figures
stay exact in bounded space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from msgspec import Struct

from edgehub.journal.row_events import EventColumns, RowEvent, pack

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.journal.row_events import Note, QueueEvents
    from edgehub.message import EndpointId, Priority, Row
    from edgehub.store.boots import Boot

NOTES_MAX: Final = 4096
EARLY_MAX: Final = 16_384
"""Rows that are never written whose events wait for a commit one by one, over all queues; beyond it
only sums are kept. They become one blob, which the journal reads at once."""
REFUSED_MAX: Final = 256
"""Pairs of device and reason that are counted separately between two commits."""
SUMS_PERIOD_MS: Final = 60_000
"""At the bound, the commits of this time share one blob."""
READ_BYTES_MAX: Final = 256 * 1024
STATE_NOTES: Final = frozenset({"pump", "delay", "hold"})
COUNTING: Final = frozenset({"refused", "dead_purged"})

ONCE: Final = frozenset({"start", "stop", "tick"})
"""Notes of a moment: events before and after them are not summed up together."""

Depth = tuple[str, int, int, int]
"""endpoint, priority, rows, bytes."""

OffsetRange = tuple[str, int, int, int]
"""Endpoint, priority, first and last offset."""

Early = dict[tuple["EndpointId", "Priority"], tuple[EventColumns, EventColumns]]
"""By queue, for rows that left before their commit: their enqueueing, and their other events."""


class StoredEvents:
    """The events in the file.

    Attributes:
        number: Highest known number of a commit, 0 = there was none.
        bytes: Sum of the blobs.
        state: Stored by the journal with its position, None = nothing yet.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read them."""
        highest, size = connection.execute(
            "SELECT max(number), coalesce(sum(length(events)), 0) FROM journal"
        ).fetchone()
        meta = dict(
            connection.execute("SELECT key, value FROM meta WHERE key LIKE 'journal_%'").fetchall()
        )
        self.number: int = max(highest or 0, meta.get("journal_position", 0))
        self.bytes: int = size
        self.state: bytes | None = meta.get("journal_state")


class EventBatch(Struct, eq=False):
    """What one transaction writes into the table.

    Attributes:
        bytes: Size of the blob once it is written, 0 = there was nothing to write.
    """

    number: int
    hub_ms: int
    wall_ms: int
    trusted: bool
    since_ms: int
    reads: int
    taken: list[Note]
    notes: list[Note]
    early: Early
    queues: list[QueueEvents]
    own: list[Note] = []
    replaces: EventBatch | None = None
    summed: bool = False
    bytes: int = 0

    def dead_letters_left(self, deleted: Iterable[Depth], reason: str) -> None:
        """Record dead letters that this transaction deletes."""
        self.own = [["dead_purged", *each, reason] for each in deleted]

    def clock_trusted(self, ahead_ms: int, notes: list[Note]) -> None:
        """Record that the clock is trusted from this transaction on.

        Args:
            ahead_ms: UTC minus hub time.
            notes: That follow from it.
        """
        self.trusted = True
        self.wall_ms = self.hub_ms + ahead_ms
        self.own = notes

    def write(self, connection: sqlite3.Connection) -> None:
        """Write the blob, on the connection's thread."""
        self.bytes = 0
        notes = self.notes + self.own
        if not notes and not any(columns for _, _, columns in self.queues):
            return
        if self.summed:
            notes = _added_up(notes)
        blob = pack(self.hub_ms, self.wall_ms, notes, self.queues, trusted=self.trusted)
        if any(note[0] == "lost" for note in notes):
            forget_losses(connection)
        if self.replaces is not None:
            connection.execute("DELETE FROM journal WHERE number = ?", (self.replaces.number,))
        connection.execute(
            "INSERT INTO journal (number, events) VALUES (?, ?)", (self.number, blob)
        )
        self.bytes = len(blob)

    def sum_up(self, before: EventBatch | None, states: Sequence[Note]) -> None:
        """Replace single events by sums, those of the blob before included."""
        self.summed = True
        sums: dict[tuple[EndpointId, Priority, EndpointId | None], EventColumns] = {}
        if before is not None:
            self.replaces = before
            self.since_ms = before.since_ms
            self.notes = [*before.notes, *before.own, *self.notes]
            self.queues += before.queues
        for endpoint_id, priority, columns in self.queues:
            assert isinstance(columns, EventColumns)
            columns.shrink()
            key = (endpoint_id, priority, columns.to_endpoint)
            sums.setdefault(key, EventColumns(to_endpoint=columns.to_endpoint)).extend(columns)
        self.queues = [(name, number, columns) for (name, number, _), columns in sums.items()]
        self.notes = _blurred(self.notes, self.hub_ms, states)


class EventLog:
    """Collects events, and counts the blobs in the file.

    Args:
        stored: What the file holds.
        boot: Hub time and its relation to UTC.
        bytes_max: Beyond it blobs contain sums only.
    """

    def __init__(
        self,
        stored: StoredEvents,
        *,
        boot: Boot,
        bytes_max: int,
    ) -> None:
        self._boot = boot
        self.hub_time = boot.hub_time
        self.bytes = stored.bytes
        self.state = stored.state
        self.oldest_ms: int | None = self.hub_time.now_ms() if stored.bytes else None
        """Hub time since which blobs wait, None = there are none."""
        self.urgent = False
        """Events wait for a commit, even if no row does."""
        self.recorded_total = 0
        """Events of rows written one by one since the start."""
        self.grew: Callable[[int], None] = lambda _bytes: None
        """Called with the bytes that blobs have taken in the file."""
        self.bound_bytes = bytes_max
        """Beyond it blobs contain sums only; at most `bytes_max`."""
        self._bytes_max = bytes_max
        self._number = stored.number
        self._notes: list[Note] = []
        self._early: Early = {}
        self._early_rows = 0
        self._refused: dict[tuple[str, str], tuple[int, int]] = {}
        self._states: dict[str, int] = {}
        self._sums: EventBatch | None = None
        self._reads = 0

    def utc_now_ms(self) -> int:
        """Return the best known UTC."""
        return self._boot.utc_ms(self.hub_time.now_ms())

    @property
    def clock_trusted(self) -> bool:
        """Whether UTC is known to be right."""
        return self._boot.trusted

    @property
    def has_refused(self) -> bool:
        """Whether refused messages wait for a commit that records them."""
        return bool(self._refused)

    @property
    def summing(self) -> bool:
        """Whether only sums are kept at the moment."""
        return self.bytes >= self.bound_bytes

    def bound(self, bytes_max: int) -> None:
        """Lower the bytes beyond which blobs contain sums."""
        self.bound_bytes = min(self._bytes_max, bytes_max)

    def note(self, note: Note) -> None:
        """Add a note; the next transaction of any kind stores it."""
        if note[0] == "pump":
            self._states[note[1]] = note[3]
        self._notes.append(note)
        if len(self._notes) > NOTES_MAX:
            now_ms = self.hub_time.now_ms()
            self._notes = _blurred(self._notes, now_ms, self._state_notes(now_ms))

    def refused(self, device: str, size: int, reason: str, count: int = 1) -> None:
        """Count messages that were not stored for any queue."""
        key = (device, reason)
        if key not in self._refused and len(self._refused) >= REFUSED_MAX:
            key = ("", reason)
        before, total = self._refused.get(key, (0, 0))
        self._refused[key] = (before + count, total + size)

    def early(
        self,
        key: tuple[EndpointId, Priority],
        rows: Sequence[Row],
        event: RowEvent | None,
        between: EventColumns,
        reason: str | None = None,
    ) -> None:
        """Record the events of rows that left before their commit and are never written.

        Args:
            key: Their queue.
            rows: The rows.
            event: How they left, None = `between` has it.
            between: Their other events.
            reason: Why they left, for events that have a reason.
        """
        found = self._early.get(key)
        if found is None:
            found = self._early[key] = (EventColumns(), EventColumns())
        joined, left = found
        joined.add_later(RowEvent.ENQUEUED, rows, None)
        if between:
            left.extend(between)
        if event is not None:
            left.record(event, rows, self.hub_time.now_ms(), reason)
        self._early_rows += len(rows)
        if self._early_rows > EARLY_MAX:
            for both in self._early.values():
                for columns in both:
                    columns.shrink()
            self._early_rows = 0
        self.urgent = True

    def begin(self, queues: Sequence[QueueEvents] = ()) -> EventBatch:
        """Return the batch of the next transaction; `committed` or `failed` ends it.

        Args:
            queues: Events of the rows that it writes or deletes.
        """
        self._number += 1
        now_ms = self.hub_time.now_ms()
        notes, self._notes = self._notes, []
        early, self._early, self._early_rows = self._early, {}, 0
        refused, self._refused = self._refused, {}
        notes += [["refused", device, *sums, why] for (device, why), sums in refused.items()]
        batch = EventBatch(
            number=self._number,
            hub_ms=now_ms,
            wall_ms=self._boot.utc_ms(now_ms),
            trusted=self._boot.trusted,
            since_ms=now_ms,
            reads=self._reads,
            taken=notes,
            notes=notes,
            early=early,
            queues=[*queues, *((*key, columns) for key, both in early.items() for columns in both)],
        )
        self.urgent = False
        if self.summing:
            batch.sum_up(self._joinable(batch), self._state_notes(batch.hub_ms))
        return batch

    def committed(self, batch: EventBatch) -> None:
        """Record that the batch is in the file."""
        if not batch.bytes:
            return
        growth = batch.bytes - (batch.replaces.bytes if batch.replaces else 0)
        self.bytes += growth
        if growth > 0:
            self.grew(growth)
        if self.oldest_ms is None:
            self.oldest_ms = batch.hub_ms
        self._sums = batch if batch.summed else None
        self.recorded_total += sum([len(columns) for _, _, columns in batch.queues])

    def failed(self, batch: EventBatch) -> None:
        """Return the notes to a later transaction; the events of rows join with the rows."""
        kept = [note for note in batch.taken if note[0] != "refused"]
        self._notes = kept + self._notes
        for note in batch.taken:
            if note[0] == "refused":
                _, device, count, size, reason = note
                self.refused(device, size, reason, count)
        for key, both in batch.early.items():
            for columns, later in zip(both, self._early.get(key, ()), strict=False):
                columns.extend(later)
            self._early[key] = both
        self._early_rows = sum([len(joined) for joined, _ in self._early.values()])
        self.urgent = bool(self._early or self._notes or self._refused)

    def read(self) -> Callable[[sqlite3.Connection], list[tuple[int, bytes]]]:
        """Return the job that reads the next blobs, which do not change any more."""
        # A transaction that replaces an older blob was submitted before this job.
        self._reads += 1
        return _read_some

    def forget(self, number: int, state: bytes) -> Callable[[sqlite3.Connection], int]:
        """Return the operation that deletes blobs up to `number` and stores the journal's state.

        Its result is the number of bytes deleted, for `forgotten`.
        """

        def operation(connection: sqlite3.Connection) -> int:
            size: int = connection.execute(
                "SELECT coalesce(sum(length(events)), 0) FROM journal WHERE number <= ?", (number,)
            ).fetchone()[0]
            connection.execute("DELETE FROM journal WHERE number <= ?", (number,))
            connection.executemany(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
                [("journal_position", number), ("journal_state", state)],
            )
            return size

        return operation

    def forgotten(self, size: int, state: bytes, written_ms: int) -> None:
        """Record that blobs are deleted; lines are written up to hub time `written_ms`."""
        self.bytes -= size
        self.state = state
        self.oldest_ms = written_ms if self.bytes else None

    def _joinable(self, batch: EventBatch) -> EventBatch | None:
        sums = self._sums
        if sums is None or sums.reads != self._reads:
            return None
        if batch.hub_ms - sums.since_ms >= SUMS_PERIOD_MS:
            return None
        once = any(note[0] in ONCE for note in (*sums.notes, *batch.notes))
        return None if once else sums

    def _state_notes(self, now_ms: int) -> list[Note]:
        return [["pump", endpoint, now_ms, state] for endpoint, state in self._states.items()]


def stored_losses(connection: sqlite3.Connection) -> list[Depth] | None:
    """Read the losses by damage that no commit has reported yet, None = there are none."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'untold_losses'").fetchone()
    return None if row is None else [tuple(entry) for entry in orjson.loads(row[0])]


def store_losses(connection: sqlite3.Connection, lost: Sequence[Depth]) -> None:
    """Store the losses by damage until a commit reports them."""
    connection.execute(
        "INSERT OR REPLACE INTO meta (key, value) VALUES ('untold_losses', ?)",
        (orjson.dumps(lost).decode(),),
    )


def forget_losses(connection: sqlite3.Connection) -> None:
    """Delete the stored losses: the running transaction reports them."""
    connection.execute("DELETE FROM meta WHERE key = 'untold_losses'")


def _read_some(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
    blobs: list[tuple[int, bytes]] = []
    size = 0
    cursor = connection.execute("SELECT number, events FROM journal ORDER BY number")
    for number, events in cursor:
        blobs.append((number, events))
        size += len(events)
        if size >= READ_BYTES_MAX:
            break
    cursor.close()
    return blobs


def _blurred(notes: Sequence[Note], now_ms: int, states: Sequence[Note]) -> list[Note]:
    """Replace the history of pumps and queues by their state now."""
    kept = [note for note in notes if note[0] not in STATE_NOTES and note[0] != "blur"]
    if len(kept) == len(notes):
        return kept
    return [*kept, ["blur", now_ms], *states]


def _added_up(notes: Sequence[Note]) -> list[Note]:
    """Add up the notes that count something."""
    kept: list[Note] = []
    counted: dict[tuple[str, ...], Note] = {}
    for note in notes:
        if note[0] not in COUNTING:
            kept.append(note)
            continue
        *key, rows, size, reason = note
        known = counted.setdefault((*map(str, key), reason), [*key, 0, 0, reason])
        known[-3] += rows
        known[-2] += size
    return [*kept, *counted.values()]
