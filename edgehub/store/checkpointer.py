"""Per queue: rows in flight, results that wait for their commit, and the checkpoint.

A row that exists is unsent, whatever the checkpoint says, so the checkpoint decides nothing here;
it is for operators and other programs. Invariant: a row is in flight at most once, and is not
admitted again after its result.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from edgehub.journal.row_events import EventColumns, RowEvent
from edgehub.message import NEVER_MS
from edgehub.store.dead_letters import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from edgehub.message import Row
    from edgehub.store.encoding import Params
    from edgehub.store.queue_rows import QueueRows

EVENTS_MAX: Final = 65_536
"""Events of one queue that wait for their commit one by one; beyond it only sums are kept, but of
rows that leave and are not in the file yet."""

_numbers = partial(array, "q")


class Results(Struct, eq=False):
    """Rows that leave with the next transaction: 17 bytes each, and the contents of dead letters.

    Attributes:
        events: Of them, for the journal, and of rows that were refused for now.
    """

    bytes: int = 0
    offsets: array[int] = field(default_factory=_numbers)
    sizes: array[int] = field(default_factory=_numbers)
    kinds: bytearray = field(default_factory=bytearray)
    dead_letters: dict[int, Params] = {}
    attempts: dict[int, int] = {}
    events: EventColumns = field(default_factory=EventColumns)

    def __len__(self) -> int:
        return len(self.offsets)

    def __bool__(self) -> bool:
        return bool(self.offsets or self.attempts or self.events)

    def leave(self, rows: Sequence[Row], event: RowEvent) -> None:
        """Record that `rows` leave by an event."""
        self.leave_unread([row.offset for row in rows], [row.size for row in rows], event)
        if self.attempts:
            for row in rows:
                self.attempts.pop(row.offset, None)

    def leave_unread(self, offsets: Sequence[int], sizes: Sequence[int], event: int) -> None:
        """Record that rows leave that were not read."""
        self.offsets.extend(offsets)
        self.sizes.extend(sizes)
        self.bytes += sum(sizes)
        self.kinds.extend(bytes((event,)) * len(offsets))

    def count(self, event: RowEvent) -> int:
        """Count the rows that leave by an event."""
        return self.kinds.count(event)

    def split(self, offset: int, refused: set[int]) -> tuple[Results, Results]:
        """Split into the results of rows up to `offset` and the others, without those `refused`."""
        parts = (Results(), Results())
        for half, events in zip(parts, self.events.part(offset, refused), strict=True):
            half.events = events
        for row_offset, size, event in zip(self.offsets, self.sizes, self.kinds, strict=True):
            if row_offset not in refused:
                parts[row_offset > offset].leave_unread((row_offset,), (size,), event)
        for row_offset, attempts in self.attempts.items():
            if row_offset not in refused:
                parts[row_offset > offset].attempts[row_offset] = attempts
        for row_offset, letter in self.dead_letters.items():
            if row_offset not in refused:
                parts[row_offset > offset].dead_letters[row_offset] = letter
        return parts

    def take(self, first: int, last: int) -> dict[int, int]:
        """Remove the rows from `first` to `last` that are no dead letters.

        Returns:
            How they left, by offset.
        """
        letters = self.dead_letters
        left = {
            offset: event
            for offset, event in zip(self.offsets, self.kinds, strict=True)
            if first <= offset <= last and offset not in letters
        }
        if left:
            rows = list(zip(self.offsets, self.sizes, self.kinds, strict=True))
            self.bytes, self.offsets, self.sizes, self.kinds = (
                0,
                _numbers(),
                _numbers(),
                bytearray(),
            )
            for offset, size, event in rows:
                if offset not in left:
                    self.leave_unread((offset,), (size,), event)
        return left

    def append(self, later: Results) -> None:
        """Append later results."""
        self.offsets.extend(later.offsets)
        self.sizes.extend(later.sizes)
        self.bytes += later.bytes
        self.kinds.extend(later.kinds)
        self.dead_letters |= later.dead_letters
        if self.attempts:
            removed = set(later.offsets)
            self.attempts = {
                offset: count for offset, count in self.attempts.items() if offset not in removed
            }
        self.attempts |= later.attempts
        self.events.extend(later.events)


class Checkpointer:
    """Admits rows to be sent and commits what became of them."""

    __slots__ = (
        "_committing",
        "_early_bytes",
        "_early_rows",
        "_events_max",
        "_retried",
        "checkpoint",
        "in_flight",
        "proposed",
        "refused",
        "results",
    )

    def __init__(self, *, checkpoint: int, proposed: int) -> None:
        self.checkpoint = checkpoint
        self.proposed = proposed
        self.in_flight: dict[int, Row] = {}
        self.results = Results()
        """Those that wait for the next transaction."""
        self._committing = Results()
        self._early_rows = self._early_bytes = 0
        """Of `results`, those of rows whose own commit is still to come."""
        self._events_max = EVENTS_MAX
        self._retried: set[int] = set()
        """Rows that were refused for now before their commit: `results` has events of them."""
        self.refused: set[int] = set()
        """Rows read before their commit that will never be in the file: they count nowhere."""

    def propose(self, offset: int) -> None:
        """Record the highest committed offset of the queue."""
        assert offset > self.proposed, (offset, self.proposed)
        self.proposed = offset
        if self._early_rows:
            self._count_early()

    def moved_in(self, offset: int) -> None:
        """Record the highest offset of rows that were moved here from another queue."""
        self.proposed = max(self.proposed, offset)

    def admit(self, rows: list[Row]) -> list[Row]:
        """Mark rows as in flight; return those that were not before."""
        in_flight = self.in_flight
        if in_flight:
            rows = [row for row in rows if row.offset not in in_flight]
        for row in rows:
            in_flight[row.offset] = row
        return rows

    def withdraw(self, rows: Iterable[Row]) -> None:
        """Mark rows as not in flight any more; each of them must be in flight."""
        in_flight = self.in_flight
        for row in rows:
            del in_flight[row.offset]

    def count_unstored(self, rows: Iterable[Row]) -> None:
        """Add the refused sends that are not in the file yet to rows read from it."""
        for results in (self._committing, self.results):
            if results.attempts:
                for row in rows:
                    row.attempts = results.attempts.get(row.offset, row.attempts)

    def leave(self, rows: Sequence[Row], event: RowEvent) -> None:
        """Record that rows leave by an event; they are not in flight any more."""
        self.results.leave(rows, event)
        for row in rows:
            if row.offset > self.proposed:
                self._early_rows += 1
                self._early_bytes += row.size

    @property
    def unstored(self) -> int:
        """Rows that have left, whose deletion is still to be committed."""
        return len(self.results) + len(self._committing)

    @property
    def unstored_bytes(self) -> int:
        """Sum of their sizes."""
        return self.results.bytes + self._committing.bytes

    @property
    def leaving(self) -> int:
        """Rows in the file that have left."""
        return self.unstored - self._early_rows

    @property
    def leaving_bytes(self) -> int:
        """Sum of their sizes."""
        return self.unstored_bytes - self._early_bytes

    @property
    def stored_in_flight(self) -> int:
        """Rows in flight that are in the file."""
        return sum([offset <= self.proposed for offset in self.in_flight])

    @property
    def unstored_dead_letter_bytes(self) -> int:
        """Sum of the sizes of the dead letters that are not in the file yet."""
        letters = (self._committing.dead_letters, self.results.dead_letters)
        return sum([bytes_of(list(each.values())) for each in letters if each])

    def is_due(self) -> bool:
        """Return whether results wait that can be stored: of rows that are in the file."""
        results = self.results
        return min(chain(results.offsets, results.attempts), default=NEVER_MS) <= self.proposed

    def busy(self, *, attempted: bool = False) -> list[int]:
        """Return the offsets that clean-up may not touch: in flight, or left and not committed.

        `attempted` adds those whose refused sends are not in the file yet.
        """
        offsets = [*self.in_flight, *self.results.offsets, *self._committing.offsets]
        if attempted:
            offsets += [*self.results.attempts, *self._committing.attempts]
        return offsets

    def take(self) -> Results:
        """Return the results for one transaction; `commit` or `roll_back` ends it.

        Results of rows whose own commit is still to come are left for the next one.
        """
        assert not self._committing
        self._events_max = EVENTS_MAX
        if self._retried:
            self._retried = {offset for offset in self._retried if offset > self.proposed}
        results = self.results
        # Events may be of rows beyond those that leave.
        highest = max(chain(results.offsets, results.attempts, results.events.offsets), default=-1)
        if highest <= self.proposed and not self.refused:
            self._committing = results
            self.results = Results()
        else:
            self._committing, self.results = results.split(self.proposed, self.refused)
            self._count_early()
            if self.refused:
                self.refused.intersection_update(self.in_flight)
        return self._committing

    def commit(self) -> None:
        """Record that the results taken are in the file."""
        self._committing = Results()

    def reach(self, lowest_offset: int | None, committed: int) -> None:
        """Set the checkpoint by the lowest row left, None = there is none."""
        self.checkpoint = committed if lowest_offset is None else lowest_offset - 1

    def refuse(self, offset: int) -> None:
        """Record that a row read before its commit will never be in the file."""
        self.refused.add(offset)

    def take_early(self, joined: QueueRows) -> dict[int, int]:
        """Remove the results of rows that are not committed yet, but those of dead letters.

        Returns:
            How they left, by offset.
        """
        if not self._early_rows:
            return {}
        first, last = joined.rows[0].offset, joined.rows[-1].offset
        left = self.results.take(first, last)
        self._count_early()
        return left

    def _count_early(self) -> None:
        results, proposed = self.results, self.proposed
        sizes = [
            size
            for offset, size in zip(results.offsets, results.sizes, strict=True)
            if offset > proposed
        ]
        self._early_rows, self._early_bytes = len(sizes), sum(sizes)

    def record(self, event: RowEvent, rows: Sequence[Row], at_ms: int, reason: str | None) -> None:
        """Record an event of some rows for the journal."""
        events = self.results.events
        events.record(event, rows, at_ms, reason)
        if event is RowEvent.RETRIED:
            self._retried.update([row.offset for row in rows if row.offset > self.proposed])
        if len(events) > self._events_max:
            if self.refused:
                events.settle()
                events.take(self.refused)
            events.shrink(self.proposed)
            self._retried.clear()
            # What stays is looked at again once there is twice as much.
            self._events_max = max(EVENTS_MAX, 2 * len(events))

    def take_events(self, offsets: set[int]) -> EventColumns:
        """Remove and return the events of rows that leave before their commit."""
        if self._retried.isdisjoint(offsets):
            return EventColumns()
        return self.results.events.take(offsets)

    def roll_back(self) -> None:
        """Return the results taken, so that they join the next transaction."""
        taken, self._committing = self._committing, Results()
        taken.append(self.results)
        self.results = taken
