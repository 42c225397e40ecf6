"""Limits of rows, bytes and disk: may a message join, and what gives way to it.

Owns the account of what is taken, open groups included, and what operators see of caps that are
reached. Far from all caps a message costs two subtractions and two comparisons: the room up to the
nearest cap is handed out in advance, and only what leaves makes it larger. Invariant: rows in
flight and rows that create entities count, and never give way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import structlog

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
    from edgehub.store.registry import Registry

log = structlog.get_logger(__name__)

QUIET_S: Final = 60.0
"""A cap counts as reached until nothing has been refused or has given way for so long."""
LOG_PERIOD_S: Final = 300.0
SMALL_FLOOR_SHARE: Final = 10
"""On a small volume at most this part of it is kept free."""
GROWTH_SHARE: Final = 4
"""Of the space above the floor, the part that rows may take until it is looked at again: large rows
leave half of their pages empty, and the log, the journal's files and others take some of it too."""
EVENTS_SHARE: Final = 4
"""Of the hub's bytes, the part that events may take one by one while the journal does not write."""
OVERDRAFT_ROWS: Final = 1000
OVERDRAFT_BYTES: Final = 2**20
"""So much may be beyond a cap before what cannot be refused is not asked for any more."""
OVERDRAFTS_OPEN: Final = 4
"""As often until the next commit, where others give way to it then."""


@dataclass(frozen=True, slots=True)
class Space:
    """The volume at one moment.

    Attributes:
        total: Its size in bytes.
        free: Bytes that the hub may still take.
        spare: Bytes inside the database file that hold nothing.
    """

    total: int
    free: int
    spare: int


@dataclass(frozen=True, slots=True)
class Excess:
    """Rows and bytes that have to leave, and the cap that says so."""

    rows: int
    bytes: int
    cap: Cap

    @property
    def is_any(self) -> bool:
        """Return whether there is too much."""
        return bool(self.rows or self.bytes)


class LimitDecision(StrEnum):
    """What becomes of a message, or of one of its copies."""

    JOINS = "joins"
    DROPPED = "dropped"
    REFUSED = "refused"


class _Reached:
    __slots__ = ("dropped", "evicted", "last_s", "logged_s", "refused", "since_s")

    def __init__(self, now_s: float) -> None:
        self.since_s = self.last_s = self.logged_s = now_s
        self.refused = self.dropped = self.evicted = 0


class Limits:
    """See the module.

    Args:
        caps: In force from the start.
        clock: Says since when.
        events: Its blobs count into the hub's bytes, None = there is no journal.
        seal: Closes the open group, so that its rows may give way to those of the next one.

    Attributes:
        rows_left: Rows that may join before anybody has to look.
        bytes_left: Likewise bytes.
        makes_room: Rows have joined that others have to give way to.
        best_newcomer: The best priority of those; rows that are better do not give way.
        cap_in_the_way: The cap that the last refusal or drop was about.
    """

    __slots__ = (
        "_beside",
        "_clean_up_soon",
        "_clock",
        "_disk_bytes",
        "_events",
        "_look_after",
        "_reached",
        "_registry",
        "_seal",
        "_seen",
        "_space",
        "_written",
        "best_newcomer",
        "bytes_left",
        "cap_in_the_way",
        "caps",
        "makes_room",
        "rows_left",
    )

    def __init__(
        self, caps: Caps, *, clock: Clock, events: EventLog | None, seal: Callable[[], None]
    ) -> None:
        self.caps = caps
        self.rows_left = self.bytes_left = 0
        self.makes_room = False
        self.best_newcomer: int = DEFAULT_PRIORITY
        self.cap_in_the_way = Cap.HUB_BYTES
        self._clock = clock
        self._events = events
        self._seal = seal
        self._clean_up_soon: Callable[[], None]
        self._registry: Registry
        self._beside: list[Callable[[], int]] = []
        self._space: Space | None = None
        self._seen = (0, 0)
        """Rows and bytes that were taken when the room was handed out last."""
        self._disk_bytes = self._look_after = NEVER_MS
        self._written = 0
        self._reached: dict[tuple[Cap, QueueId | None], _Reached] = {}
        if events is not None:
            events.grew = self.taken_by_other_tables
            self._bound_events(events)

    def attach(self, registry: Registry, clean_up_soon: Callable[[], None]) -> None:
        """Take over the queues, and how to have expired rows cleared away; before anything else."""
        self._registry = registry
        self._clean_up_soon = clean_up_soon

    def count_other_tables(self, beside: Callable[[], int]) -> None:
        """Count further bytes of the file into those of the hub."""
        self._beside.append(beside)

    def change(self, caps: Caps) -> None:
        """Put other caps in force; what is stored above them stays until something joins."""
        self.caps = caps
        self.set_space(self._space)

    def set_space(self, space: Space | None) -> None:
        """Record the volume; None = it does not matter."""
        self._space = space
        self._disk_bytes = self._look_after = NEVER_MS
        caps = self.caps
        if self._events is not None:
            self._bound_events(self._events)
        if space is not None and (caps.free_bytes_min or caps.free_percent):
            floor = min(caps.free_bytes_min, space.total // SMALL_FLOOR_SHARE)
            floor = max(floor, space.total * caps.free_percent // 100)
            growth = (max(0, space.free - floor) + space.spare) // GROWTH_SHARE
            # What is under way to the file has no space there yet.
            self._disk_bytes = self._stored()[1] + growth + self._dying()
            self._look_after = growth // 2
        self._written = 0
        self.recount()

    def committed(self, size: int) -> bool:
        """Count bytes of rows that were written; tells whether the volume should be looked at."""
        self._written += size
        return self._written > self._look_after

    def taken_by_other_tables(self, size: int) -> None:
        """Count bytes that something beside messages has taken out of the room handed out."""
        self.bytes_left = max(0, self.bytes_left - size)

    def other_tables_grew(self, size: int) -> None:
        """Count bytes of rows that are dead letters in the file now; none may join for them."""
        if self._disk_bytes < NEVER_MS:
            self._disk_bytes -= size
            self.recount()

    def _dying(self) -> int:
        return sum([queue.checkpointer.dying_bytes for queue in self._registry.queues()])

    def recount(self) -> None:
        """Have the next message looked at: something beside messages has taken room."""
        self.rows_left = self.bytes_left = 0

    # The way in.

    def is_overdrawn(self) -> bool:
        """Return whether what joined beyond the hub's caps has used up what it may.

        Rows of what cannot be taken back join at a cap too; then their source is to be stopped.
        """
        if self.rows_left > 0 and self.bytes_left > 0:
            return False
        beyond = self._beyond(*self._taken(), stored=False)
        if beyond <= 1 or self.caps.overflow in {Overflow.REJECT_NEW, Overflow.DROP_NEWEST}:
            return beyond > 1
        # Rows of the open group give way to those of the next one.
        return beyond > OVERDRAFTS_OPEN or self._beyond(*self._stored(), stored=True) > 1

    def _beyond(self, rows: int, size: int, *, stored: bool) -> float:
        """Return by how many overdrafts the cap is exceeded that is exceeded most."""
        caps = self.caps
        most = _overdrafts(rows, size, caps.rows, self._bytes_cap()[1])
        if caps.queue_rows or caps.queue_bytes:
            for queue in self._registry.queues():
                rows, size = queue.rows_taken, queue.bytes_taken
                if stored:
                    rows = queue.zones.depth - queue.checkpointer.unstored
                    size = queue.zones.bytes - queue.checkpointer.unstored_bytes
                most = max(most, _overdrafts(rows, size, caps.queue_rows, caps.queue_bytes))
        return most

    def judge(
        self,
        queues: Sequence[Queue],
        size: int,
        *,
        creation: bool = False,
        overdraw: bool = False,
    ) -> list[LimitDecision]:
        """Return what becomes of the copies of a message, once the room handed out is used up.

        Args:
            queues: Where they go.
            size: Bytes of each copy.
            creation: One of them creates an entity: nobody is told that all is well where it is
                dropped, for the data of that entity waits for it.
            overdraw: They join in any case.
        """
        count = len(queues)
        self._hand_out()
        if self.rows_left >= count and self.bytes_left >= count * size:
            self._spend(count, count * size)
            return [LimitDecision.JOINS] * count
        full = {queue.number: cap for queue in queues if (cap := self._full_queue(queue, size))}
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

    def _hand_out(self) -> None:
        caps = self.caps
        rows, size = self._seen = self._taken()
        rows_left = caps.rows - rows if caps.rows else NEVER_MS
        bytes_left = self._bytes_cap()[1] - size
        if caps.queue_rows or caps.queue_bytes:
            queues = self._registry.queues()
            if caps.queue_rows:
                most = max([queue.rows_taken for queue in queues], default=0)
                rows_left = min(rows_left, caps.queue_rows - most)
            if caps.queue_bytes:
                most = max([queue.bytes_taken for queue in queues], default=0)
                bytes_left = min(bytes_left, caps.queue_bytes - most)
        self.rows_left, self.bytes_left = max(0, rows_left), max(0, bytes_left)

    def _taken(self) -> tuple[int, int]:
        rows = size = 0
        for queue in self._registry.queues():
            rows += queue.rows_taken
            size += queue.bytes_taken
        return rows, size + self._other_bytes()

    def _stored(self) -> tuple[int, int]:
        rows = size = 0
        for queue in self._registry.queues():
            rows += queue.zones.depth - queue.checkpointer.unstored
            size += queue.zones.bytes - queue.checkpointer.unstored_bytes
        return rows, size + self._other_bytes()

    def _other_bytes(self) -> int:
        beside = sum([count() for count in self._beside])
        return beside + (self._events.bytes if self._events else 0)

    def _bytes_cap(self) -> tuple[Cap, int]:
        cap = self._hub_bytes_cap()
        if self._disk_bytes == NEVER_MS:
            return Cap.HUB_BYTES, cap
        disk = self._disk_bytes - self._dying()
        return (Cap.DISK, disk) if disk < cap else (Cap.HUB_BYTES, cap)

    def _hub_bytes_cap(self) -> int:
        cap = self.caps.bytes or NEVER_MS
        if self.caps.bytes_percent and self._space is not None:
            cap = min(cap, self._space.total * self.caps.bytes_percent // 100)
        return cap

    def _bound_events(self, events: EventLog) -> None:
        events.bound(self._hub_bytes_cap() // EVENTS_SHARE)

    def _full_queue(self, queue: Queue, size: int) -> Cap | None:
        caps = self.caps
        if caps.queue_rows and queue.rows_taken >= caps.queue_rows:
            return Cap.QUEUE_ROWS
        if caps.queue_bytes and queue.bytes_taken + size > caps.queue_bytes:
            return Cap.QUEUE_BYTES
        return None

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
        verdicts: list[LimitDecision] = []
        for queue in queues:
            cap = full.get(queue.number, hub)
            if cap is None:
                verdicts.append(LimitDecision.JOINS)
                continue
            verdicts.append(LimitDecision.DROPPED)
            self._note(cap, queue if queue.number in full else None).dropped += 1
        joined = verdicts.count(LimitDecision.JOINS)
        self._spend(joined, joined * size)
        return verdicts

    def _can_make_room(self, queues: Sequence[Queue], size: int) -> bool:
        if self._would_fit(queues, size, with_open=False):
            return True
        # Rows of the open group can only give way to those of a later one.
        if not self._would_fit(queues, size, with_open=True):
            return False
        self._seal()
        return True

    def _would_fit(self, queues: Sequence[Queue], size: int, *, with_open: bool) -> bool:
        caps = self.caps
        for queue in queues:
            rows, movable = queue.may_give_way(with_open=with_open)
            if caps.queue_rows and queue.rows_taken - rows + 1 > caps.queue_rows:
                return False
            if caps.queue_bytes and queue.bytes_taken - movable + size > caps.queue_bytes:
                return False
        best = min([queue.priority for queue in queues])
        rows, taken = self._seen
        for queue in self._registry.queues():
            if caps.overflow is Overflow.DROP_OLDEST or queue.priority >= best:
                queue_rows, movable = queue.may_give_way(with_open=with_open)
                rows -= queue_rows
                taken -= movable
        count = len(queues)
        if caps.rows and rows + count > caps.rows:
            return False
        return taken + count * size <= self._bytes_cap()[1]

    # What is too much in the file, once a group is in it.

    def hub_excess(self, group: Group) -> Excess:
        """Return what is beyond the hub's caps with this group."""
        rows, size = self._stored()
        rows += group.rows
        size += group.bytes
        over = rows - self.caps.rows if self.caps.rows else 0
        name, cap = self._bytes_cap()
        return Excess(max(0, over), max(0, size - cap), Cap.HUB_ROWS if over > 0 else name)

    def queue_excess(self, queue: Queue, group: Group) -> Excess:
        """Return the same of one queue."""
        caps = self.caps
        rows = queue.zones.depth - queue.checkpointer.unstored
        size = queue.zones.bytes - queue.checkpointer.unstored_bytes
        for part in group.parts:
            if part.queue is queue:
                rows += len(part.rows)
                size += part.bytes
        over = rows - caps.queue_rows if caps.queue_rows else 0
        more = size - caps.queue_bytes if caps.queue_bytes else 0
        cap = Cap.QUEUE_ROWS if over > 0 else Cap.QUEUE_BYTES
        return Excess(max(0, over), max(0, more), cap)

    def settled(self) -> None:
        """Record that all that joined has its room."""
        self.makes_room = False
        self.best_newcomer = DEFAULT_PRIORITY

    def evicted(self, cap: Cap, queue: Queue | None, rows: int) -> None:
        """Record that rows have given way; `queue` None = a cap of the hub."""
        self._note(cap, queue).evicted += rows

    # What operators see.

    def look(self) -> None:
        """Report at a bounded rate, and forget caps that have had room for a while."""
        now_s = self._clock.monotonic()
        for key, reached in list(self._reached.items()):
            if now_s - reached.last_s >= QUIET_S:
                del self._reached[key]
                log.info("store.limit_left", **_words(*key, reached, now_s))
            elif now_s - reached.logged_s >= LOG_PERIOD_S:
                reached.logged_s = now_s
                self._warn(key, reached, now_s)

    def statistics(self) -> list[LimitStatistics]:
        """Describe the caps that are reached."""
        now_s = self._clock.monotonic()
        return [
            LimitStatistics(
                cap=cap,
                queue=queue_id,
                for_s=now_s - reached.since_s,
                overflow=self.caps.overflow,
                refused=reached.refused,
                dropped=reached.dropped + reached.evicted,
            )
            for (cap, queue_id), reached in self._reached.items()
        ]

    def _note(self, cap: Cap, queue: Queue | None) -> _Reached:
        key = (cap, None if queue is None else queue.id)
        now_s = self._clock.monotonic()
        reached = self._reached.get(key)
        if reached is None:
            reached = self._reached[key] = _Reached(now_s)
            self._warn(key, reached, now_s)
        reached.last_s = now_s
        self.cap_in_the_way = cap
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
        "dropped": reached.dropped + reached.evicted,
    }


def _overdrafts(rows: int, size: int, rows_cap: int, bytes_cap: int) -> float:
    of_rows = (rows - rows_cap) / OVERDRAFT_ROWS if rows_cap else 0.0
    return max(of_rows, (size - bytes_cap) / OVERDRAFT_BYTES if bytes_cap else 0.0)
