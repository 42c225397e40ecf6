"""One day of one endpoint under one scenario, event by event.

Pure Python. Owns the order of events. Invariant: every row that came is sent, expired, removed or
waits at the end. The rules are the pump's: the best priority first, a queue in the order of its
rows, none whose time has ended, and as many bytes as the link could take.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from analytics.what_if.limits import DROP_NEWEST
from analytics.what_if.queues import NEVER_MS, Lane, Outcome, SimulatedQueue, WaitingRows
from analytics.what_if.windows import LINGER_MS

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from analytics.what_if.limits import SimulatedLimits
    from analytics.what_if.queues import Treatment
    from analytics.what_if.recorded import Arrival, Cohort, EndpointDay
    from analytics.what_if.windows import DayWindows

_CREDIT_LEAST: Final = 1e-6
"""Less than this of a byte is rounding."""
_OPEN_STEP_MS: Final = 1000
"""How often it is looked whether urgent rows still wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRules:
    """What is different from the day as it was.

    Attributes:
        factor: How much faster the link is.
        windows: When the link is open, None = as it was.
        limits: Of queues, None = rows give way as they did.
    """

    factor: float = 1.0
    windows: DayWindows | None = None
    limits: SimulatedLimits | None = None


AS_IT_WAS: Final = ScenarioRules()


class Simulation:
    """The run of one scenario.

    Args:
        day: As it was recorded.
        treat: Returns how the rows of a cohort are treated.
        rules: What else is different.

    Attributes:
        outcomes: By routes.
    """

    def __init__(
        self,
        day: EndpointDay,
        treat: Callable[[Cohort], Treatment],
        rules: ScenarioRules = AS_IT_WAS,
    ) -> None:
        self.outcomes: dict[tuple[str, ...], Outcome] = defaultdict(Outcome)
        self._day = day
        self._treat = treat
        self._rules = rules
        self._lanes: dict[Cohort, Lane] = {}
        self._queues: dict[int, SimulatedQueue] = {}
        self._order: list[SimulatedQueue] = []
        self._credit = 0.0
        self._open_until_ms = 0

    def run(self) -> dict[tuple[str, ...], Outcome]:
        """Run through the day and return what became of the rows."""
        day, limits = self._day, self._rules.limits
        for arrival in day.initial:
            self._join(arrival, None)
        step_ms = day.step_ms
        ended_ms, rest = 0, 0.0
        for step in day.steps:
            at_ms = step.at_ms
            if ended_ms < at_ms and ended_ms:
                self._pass(ended_ms, at_ms - ended_ms, rest * (at_ms - ended_ms) / 1000)
            for arrival in step.arrivals:
                self._join(arrival, limits)
            for routes, rows in step.removed:
                self._remove(routes, rows)
            if limits is None:
                for routes, rows in step.dropped:
                    self._remove(routes, rows)
            capacity, after = step.capacity, step.rest
            if self._rules.windows is not None and day.had_windows:
                # The link was down because it was not to be open.
                capacity, after = max(capacity, step.usual * step_ms / 1000), step.usual
            self._pass(at_ms, step_ms, capacity)
            ended_ms, rest = at_ms + step_ms, after
        left_ms = day.end_ms - ended_ms
        if left_ms > 0 and ended_ms:
            self._pass(ended_ms, left_ms, rest * left_ms / 1000)
        self._end()
        return self.outcomes

    def _join(self, arrival: Arrival, limits: SimulatedLimits | None) -> None:
        lane = self._lanes.get(arrival.cohort) or self._lane(arrival.cohort)
        rows = WaitingRows(arrival, lane)
        queue = lane.queue
        if limits is None:
            queue.join(rows)
            return
        if limits.overflow == DROP_NEWEST:
            room = limits.admitted(self._queues, queue, rows.row_bytes)
            rows.rows = int(min(rows.rows, room))
            rows.outcome.removed += arrival.rows - rows.rows
            if rows.rows:
                queue.join(rows)
            return
        queue.join(rows)
        limits.make_room(self._queues, queue, lambda each: self._drop_expired(each, arrival.at_ms))

    def _lane(self, cohort: Cohort) -> Lane:
        treatment = self._treat(cohort)
        queue = self._queue(treatment.priority)
        if treatment.recency_ms is not None:
            # So that it has its place before rows come into it from another queue.
            self._queue(treatment.fallback)
        lane = Lane(queue, treatment, self.outcomes[cohort.routes])
        self._lanes[cohort] = lane
        return lane

    def _queue(self, priority: int) -> SimulatedQueue:
        queue = self._queues.get(priority)
        if queue is None:
            queue = self._queues[priority] = SimulatedQueue(priority)
            self._order = [self._queues[number] for number in sorted(self._queues)]
        return queue

    def _pass(self, at_ms: int, span_ms: int, capacity: float) -> None:
        """Run through a time in which so many bytes could have left."""
        capacity *= self._rules.factor
        windows = self._rules.windows
        if windows is None:
            self._serve(at_ms, span_ms, capacity)
            return
        midnight_ms = self._day.midnight_ms
        for begin_ms, length_ms, is_open in windows.parts(at_ms - midnight_ms, span_ms):
            share = capacity * length_ms / span_ms
            if is_open:
                self._serve(midnight_ms + begin_ms, length_ms, share)
            else:
                self._serve_urgent(midnight_ms + begin_ms, length_ms, share, windows.urgent)

    def _serve_urgent(self, at_ms: int, span_ms: int, capacity: float, urgent: int) -> None:
        """Send outside of a window as long as an urgent row waits, and a while more."""
        end_ms = at_ms + span_ms
        while at_ms < end_ms:
            waiting = self._next(at_ms)
            if waiting is not None and waiting[0].priority <= urgent:
                self._open_until_ms = at_ms + LINGER_MS
            if at_ms >= self._open_until_ms:
                # Nothing more comes within the span.
                self._credit = 0.0
                return
            length_ms = min(_OPEN_STEP_MS, end_ms - at_ms)
            self._serve(at_ms, length_ms, capacity * length_ms / span_ms)
            at_ms += length_ms

    def _serve(self, at_ms: int, span_ms: int, capacity: float) -> None:
        """Send as many bytes as the link could take; what it could take and did not is lost."""
        credit = self._credit + capacity
        while credit > _CREDIT_LEAST:
            now_ms: float = at_ms
            if capacity > credit:
                now_ms += span_ms * (1 - credit / capacity)
            found = self._next(now_ms)
            if found is None:
                credit = 0.0
                break
            queue, waiting = found
            head = waiting[0]
            count = head.rows
            most = math.ceil(credit / head.row_bytes - _CREDIT_LEAST)
            if most < count:
                count = most or 1
            credit -= count * head.row_bytes
            outcome = head.outcome
            outcome.sent += count
            if now_ms > head.at_ms:
                outcome.waited_ms += count * (now_ms - head.at_ms)
            queue.take(head, count)
            if not head.rows:
                waiting.popleft()
        self._credit = credit

    def _next(self, now_ms: float) -> tuple[SimulatedQueue, deque[WaitingRows]] | None:
        """Return the rows that leave next, after those that do not any more."""
        for queue in self._order:
            while queue.rows:
                waiting = queue.oldest() if queue.demoted else queue.own
                head = waiting[0]
                if head.expires_ms <= now_ms:
                    head.outcome.expired += head.rows
                    queue.take(head, head.rows)
                elif head.fresh_until_ms <= now_ms and waiting is queue.own:
                    self._demote(queue, head)
                else:
                    return queue, waiting
                waiting.popleft()
        return None

    def _demote(self, queue: SimulatedQueue, head: WaitingRows) -> None:
        count = head.rows
        queue.take(head, count)
        head.rows = count
        head.fresh_until_ms = NEVER_MS
        self._queue(head.fallback).join(head, is_demoted=True)

    @staticmethod
    def _drop_expired(queue: SimulatedQueue, now_ms: int) -> None:
        while (waiting := queue.oldest()) and waiting[0].expires_ms <= now_ms:
            head = waiting.popleft()
            head.outcome.expired += head.rows
            queue.take(head, head.rows)

    def _remove(self, routes: tuple[str, ...], count: int) -> None:
        """Remove rows as in the record: the first ones of these routes that still wait."""
        outcome = self.outcomes[routes]
        for queue in self._order:
            for waiting in (queue.own, queue.demoted):
                for head in waiting:
                    if head.outcome is outcome and head.rows:
                        taken = min(count, head.rows)
                        queue.take(head, taken)
                        outcome.removed += taken
                        count -= taken
                        if not count:
                            break
                while waiting and not waiting[0].rows:
                    waiting.popleft()
                if not queue.rows:
                    waiting.clear()
                if not count:
                    return

    def _end(self) -> None:
        for queue in self._order:
            for head in (*queue.own, *queue.demoted):
                if head.expires_ms <= self._day.end_ms:
                    head.outcome.expired += head.rows
                else:
                    head.outcome.waiting += head.rows
