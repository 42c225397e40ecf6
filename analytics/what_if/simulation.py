"""One day of one endpoint under one scenario, event by event.

Pure Python. Owns the queues of the simulation. Invariant: every row that came is sent, expired,
removed or waits at the end. The rules are the pump's: the best priority first, a queue in the order
of its rows, none whose time has ended, and as many bytes as the link could take.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from analytics.what_if.recorded import Arrival, EndpointDay

NEVER_MS: Final = 2**62
_CREDIT_LEAST: Final = 1e-6
"""Less than this of a byte is rounding."""


class Treatment(NamedTuple):
    """How rows are treated: their priority and time to live, and recency."""

    priority: int
    ttl_ms: int | None
    recency_ms: int | None = None
    fallback: int = 0


class Outcome:
    """What became of the rows of some routes."""

    __slots__ = ("expired", "removed", "sent", "waited_ms", "waiting")

    def __init__(self) -> None:
        self.sent = self.expired = self.removed = self.waiting = 0
        self.waited_ms = 0.0
        """Sum over the rows that were sent."""


class _Rows:
    """Rows that came together and still wait."""

    __slots__ = (
        "at_ms",
        "expires_ms",
        "fallback",
        "fresh_until_ms",
        "outcome",
        "row_bytes",
        "rows",
    )

    def __init__(self, arrival: Arrival, treatment: Treatment, outcome: Outcome) -> None:
        at_ms = arrival.at_ms
        ttl_ms, recency_ms = treatment.ttl_ms, treatment.recency_ms
        self.at_ms = at_ms
        self.expires_ms = NEVER_MS if ttl_ms is None else at_ms + ttl_ms
        self.fresh_until_ms = NEVER_MS if recency_ms is None else at_ms + recency_ms
        self.fallback = treatment.fallback
        self.rows = arrival.rows
        self.row_bytes = max(arrival.row_bytes, 1.0)
        self.outcome = outcome


class _Queue:
    """Rows of one priority: those that joined it, and those that became too old for another."""

    __slots__ = ("demoted", "own")

    def __init__(self) -> None:
        self.own: deque[_Rows] = deque()
        self.demoted: deque[_Rows] = deque()

    def oldest(self) -> deque[_Rows]:
        """Return the one of both whose first rows are the older ones."""
        own, demoted = self.own, self.demoted
        if not demoted or (own and own[0].at_ms <= demoted[0].at_ms):
            return own
        return demoted


class Simulation:
    """The run of one scenario.

    Args:
        day: As it was recorded.
        treat: Returns how an arrival is treated.
        factor: How much faster the link is.

    Attributes:
        outcomes: By routes.
    """

    def __init__(
        self, day: EndpointDay, treat: Callable[[Arrival], Treatment], factor: float = 1.0
    ) -> None:
        self.outcomes: dict[tuple[str, ...], Outcome] = defaultdict(Outcome)
        self._day = day
        self._treat = treat
        self._factor = factor
        self._queues: dict[int, _Queue] = {}
        self._order: list[_Queue] = []
        self._credit = 0.0

    def run(self) -> dict[tuple[str, ...], Outcome]:
        """Run through the day and return what became of the rows."""
        for arrival in self._day.initial:
            self._join(arrival)
        factor, step_ms = self._factor, self._day.step_ms
        ended_ms, rest = 0, 0.0
        for step in self._day.steps:
            at_ms = step.at_ms
            if ended_ms < at_ms and ended_ms:
                self._serve(ended_ms, at_ms - ended_ms, rest * factor * (at_ms - ended_ms) / 1000)
            for arrival in step.arrivals:
                self._join(arrival)
            for routes, rows in step.removed:
                self._remove(routes, rows)
            self._serve(at_ms, step_ms, step.capacity * factor)
            ended_ms, rest = at_ms + step_ms, step.rest
        left_ms = self._day.end_ms - ended_ms
        if left_ms > 0 and ended_ms:
            self._serve(ended_ms, left_ms, rest * factor * left_ms / 1000)
        self._end()
        return self.outcomes

    def _join(self, arrival: Arrival) -> None:
        treatment = self._treat(arrival)
        rows = _Rows(arrival, treatment, self.outcomes[arrival.routes])
        self._queue(treatment.priority).own.append(rows)
        if treatment.recency_ms is not None:
            # So that it has its place before rows come into it from another queue.
            self._queue(treatment.fallback)

    def _queue(self, priority: int) -> _Queue:
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = _Queue()
            self._order = [self._queues[number] for number in sorted(self._queues)]
        return queue

    def _serve(self, at_ms: int, span_ms: int, capacity: float) -> None:
        """Send as many bytes as the link could take; what it could take and did not is lost."""
        credit = self._credit + capacity
        while credit > _CREDIT_LEAST:
            now_ms = at_ms + span_ms * (1 - min(1.0, credit / capacity)) if capacity else at_ms
            waiting = self._next(now_ms)
            if waiting is None:
                credit = 0.0
                break
            head = waiting[0]
            count = min(head.rows, max(1, math.ceil(credit / head.row_bytes - _CREDIT_LEAST)))
            credit -= count * head.row_bytes
            head.outcome.sent += count
            head.outcome.waited_ms += count * max(0.0, now_ms - head.at_ms)
            head.rows -= count
            if not head.rows:
                waiting.popleft()
        self._credit = credit

    def _next(self, now_ms: float) -> deque[_Rows] | None:
        """Return the rows that leave next, after those that do not any more."""
        for queue in self._order:
            while waiting := queue.oldest():
                head = waiting[0]
                if head.expires_ms <= now_ms:
                    head.outcome.expired += head.rows
                elif head.fresh_until_ms <= now_ms and waiting is queue.own:
                    self._demote(head)
                else:
                    return waiting
                waiting.popleft()
        return None

    def _demote(self, rows: _Rows) -> None:
        rows.fresh_until_ms = NEVER_MS
        self._queue(rows.fallback).demoted.append(rows)

    def _remove(self, routes: tuple[str, ...], count: int) -> None:
        """Remove rows as in the record: the first ones of these routes that still wait."""
        outcome = self.outcomes[routes]
        for queue in self._order:
            for waiting in (queue.own, queue.demoted):
                for head in waiting:
                    if head.outcome is outcome and head.rows:
                        taken = min(count, head.rows)
                        head.rows -= taken
                        outcome.removed += taken
                        count -= taken
                        if not count:
                            break
                while waiting and not waiting[0].rows:
                    waiting.popleft()
                if not count:
                    return

    def _end(self) -> None:
        for queue in self._order:
            for head in (*queue.own, *queue.demoted):
                if head.expires_ms <= self._day.end_ms:
                    head.outcome.expired += head.rows
                else:
                    head.outcome.waiting += head.rows
