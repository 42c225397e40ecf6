"""The creations that rows depend on, as one more queue of the pump: a `PumpQueue`.

Owns which senders wait for which creation, and the creations that are read ahead of their place,
from whatever queue they are stored in. One level of dependencies is ready at a time: a creation
that itself depends on an unconfirmed one is not. Invariants: a row that depends on an unconfirmed
creation is held back with all later rows of its sender in its queue; a creation taken here is
confirmed, given back or dead-lettered in the queue that stores it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from edgehub.message import DEFAULT_PRIORITY, QueueId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from edgehub.message import EndpointId, FailureKind, Priority, Row
    from edgehub.pump.dependency_tracker import DependencyTracker
    from edgehub.pump.order import Holds
    from edgehub.pump.pumped_queue import PumpedQueue
    from edgehub.pump.queue import OutOfTurn, PumpQueue

    Key = tuple[PumpedQueue, str]


class Dependencies:
    """The dependencies of the rows of one endpoint.

    Args:
        endpoint_id: The endpoint.
        dependency_tracker: Knows which creations are confirmed.
        holds: Holds senders back.
        queues: Returns the endpoint's queues.
        wake: Wakes the pump.
    """

    def __init__(
        self,
        endpoint_id: EndpointId,
        dependency_tracker: DependencyTracker,
        holds: Holds,
        *,
        queues: Callable[[], Sequence[PumpQueue]],
        wake: Callable[[], None],
    ) -> None:
        self.id = QueueId(f"{endpoint_id} dependencies")
        self.endpoint_id = endpoint_id
        self._dependency_tracker = dependency_tracker
        self._holds = holds
        self._queues = queues
        self._wake = wake
        self._waits: dict[int, dict[Key, None]] = {}
        self._keys: dict[Key, int] = {}
        self._priorities: dict[Priority, int] = {}
        self._taken: dict[int, PumpQueue] = {}
        self._wanted: set[int] = set()
        self._after: dict[int, list[int]] = {}
        self._ready: dict[int, None] = {}
        self._elsewhere: set[int] = set()
        self._in_flight: dict[int, PumpQueue] = {}
        self._held: dict[str | int, list[int]] = {}
        """Rows that were given back, by the sender or row that is held back."""
        self._stale = False
        dependency_tracker.watch(self._changed)

    def hold_back(self, pumped: PumpedQueue, row: Row) -> bool:
        """Hold a row's sender if its predecessor is not confirmed; return whether it is held.

        The caller returns the row to its queue.
        """
        predecessor = row.predecessor
        if predecessor is None or not self._must_wait(predecessor):
            return False
        key = pumped, row.message.sender
        if key in self._keys:
            self._end(key)
        self._keys[key] = predecessor
        self._waits.setdefault(predecessor, {})[key] = None
        priority = pumped.queue.priority
        self._priorities[priority] = self._priorities.get(priority, 0) + 1
        self._holds.wait(*key)
        self._want(predecessor)
        return True

    @property
    def out_of_turn(self) -> OutOfTurn:
        """Not used: no row is taken from here by its offset."""
        raise AssertionError(self.id)

    @property
    def expects_any(self) -> bool:
        """Whether any creation of any endpoint is unconfirmed."""
        return self._dependency_tracker.is_busy

    def delivered(self, rows: Iterable[Row]) -> None:
        """Record creations that were confirmed, from whatever queue they were sent."""
        for row in rows:
            for predecessor in {
                row.offset: None,
                **dict.fromkeys(self._dependency_tracker.confirmed(row)),
            }:
                self._resolve(predecessor)

    def creation_failed(self, row: Row, reason: str) -> None:
        """Record a creation that became a dead letter; rows that depend on it go on waiting."""
        self._dependency_tracker.dead(row, reason)
        self._stale = True

    def begin_turn(self) -> None:
        """Apply what has changed since the last turn."""
        if self._stale:
            self._stale = False
            self._rebuild()
        for offset in list(self._elsewhere):
            queue = self._queue_of(offset)
            if queue is None or not queue.out_of_turn.is_in_flight(offset):
                self._elsewhere.discard(offset)
                if queue is not None and offset in self._wanted:
                    self._ready[offset] = None

    def close(self) -> None:
        """Return everything to the queues."""
        self._dependency_tracker.unwatch(self._changed)
        for key in list(self._keys):
            self._end(key)
        for offset, queue in self._taken.items():
            queue.out_of_turn.leave(offset)
        self._taken.clear()
        self._wanted.clear()
        self._ready.clear()

    @property
    def priority(self) -> Priority:
        """The best priority of the rows that wait."""
        return min(self._priorities, default=DEFAULT_PRIORITY)

    def has_ready(self) -> bool:
        """Return whether some row is neither in flight nor held."""
        return bool(self._ready)

    async def read_batch(self, rows_max: int, bytes_max: int) -> list[Row]:
        """Read the oldest ready rows of one level of dependencies."""
        by_queue: dict[QueueId, tuple[PumpQueue, list[int]]] = {}
        for offset in list(self._ready)[:rows_max]:
            queue = self._queue_of(offset)
            if queue is None:
                # Purged or moved by an operator; the tracker is notified of that.
                del self._ready[offset]
                self._wanted.discard(offset)
            elif queue.out_of_turn.is_in_flight(offset):
                del self._ready[offset]
                self._elsewhere.add(offset)
            else:
                by_queue.setdefault(queue.id, (queue, []))[1].append(offset)
        rows: list[Row] = []
        left = bytes_max
        for queue, offsets in by_queue.values():
            if rows and left <= 0:
                break
            for offset in offsets:
                self._taken[offset] = queue
            taken = await queue.out_of_turn.take(offsets, max(1, left))
            for row in taken:
                self._ready.pop(row.offset, None)
                self._in_flight[row.offset] = queue
                left -= row.size
            rows += taken
        return rows

    def confirm(self, rows: Sequence[Row]) -> None:
        """Remove rows that were delivered."""
        for queue, own in self._by_queue(rows):
            queue.confirm(own)

    def give_back(
        self, rows: Sequence[Row], *, attempted: bool, refusal: str | None = None
    ) -> None:
        """Return rows, which stay taken: the next try starts from here too."""
        for queue, own in self._by_queue(rows, keep=True):
            queue.give_back(own, attempted=attempted, refusal=refusal)
            for row in own:
                held = self._held.get(row.message.sender, self._held.get(row.offset))
                if held is not None:
                    held.append(row.offset)
                elif row.offset in self._wanted:
                    self._ready[row.offset] = None

    def expire(self, rows: Sequence[Row]) -> None:
        """Remove rows in flight whose time to live has ended."""
        for queue, own in self._by_queue(rows):
            queue.expire(own)

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Make a row in flight a dead letter."""
        for queue, _ in self._by_queue([row]):
            queue.dead_letter(row, kind, reason)

    def hold(self, who: str | int) -> None:
        """Hold the rows of a sender back, or the one row of an offset, until released."""
        self._held.setdefault(who, [])

    def release(self, who: str | int) -> None:
        """End `hold`."""
        for offset in self._held.pop(who, ()):
            if offset in self._wanted:
                self._ready[offset] = None

    def _changed(self, endpoint_id: EndpointId) -> None:
        if endpoint_id == self.endpoint_id and not self._stale:
            self._stale = True
            self._wake()

    def _must_wait(self, predecessor: int) -> bool:
        return self._dependency_tracker.must_wait(self.endpoint_id, predecessor)

    def _want(self, predecessor: int) -> None:
        """Schedule the creation for a predecessor, those that it depends on first."""
        creation = self._dependency_tracker.next_of(predecessor)
        while creation is not None and creation.offset not in self._wanted:
            self._wanted.add(creation.offset)
            needs = creation.needs
            if needs is None or not self._must_wait(needs):
                if creation.offset not in self._in_flight:
                    self._ready[creation.offset] = None
                return
            above = self._dependency_tracker.next_of(needs)
            if above is not None:
                self._after.setdefault(above.offset, []).append(creation.offset)
            creation = above

    def _resolve(self, predecessor: int) -> None:
        for key in list(self._waits.get(predecessor, ())):
            self._end(key)
        self._wanted.discard(predecessor)
        self._ready.pop(predecessor, None)
        self._elsewhere.discard(predecessor)
        for offset in self._after.pop(predecessor, ()):
            if offset in self._wanted:
                self._wanted.discard(offset)
                self._want(offset)

    def _end(self, key: Key) -> None:
        predecessor = self._keys.pop(key)
        waiting = self._waits[predecessor]
        del waiting[key]
        if not waiting:
            del self._waits[predecessor]
        priority = key[0].queue.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        self._holds.end_wait(*key)

    def _rebuild(self) -> None:
        """Schedule again from the rows that wait: creations are confirmed, or were replaced."""
        for offset, queue in list(self._taken.items()):
            if offset not in self._in_flight and not queue.out_of_turn.creates(offset):
                queue.out_of_turn.leave(offset)
                del self._taken[offset]
        self._wanted.clear()
        self._after.clear()
        self._ready.clear()
        for predecessor in list(self._waits):
            if self._must_wait(predecessor):
                self._want(predecessor)
            else:
                self._resolve(predecessor)
        for offset in chain.from_iterable(self._held.values()):
            self._ready.pop(offset, None)

    def _queue_of(self, offset: int) -> PumpQueue | None:
        known = self._taken.get(offset)
        if known is not None and known.out_of_turn.creates(offset):
            return known
        return next((queue for queue in self._queues() if queue.out_of_turn.creates(offset)), None)

    def _by_queue(
        self, rows: Sequence[Row], *, keep: bool = False
    ) -> list[tuple[PumpQueue, list[Row]]]:
        by_queue: dict[QueueId, tuple[PumpQueue, list[Row]]] = {}
        for row in rows:
            queue = self._in_flight.pop(row.offset)
            if not keep:
                self._taken.pop(row.offset, None)
            by_queue.setdefault(queue.id, (queue, []))[1].append(row)
        return list(by_queue.values())
