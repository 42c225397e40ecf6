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

    from analytics.what_if.recorded import Arrival
    from analytics.what_if.scenarios import RouteChange, Scenario


class RouteTable:
    """The routes of one hub: those of its journal, else what its rows show of them.

    Args:
        entries: The table as its line has it, empty = the journal has none.
        endpoint: Whose routes.
        arrivals: Rows of the endpoint.
    """

    def __init__(
        self, entries: Iterable[dict[str, Any]], endpoint: str, arrivals: Iterable[Arrival]
    ) -> None:
        self._routes: dict[str, Treatment] = {}
        for entry in entries:
            if entry.get("endpoint") == endpoint:
                self._routes[entry["name"]] = _treatment(entry)
        for arrival in arrivals:
            name = arrival.routes[0] if arrival.routes else ""
            known = self._routes.get(name)
            if known is None:
                self._routes[name] = Treatment(arrival.priority, arrival.ttl_ms)
            elif _length(known.ttl_ms) < _length(arrival.ttl_ms):
                self._routes[name] = known._replace(ttl_ms=arrival.ttl_ms)

    def as_it_was(self) -> Callable[[Arrival], Treatment]:
        """Return what treats rows as they were stored."""
        return self.under(None)

    def under(self, scenario: Scenario | None) -> Callable[[Arrival], Treatment]:
        """Return what treats rows as a scenario has it."""
        known: dict[tuple[tuple[str, ...], int, int | None], Treatment] = {}

        def treat(arrival: Arrival) -> Treatment:
            key = (arrival.routes, arrival.priority, arrival.ttl_ms)
            treatment = known.get(key)
            if treatment is None:
                treatment = known[key] = self._treat(arrival, scenario)
            return treatment

        return treat

    def _treat(self, arrival: Arrival, scenario: Scenario | None) -> Treatment:
        stored = Treatment(arrival.priority, arrival.ttl_ms)
        if not arrival.routes:
            return stored
        own = self._routes[arrival.routes[0]]
        if own.priority == arrival.priority:
            stored = stored._replace(recency_ms=own.recency_ms, fallback=own.fallback)
        changes = {} if scenario is None else scenario.routes
        if not any(name in changes for name in arrival.routes):
            return stored
        # Under another manifest than today's table the winner has the priority it was stored with.
        routes = {**self._routes, arrival.routes[0]: own._replace(priority=arrival.priority)}
        found = [
            (name, _changed(routes[name], changes.get(name)))
            for name in arrival.routes
            if name in routes
        ]
        _, best = min(found, key=lambda each: (each[1].priority, -_length(each[1].ttl_ms), each[0]))
        is_shortened = _length(arrival.ttl_ms) < _length(own.ttl_ms)
        if is_shortened and _length(arrival.ttl_ms) < _length(best.ttl_ms):
            return best._replace(ttl_ms=arrival.ttl_ms)
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
