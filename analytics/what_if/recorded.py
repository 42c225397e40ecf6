"""The recorded day of one endpoint: what came when, and what its link could take.

Pure Python. Owns the steps of equal length in which all of it is kept, and the rule of capacity:
where the link was saturated it took what it took; elsewhere it could have taken as much as then.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

STEP_MS: Final = 1000
"""Length of a step, unless there are too many lines for such short ones."""
LONG_STEP_MS: Final = 10_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
SATURATED_S: Final = 5.0
"""The link is saturated while more waits than it took in so many seconds of its best minute. Less
waits also where the pump spreads rows over the round trip, or looks for the rate."""
MEASURED_S: Final = 30.0
"""A rate is that of at least so many seconds of a saturated link."""

CAME, WAITED, CARRIED, REMOVED, DROPPED, SENT, EXPIRED, LINK, SETTINGS, END = (
    *("came", "waited", "carried", "removed", "dropped"),
    *("sent", "expired", "link", "settings", "end"),
)
"""Kinds of parcels: rows that joined, that waited at 00:00 and left on the day, all that waited
then, rows that left otherwise, that gave way to a limit, that were handed to the link, whose time
ended; states of links; what is in force; the end of the day."""


class Parcel(NamedTuple):
    """Rows of one kind, queue, routes and time to live in one step.

    Attributes:
        at_ms: Hub time at which the step begins; of rows that waited, when they were enqueued; of a
            link that of its change.
        kind: See above.
        endpoint: Empty = the hub stopped.
        priority: Of the queue.
        routes: Of the rows, the winner first; empty where only sums are known.
        ttl_ms: Of the rows, None = never ends.
        rows: How many; of a link 1 = up.
        bytes: Their bytes.
        text: JSON: ages of rows; of a link the milliseconds since 00:00; `routes`, `endpoints` and
            `caps` in force.
    """

    at_ms: int
    kind: str
    endpoint: str
    priority: int
    routes: tuple[str, ...]
    ttl_ms: int | None
    rows: int
    bytes: int
    text: str | None = None


class Cohort:
    """Rows that are treated alike, whatever the scenario: one object for all of them of a hub."""

    __slots__ = ("priority", "routes", "ttl_ms")

    def __init__(self, priority: int, routes: tuple[str, ...], ttl_ms: int | None) -> None:
        self.priority = priority
        self.routes = routes
        self.ttl_ms = ttl_ms


class Cohorts(dict[tuple[int, tuple[str, ...], int | None], Cohort]):
    """Cohorts of a hub by priority, routes and time to live; each is made when it is asked for."""

    def __missing__(self, key: tuple[int, tuple[str, ...], int | None]) -> Cohort:
        """Make a cohort."""
        made = self[key] = Cohort(*key)
        return made


def row_bytes(parcel: Parcel) -> float:
    """Return the size of its rows, at least a byte."""
    return max(1.0, parcel.bytes / parcel.rows) if parcel.rows else 1.0


class Arrival(NamedTuple):
    """Rows that joined a queue together."""

    at_ms: int
    cohort: Cohort
    rows: int
    row_bytes: float


class Step:
    """What happened in one step, and what the link could take in it and after it."""

    __slots__ = (
        *("arrivals", "at_ms", "capacity", "dropped", "leaves"),
        *("link", "removed", "rest", "sent_bytes", "usual"),
    )

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.arrivals: list[Arrival] = []
        self.removed: list[tuple[tuple[str, ...], int]] = []
        self.dropped: list[tuple[tuple[str, ...], int]] = []
        self.leaves = 0
        self.sent_bytes = 0
        self.link: bool | None = None
        self.capacity = 0.0
        """Bytes of this step."""
        self.rest = 0.0
        """Bytes per second from its end to the next step."""
        self.usual = 0.0
        """Bytes per second of a link that is up."""


class EndpointDay:
    """One endpoint's day.

    Attributes:
        step_ms: Length of a step.
        midnight_ms: Hub time of 00:00.
        had_windows: Whether its link was to be open in windows only.
        steps: In order; where nothing happened there are none.
        initial: What waited at the beginning, in order.
        sent: Recorded rows by routes.
        expired: The same of those whose time ended.
        removed: The same of those that left otherwise.
        priority: Of rows by routes, where the first of them joined.
        busy_s: Seconds in which the link was saturated.
        end_ms: Hub time of its end.
    """

    def __init__(
        self,
        parcels: Iterable[Parcel],
        initial: list[Arrival],
        end_ms: int,
        step_ms: int,
        cohorts: Cohorts,
        *,
        midnight_ms: int = 0,
        had_windows: bool = False,
    ) -> None:
        self.step_ms = step_ms
        self.midnight_ms = midnight_ms
        self.had_windows = had_windows
        self.initial = sorted(initial, key=lambda arrival: arrival.at_ms)
        self.sent: dict[tuple[str, ...], int] = defaultdict(int)
        self.expired: dict[tuple[str, ...], int] = defaultdict(int)
        self.removed: dict[tuple[str, ...], int] = defaultdict(int)
        self.priority: dict[tuple[str, ...], int] = {}
        self.busy_s = 0.0
        self.end_ms = end_ms
        self._cohorts = cohorts
        steps: dict[int, Step] = {}
        for arrival in self.initial:
            self.priority.setdefault(arrival.cohort.routes, arrival.cohort.priority)
        for parcel in parcels:
            at_ms = parcel.at_ms // step_ms * step_ms
            step = steps.get(at_ms)
            if step is None:
                step = steps[at_ms] = Step(at_ms)
            self._enter(step, parcel)
        self.steps = [steps[at_ms] for at_ms in sorted(steps)]
        self._measure()

    def came(self) -> dict[tuple[str, ...], int]:
        """Count rows by routes, those that waited at the beginning included."""
        counts: dict[tuple[str, ...], int] = defaultdict(int)
        for arrivals in (self.initial, *(step.arrivals for step in self.steps)):
            for arrival in arrivals:
                counts[arrival.cohort.routes] += arrival.rows
        return counts

    def _enter(self, step: Step, parcel: Parcel) -> None:
        routes, rows = parcel.routes, parcel.rows
        if parcel.kind == LINK:
            step.link = bool(rows)
        elif parcel.kind == CAME:
            self.priority.setdefault(routes, parcel.priority)
            cohort = self._cohorts[parcel.priority, routes, parcel.ttl_ms]
            step.arrivals.append(Arrival(parcel.at_ms, cohort, rows, row_bytes(parcel)))
        else:
            step.leaves += rows
            if parcel.kind == SENT:
                step.sent_bytes += parcel.bytes
                self.sent[routes] += rows
            elif parcel.kind == EXPIRED:
                self.expired[routes] += rows
            else:
                self.removed[routes] += rows
                (step.dropped if parcel.kind == DROPPED else step.removed).append((routes, rows))

    def _measure(self) -> None:
        """Find when the link was saturated, the rates of the hours, and each capacity."""
        depths = self._depths()
        peaks = self._peaks()
        hours: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        free: list[tuple[Step, bool, bool]] = []
        is_up = next((not step.link for step in self.steps if step.link is not None), True)
        for index, step in enumerate(self.steps):
            if step.link is not None:
                is_up = step.link
            hour = step.at_ms // HOUR_MS
            least = SATURATED_S * peaks[hour]
            after = depths[index + 1]
            is_full = 0 < min(depths[index], after) >= least
            rest_full = 0 < after >= least
            if is_up and is_full:
                hours[hour][0] += step.sent_bytes
                hours[hour][1] += self.step_ms / 1000
            if is_up and rest_full:
                hours[hour][1] += (self._next_ms(index) - step.at_ms - self.step_ms) / 1000
            step.capacity = float(step.sent_bytes)
            free.append((step, is_up and not is_full, is_up and not rest_full))
        self.busy_s = sum(seconds for _, seconds in hours.values())
        self._free_capacity(free, hours)

    def _free_capacity(
        self, free: list[tuple[Step, bool, bool]], hours: dict[int, list[float]]
    ) -> None:
        """Set capacities where the link was not saturated to what it took where it was."""
        sent = sum(size for size, _ in hours.values())
        step_s = self.step_ms / 1000
        usual = max((step.sent_bytes / step_s for step in self.steps), default=0.0)
        if self.busy_s >= MEASURED_S and sent:
            usual = sent / self.busy_s
        rates = {
            hour: size / seconds
            for hour, (size, seconds) in hours.items()
            if seconds >= MEASURED_S and size
        }
        for step, step_free, rest_free in free:
            rate = step.usual = rates.get(step.at_ms // HOUR_MS, usual)
            if step_free:
                step.capacity = max(step.capacity, rate * step_s)
            if rest_free:
                step.rest = rate

    def _peaks(self) -> dict[int, float]:
        """Return bytes per second of the best minute of each hour."""
        minutes: dict[int, int] = defaultdict(int)
        for step in self.steps:
            minutes[step.at_ms // MINUTE_MS] += step.sent_bytes
        peaks: dict[int, float] = defaultdict(float)
        for minute, size in minutes.items():
            hour = minute * MINUTE_MS // HOUR_MS
            peaks[hour] = max(peaks[hour], size * 1000 / MINUTE_MS)
        return peaks

    def _depths(self) -> list[float]:
        """Return the bytes that waited before each step, and after the last one."""
        rows = sum(arrival.rows for arrival in self.initial)
        depths = [rows]
        for step in self.steps:
            rows += sum(arrival.rows for arrival in step.arrivals) - step.leaves
            depths.append(rows)
        sent = sum(self.sent.values())
        # By rows, so that none is left in the end.
        row_bytes = sum(step.sent_bytes for step in self.steps) / sent if sent else 1.0
        return [rows * row_bytes for rows in depths]

    def _next_ms(self, index: int) -> int:
        following = index + 1
        end_ms = max(self.end_ms, self.steps[index].at_ms + self.step_ms)
        return self.steps[following].at_ms if following < len(self.steps) else end_ms
