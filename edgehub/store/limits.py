"""Limits of rows, bytes and disk: whether a message may join, and what is evicted for it.

Owns the counts of what is taken, open groups included, and the caps that are reached, for
operators. Far from all caps a message costs two subtractions and two comparisons: the room up to
the nearest cap is computed in advance. Invariant: rows in flight and rows that create entities
count, and are never evicted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct

from edgehub.message import DEFAULT_PRIORITY, NEVER_MS
from edgehub.store.caps import Cap, Overflow
from edgehub.store.statistics import LimitStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgehub.clock import Clock
    from edgehub.message import QueueId
    from edgehub.store.caps import Caps
    from edgehub.store.event_log import EventLog
    from edgehub.store.group import Group
    from edgehub.store.queue import Queue
    from edgehub.store.queues import Queues

log = structlog.get_logger(__name__)

QUIET_S: Final = 60.0
"""A cap counts as reached until nothing has been refused or evicted for so long."""
LOG_PERIOD_S: Final = 300.0
SMALL_FLOOR_SHARE: Final = 10
"""On a small volume at most this fraction of it is kept free."""
GROWTH_SHARE: Final = 4
"""The fraction of the space above the floor that rows may take until it is measured again: large
rows leave half of their pages empty, and the log, the journal's files and others take space too."""
EVENTS_SHARE: Final = 4
"""The fraction of the hub's bytes that single events may take while the journal does not write."""
OVERDRAFT_ROWS: Final = 1000
OVERDRAFT_BYTES: Final = 2**20
"""Beyond a cap by so much, no more messages are requested that cannot be refused."""
OVERDRAFTS_OPEN: Final = 4
"""Times that, until the next commit, where others are evicted for it."""


class Space(Struct, frozen=True):
    """The volume at one moment.

    Attributes:
        total: Its size in bytes.
        free: Bytes that the hub may still take.
        spare: Bytes of free pages inside the database file.
    """

    total: int
    free: int
    spare: int


class Excess(Struct, frozen=True):
    """Rows and bytes that must be evicted, and the cap that they exceed."""

    rows: int
    bytes: int
    cap: Cap

    @property
    def is_any(self) -> bool:
        """Return whether there is too much."""
        return bool(self.rows or self.bytes)


class LimitDecision(StrEnum):
    """What is done with a message, or with one of its copies."""

    JOINS = "joins"
    DROPPED = "dropped"
    REFUSED = "refused"


class _Reached(Struct):
    since_s: float
    last_s: float
    logged_s: float
    refused: int = 0
    dropped: int = 0


class Limits:
    """The limits of one store.

    Args:
        caps: In force from the start.
        queues: Are counted.
        clock: Monotonic time.
        events: Its blobs count into the hub's bytes, None = there is no journal.
        seal: Seals the open group, so that its rows can be evicted for those of the next one.
        clean_up_soon: Called when a cap is reached, to remove expired rows.

    Attributes:
        rows_left: Rows that may join without a check.
        bytes_left: Bytes that may join without a check.
        makes_room: Rows have joined that others must be evicted for.
        best_newcomer: The best priority of those; better rows are not evicted.
        last_cap: The cap of the last refusal or drop.
    """

    def __init__(
        self,
        caps: Caps,
        queues: Queues,
        *,
        clock: Clock,
        events: EventLog | None,
        seal: Callable[[], None],
        clean_up_soon: Callable[[], None],
    ) -> None:
        self.caps = caps
        self.rows_left = self.bytes_left = 0
        self.makes_room = False
        self.best_newcomer: int = DEFAULT_PRIORITY
        self.last_cap = Cap.HUB_BYTES
        self._clock = clock
        self._events = events
        self._seal = seal
        self._clean_up_soon = clean_up_soon
        self._queues = queues
        self._other_tables: list[Callable[[], int]] = []
        self._space: Space | None = None
        self._seen = (0, 0)
        """Rows and bytes that were taken when the room was computed last."""
        self._disk_bytes = self._measure_after = NEVER_MS
        self._written = 0
        self._reached: dict[tuple[Cap, QueueId | None], _Reached] = {}
        if events is not None:
            events.grew = self.taken_by_other_tables
            self._bound_events(events)

    def count_other_tables(self, size: Callable[[], int]) -> None:
        """Count the bytes of another table of the file into those of the hub."""
        self._other_tables.append(size)

    def change(self, caps: Caps) -> None:
        """Set other caps; what is stored above them stays until something joins."""
        self.caps = caps
        self.set_space(self._space)

    def set_space(self, space: Space | None) -> None:
        """Record the space of the volume; None = it does not matter."""
        self._space = space
        self._disk_bytes = self._measure_after = NEVER_MS
        caps = self.caps
        if self._events is not None:
            self._bound_events(self._events)
        if space is not None and (caps.free_bytes_min or caps.free_percent):
            floor = min(caps.free_bytes_min, space.total // SMALL_FLOOR_SHARE)
            floor = max(floor, space.total * caps.free_percent // 100)
            growth = (max(0, space.free - floor) + space.spare) // GROWTH_SHARE
            # Rows that wait for their commit have no space in the file yet.
            self._disk_bytes = self._stored()[1] + growth + self._unstored_dead_letters()
            self._measure_after = growth // 2
        self._written = 0
        self.recount()

    def committed(self, size: int) -> bool:
        """Count bytes of rows that were written; return whether to measure the volume."""
        self._written += size
        return self._written > self._measure_after

    def taken_by_other_tables(self, size: int) -> None:
        """Count bytes that something other than messages has taken of the computed room."""
        self.bytes_left = max(0, self.bytes_left - size)

    def other_tables_grew(self, size: int) -> None:
        """Count bytes of rows that are dead letters in the file now; no rows may join for them."""
        if self._disk_bytes < NEVER_MS:
            self._disk_bytes -= size
            self.recount()

    def _unstored_dead_letters(self) -> int:
        return sum([queue.checkpointer.unstored_dead_letter_bytes for queue in self._queues.all()])

    def recount(self) -> None:
        """Check the next message: something other than messages has taken room."""
        self.rows_left = self.bytes_left = 0

    def is_overdrawn(self) -> bool:
        """Return whether rows beyond the hub's caps have used up what they may take.

        Messages that cannot be refused join at a cap too; then their source must be stopped.
        """
        if self.rows_left > 0 and self.bytes_left > 0:
            return False
        beyond = self._beyond(*self._taken(), stored=False)
        if beyond <= 1 or self.caps.overflow in {Overflow.REJECT_NEW, Overflow.DROP_NEWEST}:
            return beyond > 1
        # Rows of the open group are evicted for those of the next one.
        return beyond > OVERDRAFTS_OPEN or self._beyond(*self._stored(), stored=True) > 1

    def _beyond(self, rows: int, size: int, *, stored: bool) -> float:
        """Return by how many overdrafts the most exceeded cap is exceeded."""
        caps = self.caps
        most = _overdrafts(rows, size, caps.rows, self._bytes_cap()[1])
        if caps.queue_rows or caps.queue_bytes:
            for queue in self._queues.all():
                rows, size = queue.rows_taken, queue.bytes_taken
                if stored:
                    rows, size = queue.stored_rows, queue.stored_bytes
                most = max(most, _overdrafts(rows, size, caps.queue_rows, caps.queue_bytes))
        return most

    def decide(
        self,
        queues: Sequence[Queue],
        size: int,
        *,
        creation: bool = False,
        overdraw: bool = False,
    ) -> list[LimitDecision]:
        """Return what is done with the copies of a message, once the computed room is used up.

        Args:
            queues: Where they go.
            size: Bytes of each copy.
            creation: One of them creates an entity: it is refused rather than dropped, as the data
                of that entity waits for it.
            overdraw: They join in any case.
        """
        count = len(queues)
        self._compute_room()
        if self.rows_left >= count and self.bytes_left >= count * size:
            self._spend(count, count * size)
            return [LimitDecision.JOINS] * count
        full = {
            queue.number: caps[0]
            for queue in queues
            if (caps := self.caps.exceeded_by(queue.rows_taken + 1, queue.bytes_taken + size))
        }
        overflow = self.caps.overflow
        if overflow is Overflow.DROP_NEWEST and not (creation or overdraw):
            return self._drop(queues, size, full)
        hub = self._full_hub(count, size)
        if full or hub is not None:
            self._clean_up_soon()
            rejects = overflow in {Overflow.REJECT_NEW, Overflow.DROP_NEWEST}
            if overdraw:
                self.makes_room = self.makes_room or not rejects
            elif rejects or not self._can_make_room(queues, size):
                for queue in queues:
                    if queue.number in full:
                        self._note(full[queue.number], queue).refused += 1
                if hub is not None:
                    self._note(hub, None).refused += 1
                return [LimitDecision.REFUSED] * count
            else:
                self.makes_room = True
            best = min([queue.priority for queue in queues])
            self.best_newcomer = min(self.best_newcomer, best)
        self._spend(count, count * size)
        return [LimitDecision.JOINS] * count

    def _spend(self, rows: int, size: int) -> None:
        self.rows_left = max(0, self.rows_left - rows)
        self.bytes_left = max(0, self.bytes_left - size)

    def _compute_room(self) -> None:
        caps = self.caps
        rows, size = self._seen = self._taken()
        rows_left = caps.rows - rows if caps.rows else NEVER_MS
        bytes_left = self._bytes_cap()[1] - size
        if caps.queue_rows or caps.queue_bytes:
            queues = self._queues.all()
            if caps.queue_rows:
                most = max([queue.rows_taken for queue in queues], default=0)
                rows_left = min(rows_left, caps.queue_rows - most)
            if caps.queue_bytes:
                most = max([queue.bytes_taken for queue in queues], default=0)
                bytes_left = min(bytes_left, caps.queue_bytes - most)
        self.rows_left, self.bytes_left = max(0, rows_left), max(0, bytes_left)

    def _taken(self) -> tuple[int, int]:
        queues = self._queues.all()
        size = sum([queue.bytes_taken for queue in queues]) + self._other_bytes()
        return sum([queue.rows_taken for queue in queues]), size

    def _stored(self) -> tuple[int, int]:
        queues = self._queues.all()
        size = sum([queue.stored_bytes for queue in queues]) + self._other_bytes()
        return sum([queue.stored_rows for queue in queues]), size

    def _other_bytes(self) -> int:
        size = sum([table_bytes() for table_bytes in self._other_tables])
        return size + (self._events.bytes if self._events else 0)

    def _bytes_cap(self) -> tuple[Cap, int]:
        cap = self._hub_bytes_cap()
        if self._disk_bytes == NEVER_MS:
            return Cap.HUB_BYTES, cap
        disk = self._disk_bytes - self._unstored_dead_letters()
        return (Cap.DISK, disk) if disk < cap else (Cap.HUB_BYTES, cap)

    def _hub_bytes_cap(self) -> int:
        cap = self.caps.bytes or NEVER_MS
        if self.caps.bytes_percent and self._space is not None:
            cap = min(cap, self._space.total * self.caps.bytes_percent // 100)
        return cap

    def _bound_events(self, events: EventLog) -> None:
        events.bound(self._hub_bytes_cap() // EVENTS_SHARE)

    def _full_hub(self, count: int, size: int) -> Cap | None:
        rows, taken = self._seen
        if self.caps.rows and rows + count > self.caps.rows:
            return Cap.HUB_ROWS
        name, cap = self._bytes_cap()
        return name if taken + count * size > cap else None

    def _drop(
        self, queues: Sequence[Queue], size: int, full: dict[int, Cap]
    ) -> list[LimitDecision]:
        joining = [queue for queue in queues if queue.number not in full]
        hub = self._full_hub(len(joining), size) if joining else None
        decisions: list[LimitDecision] = []
        for queue in queues:
            cap = full.get(queue.number, hub)
            if cap is None:
                decisions.append(LimitDecision.JOINS)
                continue
            decisions.append(LimitDecision.DROPPED)
            self._note(cap, queue if queue.number in full else None).dropped += 1
        joined = decisions.count(LimitDecision.JOINS)
        self._spend(joined, joined * size)
        return decisions

    def _can_make_room(self, queues: Sequence[Queue], size: int) -> bool:
        if self._would_fit(queues, size, with_open=False):
            return True
        # Rows of the open group can only be evicted for those of a later one.
        if not self._would_fit(queues, size, with_open=True):
            return False
        self._seal()
        return True

    def _would_fit(self, queues: Sequence[Queue], size: int, *, with_open: bool) -> bool:
        caps = self.caps
        for queue in queues:
            rows, movable = queue.evictable(with_open=with_open)
            if caps.exceeded_by(queue.rows_taken - rows + 1, queue.bytes_taken - movable + size):
                return False
        best = min([queue.priority for queue in queues])
        rows, taken = self._seen
        for queue in self._queues.all():
            if caps.overflow is Overflow.DROP_OLDEST or queue.priority >= best:
                queue_rows, movable = queue.evictable(with_open=with_open)
                rows -= queue_rows
                taken -= movable
        count = len(queues)
        if caps.rows and rows + count > caps.rows:
            return False
        return taken + count * size <= self._bytes_cap()[1]

    def hub_excess(self, group: Group) -> Excess:
        """Return what exceeds the hub's caps once this group is in the file."""
        rows, size = self._stored()
        rows += group.rows
        size += group.bytes
        over = rows - self.caps.rows if self.caps.rows else 0
        name, cap = self._bytes_cap()
        return Excess(max(0, over), max(0, size - cap), Cap.HUB_ROWS if over > 0 else name)

    def queue_excess(self, queue: Queue, group: Group) -> Excess:
        """Return what exceeds the caps of a queue once this group is in the file."""
        caps = self.caps
        rows, size = queue.stored_rows, queue.stored_bytes
        if (joined := group.rows_of.get(queue)) is not None:
            rows += len(joined.rows)
            size += joined.bytes
        over = rows - caps.queue_rows if caps.queue_rows else 0
        more = size - caps.queue_bytes if caps.queue_bytes else 0
        cap = Cap.QUEUE_ROWS if over > 0 else Cap.QUEUE_BYTES
        return Excess(max(0, over), max(0, more), cap)

    def room_made(self) -> None:
        """Record that rows were evicted for all that joined."""
        self.makes_room = False
        self.best_newcomer = DEFAULT_PRIORITY

    def evicted(self, cap: Cap, queue: Queue | None, rows: int) -> None:
        """Count rows that were evicted; `queue` None = a cap of the hub."""
        self._note(cap, queue).dropped += rows

    def report(self) -> None:
        """Log reached caps at a bounded rate, and forget those that have had room for a while."""
        now_s = self._clock.monotonic()
        for key, reached in list(self._reached.items()):
            if now_s - reached.last_s >= QUIET_S:
                del self._reached[key]
                log.info("store.limit_left", **_words(*key, reached, now_s))
            elif now_s - reached.logged_s >= LOG_PERIOD_S:
                reached.logged_s = now_s
                self._warn(key, reached, now_s)

    def statistics(self) -> list[LimitStatistics]:
        """Return the caps that are reached."""
        now_s = self._clock.monotonic()
        return [
            LimitStatistics(
                cap=cap,
                queue=queue_id,
                for_s=now_s - reached.since_s,
                overflow=self.caps.overflow,
                refused=reached.refused,
                dropped=reached.dropped,
            )
            for (cap, queue_id), reached in self._reached.items()
        ]

    def _note(self, cap: Cap, queue: Queue | None) -> _Reached:
        key = (cap, None if queue is None else queue.id)
        now_s = self._clock.monotonic()
        reached = self._reached.get(key)
        if reached is None:
            reached = self._reached[key] = _Reached(now_s, now_s, now_s)
            self._warn(key, reached, now_s)
        reached.last_s = now_s
        self.last_cap = cap
        return reached

    def _warn(self, key: tuple[Cap, QueueId | None], reached: _Reached, now_s: float) -> None:
        log.warning(
            "store.limit_reached",
            overflow=self.caps.overflow.value,
            **_words(*key, reached, now_s),
        )


def _words(
    cap: Cap, queue_id: QueueId | None, reached: _Reached, now_s: float
) -> dict[str, object]:
    return {
        "cap": cap.value,
        "queue": queue_id,
        "for_s": round(now_s - reached.since_s, 1),
        "refused": reached.refused,
        "dropped": reached.dropped,
    }


def _overdrafts(rows: int, size: int, rows_cap: int, bytes_cap: int) -> float:
    of_rows = (rows - rows_cap) / OVERDRAFT_ROWS if rows_cap else 0.0
    return max(of_rows, (size - bytes_cap) / OVERDRAFT_BYTES if bytes_cap else 0.0)
