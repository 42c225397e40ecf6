"""What the scenarios would have made of one hub's day, and how well it can be told.

Pure Python. Each endpoint is first simulated as it was; where that differs from the record by more
than `ERROR_MAX`, the answer is "cannot tell".
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from analytics.what_if.queues import Outcome
from analytics.what_if.recorded import (
    CARRIED,
    END,
    LINK,
    MEASURED_S,
    SETTINGS,
    STEP_MS,
    WAITED,
    Arrival,
    Cohorts,
    EndpointDay,
    row_bytes,
)
from analytics.what_if.recorded_settings import RecordedSettings
from analytics.what_if.simulation import ScenarioRules, Simulation
from analytics.what_if.treatments import RouteTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from analytics.what_if.recorded import Cohort, Parcel
    from analytics.what_if.scenarios import Scenario

ERROR_MAX: Final = 0.05
TOLD: Final = "told"
CANNOT_TELL: Final = "cannot tell"


class Answer(NamedTuple):
    """One row of the table `what_if`; see docs/reference/report.md."""

    scenario: str
    hub: str
    endpoint: str
    priority: int
    route: str
    answer: str
    reason: str
    error: float
    came: int
    sent: int
    expired: int
    waiting: int
    waited_ms: int
    was_sent: int
    was_expired: int
    was_waited_ms: int
    recorded_sent: int
    recorded_expired: int


def answers(
    hub: str, parcels: Iterable[Parcel], scenarios: Sequence[Scenario], step_ms: int = STEP_MS
) -> list[Answer]:
    """Simulate all scenarios on the day of one hub.

    Args:
        hub: Its id.
        parcels: Of all its endpoints, by time.
        scenarios: What to ask.
        step_ms: Length of the steps of parcels.
    """
    known = list(parcels)
    cohorts = Cohorts()
    times = [parcel.at_ms + step_ms for parcel in known if parcel.kind != WAITED]
    in_force = RecordedSettings(known)
    by_endpoint: dict[str, list[Parcel]] = defaultdict(list)
    for parcel in known:
        if parcel.kind not in {SETTINGS, END}:
            by_endpoint[parcel.endpoint].append(parcel)
    everywhere = by_endpoint.pop("", [])
    with_rows = {
        endpoint: own
        for endpoint, own in sorted(by_endpoint.items())
        if any(parcel.kind != LINK for parcel in own)
    }
    found: list[Answer] = []
    for endpoint, own in with_rows.items():
        in_order = sorted(own + everywhere, key=lambda parcel: parcel.at_ms)
        day = _day(in_order, max(times, default=0), step_ms, in_force, endpoint, cohorts)
        is_alone = len(with_rows) == 1
        found += _Endpoint(hub, endpoint, day, in_force, is_alone=is_alone).ask(scenarios)
    return found


def _day(
    parcels: list[Parcel],
    end_ms: int,
    step_ms: int,
    in_force: RecordedSettings,
    endpoint: str,
    cohorts: Cohorts,
) -> EndpointDay:
    waited = [parcel for parcel in parcels if parcel.kind == WAITED and parcel.rows > 0]
    initial = [
        Arrival(
            each.at_ms,
            cohorts[each.priority, each.routes, each.ttl_ms],
            each.rows,
            row_bytes(each),
        )
        for each in waited
    ]
    known: dict[int, int] = defaultdict(int)
    for each in waited:
        known[each.priority] += each.rows
    for carried in (parcel for parcel in parcels if parcel.kind == CARRIED):
        left = carried.rows - known.pop(carried.priority, 0)
        initial += _stayed(carried, left, cohorts[carried.priority, (), None])
    rest = [parcel for parcel in parcels if parcel.kind not in {WAITED, CARRIED}]
    return EndpointDay(
        rest,
        initial,
        end_ms,
        step_ms,
        cohorts,
        midnight_ms=in_force.midnight_ms or 0,
        had_windows=in_force.has_windows(endpoint),
    )


def _stayed(carried: Parcel, left: int, cohort: Cohort) -> Iterator[Arrival]:
    """Return what was carried in and did not leave: the youngest, as queues are left in order."""
    size = row_bytes(carried)
    for age_ms, rows in reversed(json.loads(carried.text or "[]")):
        if left > 0:
            count = min(left, rows)
            yield Arrival(carried.at_ms - age_ms, cohort, count, size)
            left -= count
    if left > 0:
        yield Arrival(carried.at_ms, cohort, left, size)


class _Endpoint:
    """One endpoint's day and its answers."""

    def __init__(
        self,
        hub: str,
        endpoint: str,
        day: EndpointDay,
        in_force: RecordedSettings,
        *,
        is_alone: bool,
    ) -> None:
        self._hub = hub
        self._endpoint = endpoint
        self._day = day
        self._in_force = in_force
        self._is_alone = is_alone
        arrivals = [*day.initial, *(each for step in day.steps for each in step.arrivals)]
        cohorts = dict.fromkeys(arrival.cohort for arrival in arrivals)
        self._table = RouteTable(in_force.routes, endpoint, cohorts)
        self._came = day.came()
        self._was = Simulation(day, self._table.under(None)).run()
        self._errors = self._queue_errors()

    def ask(self, scenarios: Sequence[Scenario]) -> Iterator[Answer]:
        """Simulate the scenarios that concern this endpoint."""
        names = {name for routes in self._came for name in routes}
        for scenario in scenarios:
            rules, doubt = self._rules(scenario)
            if rules != ScenarioRules() or doubt or not names.isdisjoint(scenario.routes):
                would = Simulation(self._day, self._table.under(scenario), rules).run()
                yield from self._compare(scenario, would, doubt)

    def _rules(self, scenario: Scenario) -> tuple[ScenarioRules, str]:
        """Return what is different in a scenario, and why it cannot be told, if so."""
        factor = scenario.factors.get(self._endpoint, 1.0)
        windows = scenario.windows.get(self._endpoint)
        doubt, limits = "", None
        if scenario.limits:
            found = self._in_force.limits(scenario.limits, is_alone=self._is_alone)
            if isinstance(found, str):
                doubt = found
            else:
                limits = found
        if windows is not None and self._in_force.midnight_ms is None:
            doubt = "no state of a link is recorded, so the time of day is not known"
        elif (factor < 1 or windows is not None) and self._day.busy_s < MEASURED_S:
            doubt = "rows hardly ever waited for the link, so its rate is not known"
        return ScenarioRules(factor=factor, windows=windows, limits=limits), doubt

    def _queue_errors(self) -> dict[int, float]:
        """Return by how much of its rows the simulation of each queue differs from the record."""
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        for routes, came in self._came.items():
            total = sums[self._day.priority[routes]]
            was = self._was[routes]
            total[0] += came
            total[1] += was.sent - self._day.sent[routes]
            total[2] += was.expired - self._day.expired[routes]
        return {
            priority: max(abs(sent), abs(expired)) / came
            for priority, (came, sent, expired) in sums.items()
            if came
        }

    def _compare(
        self, scenario: Scenario, would: dict[tuple[str, ...], Outcome], doubt: str
    ) -> Iterator[Answer]:
        by_route: dict[tuple[int, str], list[tuple[str, ...]]] = defaultdict(list)
        for routes in self._came:
            name = routes[0] if routes else ""
            by_route[self._day.priority[routes], name].append(routes)
        for (priority, name), members in sorted(by_route.items()):
            error = self._errors.get(priority, 0.0)
            reason = doubt
            if error > ERROR_MAX:
                reason = f"simulated as it was, {error:.1%} of its rows end differently"
            then = [would.get(routes) or Outcome() for routes in members]
            was = [self._was[routes] for routes in members]
            yield Answer(
                scenario=scenario.name,
                hub=self._hub,
                endpoint=self._endpoint,
                priority=priority,
                route=name,
                answer=CANNOT_TELL if reason else TOLD,
                reason=reason,
                error=round(error, 4),
                came=sum(self._came[routes] for routes in members),
                sent=sum(each.sent for each in then),
                expired=sum(each.expired for each in then),
                waiting=sum(each.waiting for each in then),
                waited_ms=int(sum(each.waited_ms for each in then)),
                was_sent=sum(each.sent for each in was),
                was_expired=sum(each.expired for each in was),
                was_waited_ms=int(sum(each.waited_ms for each in was)),
                recorded_sent=sum(self._day.sent[routes] for routes in members),
                recorded_expired=sum(self._day.expired[routes] for routes in members),
            )
