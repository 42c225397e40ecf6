"""How rows are treated: as they were, or under a scenario, by the rules of routes.

Pure Python. Of the routes that led a row to its endpoint that with the lowest priority wins, then
the one with the longest time to live, then the first by name. A time to live that the sender
shortened stays as short.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from analytics import schemas
from analytics.what_if.queues import Treatment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from analytics.what_if.recorded import Cohort
    from analytics.what_if.scenarios import RouteChange, Scenario


class RouteTable:
    """The routes of one hub: those of its journal, else what its rows show of them.

    Args:
        entries: The table as its line has it, empty = the journal has none.
        endpoint: Whose routes.
        cohorts: Rows of the endpoint, in the order in which the first of them came.
    """

    def __init__(
        self, entries: Iterable[dict[str, Any]], endpoint: str, cohorts: Iterable[Cohort]
    ) -> None:
        self._routes: dict[str, Treatment] = {}
        for entry in entries:
            if entry.get("endpoint") == endpoint:
                self._routes[entry["name"]] = _treatment(entry)
        for cohort in cohorts:
            name = cohort.routes[0] if cohort.routes else ""
            known = self._routes.get(name)
            if known is None:
                self._routes[name] = Treatment(cohort.priority, cohort.ttl_ms)
            elif _length(known.ttl_ms) < _length(cohort.ttl_ms):
                self._routes[name] = known._replace(ttl_ms=cohort.ttl_ms)

    def under(self, scenario: Scenario | None) -> Callable[[Cohort], Treatment]:
        """Return what treats rows as a scenario has it, None = as they were stored."""
        return lambda cohort: self._treat(cohort, scenario)

    def _treat(self, cohort: Cohort, scenario: Scenario | None) -> Treatment:
        stored = Treatment(cohort.priority, cohort.ttl_ms)
        if not cohort.routes:
            return stored
        own = self._routes[cohort.routes[0]]
        if own.priority == cohort.priority:
            stored = stored._replace(recency_ms=own.recency_ms, fallback=own.fallback)
        changes = {} if scenario is None else scenario.routes
        if not any(name in changes for name in cohort.routes):
            return stored
        # Under another manifest than today's table the winner has the priority it was stored with.
        routes = {**self._routes, cohort.routes[0]: own._replace(priority=cohort.priority)}
        found = [
            (name, _changed(routes[name], changes.get(name)))
            for name in cohort.routes
            if name in routes
        ]
        _, best = min(found, key=lambda each: (each[1].priority, -_length(each[1].ttl_ms), each[0]))
        is_shortened = _length(cohort.ttl_ms) < _length(own.ttl_ms)
        if is_shortened and _length(cohort.ttl_ms) < _length(best.ttl_ms):
            return best._replace(ttl_ms=cohort.ttl_ms)
        return best


def _treatment(entry: dict[str, Any]) -> Treatment:
    seconds = entry.get("recency_s")
    return Treatment(
        entry.get("priority", schemas.DEFAULT_PRIORITY),
        entry.get("ttl_ms"),
        None if seconds is None else seconds * 1000,
        entry.get("fallback_priority", schemas.DEFAULT_PRIORITY),
    )


def _changed(was: Treatment, change: RouteChange | None) -> Treatment:
    if change is None:
        return was
    if change.priority is not None:
        was = was._replace(priority=change.priority)
    if change.ttl_ms is not None:
        was = was._replace(ttl_ms=change.ttl_ms)
    if change.recency_ms is not None:
        was = was._replace(recency_ms=change.recency_ms, fallback=change.fallback)
    return was


def _length(ttl_ms: int | None) -> float:
    return math.inf if ttl_ms is None else ttl_ms
