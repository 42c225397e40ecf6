"""A queue in memory with the interface of the store's queue, for tests of the pump alone."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from edgehub.message import NEVER_MS, EndpointId, Message, Row, queue_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.message import FailureKind, Priority

_OVERHEAD_BYTES = 64


class MemoryCounts:
    """Counts of closes in memory; see `CloseCounts`."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int, bool]] = {}

    def get(self, offset: int) -> tuple[int, int, bool]:
        """See `CloseCounts`."""
        return self._counts.get(offset, (0, 0, False))

    def note(self, offset: int, counts: tuple[int, int, bool]) -> None:
        """See `CloseCounts`."""
        self._counts[offset] = counts

    def forget(self, offset: int) -> None:
        """See `CloseCounts`."""
        self._counts.pop(offset, None)


class NoCreations:
    """Knows of no creation, so no row waits for one; see `DependencyTracker`."""

    is_busy = False

    def must_wait(self, _endpoint_id: EndpointId, _predecessor: int) -> bool:
        """See `DependencyTracker`."""
        return False

    def next_of(self, _predecessor: int) -> None:
        """See `DependencyTracker`."""

    def confirmed(self, _row: Row) -> Sequence[int]:
        """See `DependencyTracker`."""
        return ()

    def dead(self, _row: Row, _reason: str) -> None:
        """See `DependencyTracker`."""

    def watch(self, _changed: Callable[[EndpointId], None]) -> None:
        """See `DependencyTracker`."""

    def unwatch(self, _changed: Callable[[EndpointId], None]) -> None:
        """See `DependencyTracker`."""


class MemoryQueue:
    """Rows sorted by offset; keeps a record of what became of each."""

    def __init__(self, endpoint_id: str, priority: Priority) -> None:
        self.endpoint_id = EndpointId(endpoint_id)
        self.priority = priority
        self.id = queue_id(self.endpoint_id, priority)
        self.rows: list[Row] = []
        self.in_flight: dict[int, Row] = {}
        self.confirmed: list[int] = []
        self.expired: list[int] = []
        self.dead: list[tuple[int, FailureKind, str]] = []
        self.refused: list[tuple[int, str]] = []
        self.wake: Callable[[MemoryQueue], None] = lambda _queue: None
        self._held: set[str | int] = set()
        self._taken: set[int] = set()

    def put(self, *rows: Row) -> None:
        """Append rows and tell the pump, as a commit does."""
        for row in rows:
            insort(self.rows, row, key=lambda row: row.offset)
        self.wake(self)

    @property
    def out_of_turn(self) -> MemoryQueue:
        """See `PumpQueue`."""
        return self

    def creates(self, offset: int) -> bool:
        """See `OutOfTurn`."""
        here = [*self.rows, *self.in_flight.values()]
        return any(row.offset == offset and row.creation for row in here)

    def is_in_flight(self, offset: int) -> bool:
        """See `OutOfTurn`."""
        return offset in self.in_flight

    async def take(self, offsets: Sequence[int], bytes_max: int) -> list[Row]:
        """See `OutOfTurn`."""
        self._taken.update(offsets)
        taken: list[Row] = []
        for row in [row for row in self.rows if row.offset in set(offsets)]:
            if taken and row.size > bytes_max:
                break
            bytes_max -= row.size
            taken.append(row)
            self.rows.remove(row)
            self.in_flight[row.offset] = row
        return taken

    def leave(self, offset: int) -> None:
        """See `OutOfTurn`."""
        self._taken.discard(offset)

    @property
    def waiting(self) -> list[int]:
        """Return the offsets that are neither in flight nor gone."""
        return [row.offset for row in self.rows]

    @property
    def held_senders(self) -> frozenset[str]:
        """Give the senders that are kept back."""
        return frozenset(who for who in self._held if isinstance(who, str))

    def has_ready(self) -> bool:
        """See `PumpQueue`."""
        return any(self._is_ready(row) for row in self.rows)

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """See `PumpQueue`."""
        batch: list[Row] = []
        size = 0
        for row in self.rows:
            if len(batch) == rows_max or (batch and size + row.size > bytes_max):
                break
            if self._is_ready(row):
                batch.append(row)
                size += row.size
        taken = {row.offset for row in batch}
        self.rows = [row for row in self.rows if row.offset not in taken]
        self.in_flight.update((row.offset, row) for row in batch)
        return batch

    def confirm(self, rows: Sequence[Row]) -> None:
        """See `PumpQueue`."""
        for row in rows:
            self._land(row)
            self.confirmed.append(row.offset)

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """See `PumpQueue`."""
        for row in rows:
            self._land(row)
            row.attempts += attempted
            if refusal is not None:
                self.refused.append((row.offset, refusal))
            insort(self.rows, row, key=lambda row: row.offset)

    def expire(self, rows: Sequence[Row]) -> None:
        """See `PumpQueue`."""
        for row in rows:
            self._land(row)
            self.expired.append(row.offset)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """See `PumpQueue`."""
        self._land(row)
        self.dead.append((row.offset, kind, reason))

    def hold(self, who: str | int) -> None:
        """See `PumpQueue`."""
        assert who not in self._held
        self._held.add(who)

    def release(self, who: str | int) -> None:
        """See `PumpQueue`."""
        self._held.remove(who)

    def _land(self, row: Row) -> None:
        assert self.in_flight.pop(row.offset) is row

    def _is_ready(self, row: Row) -> bool:
        if row.offset in self._held or row.offset in self._taken:
            return False
        return row.message.sender not in self._held


def a_row(
    offset: int,
    *,
    device: str = "dev-1",
    module: str | None = None,
    body: bytes = b"x" * 200,
    properties: dict[str, str | None] | None = None,
    enqueued_ms: int = 0,
    expires_ms: int = NEVER_MS,
) -> Row:
    """Build a row; its offset is also its message id."""
    message = Message(
        device, module, "/messages/", properties or {}, {}, body, message_id=f"m{offset}"
    )
    return Row(offset, message, enqueued_ms, expires_ms, ("route",), len(body) + _OVERHEAD_BYTES)
