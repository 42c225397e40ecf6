"""What rows waited for: a bounded history of each endpoint, asked when a row leaves.

Owns, per endpoint, how long it has been offline, paused or busy with better priorities up to some
points in time, and per queue when it, a sender or a row was held back. Nothing is stored per row.
Between two points time is taken as evenly spread, which is exact until points had to be dropped.
Invariant: the parts of a wait add up to the wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate, chain
from operator import sub
from typing import TYPE_CHECKING, Any, Final

from edgehub.journal.row_events import (
    PUMP_DEFAULT,
    PUMP_IDLE,
    PUMP_OFFLINE,
    PUMP_PAUSED,
    pump_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

POINTS_MAX: Final = 512
INTERVALS_MAX: Final = 512
"""Per queue; the oldest go first, and then count as the rest does."""

OFFLINE: Final = 0
PAUSED: Final = 1
BEHIND: Final = 2
"""Place of what a row of priority 0 waits for; that of others follows."""
PARTS: Final = BEHIND + PUMP_DEFAULT + 1

Key = tuple[str, int]
Interval = list[Any]
"""In which a queue (None), a sender or a row (its offset) was held back: who, from when, until when
(None = still)."""
Split = tuple[int, int, int, int]
"""Milliseconds offline, behind better priorities, held back, and the rest."""


class Course:
    """What one endpoint did: sums up to points in time, and its state since the last point.

    Attributes:
        state: What its pump does.
    """

    __slots__ = ("_sums", "_times", "state")

    def __init__(self, at_ms: int) -> None:
        self._times = [at_ms]
        self._sums: list[tuple[int, ...]] = [(0,) * PARTS]
        self.state = PUMP_OFFLINE

    def change(self, state: int, at_ms: int) -> None:
        """Record that the pump does something else from `at_ms` on."""
        if state == self.state:
            return
        if at_ms > self._times[-1]:
            self._sums.append(self.sums(at_ms))
            self._times.append(at_ms)
            if len(self._times) > POINTS_MAX:
                half = POINTS_MAX // 2
                self._times[:half] = self._times[:half:2]
                self._sums[:half] = self._sums[:half:2]
        self.state = state

    def age(self, before_ms: int, off_ms: int) -> None:
        """Move what was before `before_ms` back; the time between was spent offline."""
        index, later = bisect_left(self._times, before_ms), bisect_right(self._times, before_ms)
        # Both ends of that time are points: between others it would be spread over what was before.
        border = self.sums(before_ms)
        earlier = [at_ms - off_ms for at_ms in self._times[:index]]
        self._times[:later] = [*earlier, before_ms - off_ms, before_ms]
        after = [(offline + off_ms, *rest) for offline, *rest in (border, *self._sums[later:])]
        self._sums[index:] = [border, *after]

    def sums(self, at_ms: int) -> tuple[int, ...]:
        """Return all sums as of some time."""
        index = bisect_right(self._times, at_ms) - 1
        if index < 0:
            # Before anything was known of it, the endpoint was not served.
            offline, *rest = self._sums[0]
            return (offline - (self._times[0] - at_ms), *rest)
        since = at_ms - self._times[index]
        sums = self._sums[index]
        if not since:
            return sums
        if index + 1 < len(self._times):
            length = self._times[index + 1] - self._times[index]
            after = self._sums[index + 1]
            return tuple([a + (b - a) * since // length for a, b in zip(sums, after, strict=True)])
        state = self.state
        if state == PUMP_IDLE:
            return sums
        grown = list(sums)
        if state in {PUMP_OFFLINE, PUMP_PAUSED}:
            grown[OFFLINE if state == PUMP_OFFLINE else PAUSED] += since
        else:
            for part in range(BEHIND + state + 1, PARTS):
                grown[part] += since
        return tuple(grown)

    def document(self) -> list[Any]:
        """Return what JSON can hold."""
        columns = [self._times, *zip(*self._sums, strict=True)]
        return [self.state, *([column[0], *map(sub, column[1:], column)] for column in columns)]

    @classmethod
    def load(cls, document: list[Any]) -> Course:
        """Undo `document`."""
        course = cls(0)
        course.state, times, *columns = document
        course._times = list(accumulate(times))
        course._sums = list(zip(*map(accumulate, columns), strict=True))
        return course


class Waits:
    """The histories of one hub."""

    def __init__(self) -> None:
        self._courses: dict[str, Course] = {}
        self._held: defaultdict[Key, list[Interval]] = defaultdict(list)
        """In the order in which they began, by queue."""

    def change(self, endpoint_id: str, state: int, at_ms: int) -> None:
        """Record what the pump of an endpoint does from `at_ms` on."""
        course = self._courses.get(endpoint_id)
        if course is None:
            course = self._courses[endpoint_id] = Course(at_ms)
        course.change(state, at_ms)

    def hold(self, key: Key, who: str | int | None, at_ms: int, *, begins: bool) -> None:
        """Record that a queue (`who` None), a sender or a row is held back, or no more."""
        intervals = self._held[key]
        if begins:
            intervals.append([who, at_ms, None])
            del intervals[: len(intervals) - INTERVALS_MAX]
            return
        for interval in reversed(intervals):
            if interval[0] == who and interval[2] is None:
                interval[2] = at_ms
                return

    def blur(self, at_ms: int) -> None:
        """Record that some changes up to `at_ms` are not known."""
        for interval in chain.from_iterable(self._held.values()):
            if interval[2] is None:
                interval[2] = at_ms

    def stop(self, at_ms: int) -> None:
        """Record that the hub does not run from `at_ms` on."""
        self.blur(at_ms)
        for course in self._courses.values():
            course.change(PUMP_OFFLINE, at_ms)

    def age(self, before_ms: int, off_ms: int) -> None:
        """Record that the hub was off for longer than was known.

        Args:
            before_ms: Hub time at which it was on again.
            off_ms: So much earlier was all that happened before.
        """
        for course in self._courses.values():
            course.age(before_ms, off_ms)
        for interval in chain.from_iterable(self._held.values()):
            interval[1:] = [
                at_ms - off_ms if at_ms is not None and at_ms < before_ms else at_ms
                for at_ms in interval[1:]
            ]

    def emptied(self, key: Key) -> None:
        """Forget what no row of a queue can ask for any more."""
        if key in self._held:
            self._held[key] = [entry for entry in self._held[key] if entry[2] is None]

    def split(self, key: Key, sender: str, offset: int, from_ms: int, until_ms: int) -> Split:
        """Return what a row waited for.

        Args:
            key: Endpoint and priority.
            sender: Of the row.
            offset: Of the row.
            from_ms: When it was enqueued, hub time.
            until_ms: When it left.
        """
        waited = until_ms - from_ms
        course = self._courses.get(key[0])
        if course is None or waited <= 0:
            return (max(waited, 0), 0, 0, 0)
        part = BEHIND + pump_state(key[1])
        offline, paused, behind = _between(course, part, from_ms, until_ms)
        chosen = [
            (max(begin, from_ms), until_ms if end is None else min(end, until_ms))
            for who, begin, end in self._held.get(key, ())
            if who is None or who in (sender, offset)
        ]
        for begin, end in _without_overlap(chosen, from_ms):
            inner_offline, inner_paused, inner_behind = _between(course, part, begin, end)
            paused += end - begin - inner_offline - inner_paused
            behind -= inner_behind
        # Rounding may exceed the whole by a millisecond or two.
        offline = min(offline, waited)
        paused = min(paused, waited - offline)
        behind = max(0, min(behind, waited - offline - paused))
        return offline, behind, paused, waited - offline - paused - behind

    def has_holds(self, key: Key) -> bool:
        """Return whether rows of one age may have waited for different things."""
        return bool(self._held.get(key))

    def document(self) -> list[Any]:
        """Return what JSON can hold."""
        return [
            {name: course.document() for name, course in self._courses.items()},
            [[*key, intervals] for key, intervals in self._held.items() if intervals],
        ]

    @classmethod
    def load(cls, document: list[Any]) -> Waits:
        """Undo `document`."""
        waits = cls()
        courses, held = document
        waits._courses = {name: Course.load(course) for name, course in courses.items()}
        waits._held.update({(name, number): intervals for name, number, intervals in held})
        return waits


def _without_overlap(chosen: list[tuple[int, int]], reached: int) -> Iterator[tuple[int, int]]:
    for begin, end in sorted(chosen):
        if end > max(begin, reached):
            yield max(begin, reached), end
            reached = end


def _between(course: Course, part: int, from_ms: int, until_ms: int) -> tuple[int, int, int]:
    before, after = course.sums(from_ms), course.sums(until_ms)
    return (
        after[OFFLINE] - before[OFFLINE],
        after[PAUSED] - before[PAUSED],
        after[part] - before[part],
    )
