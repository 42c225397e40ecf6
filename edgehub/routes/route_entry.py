"""One entry of a manifest's routes: a string, or an object with priority and time to live.

Owns the members of a route and their ranges. Faults go to the reader, so that all are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.errors import RouteCompileError
from edgehub.message import (
    BEST_PRIORITY,
    DEFAULT_PRIORITY,
    WORST_EXPLICIT_PRIORITY,
    Priority,
    Recency,
)
from edgehub.routes.query.parser import parse_route
from edgehub.routes.query.text import lone_surrogate_at
from edgehub.routes.spec import RouteRules, RouteSpec

if TYPE_CHECKING:
    from edgehub.routes.members import ManifestReader
    from edgehub.routes.query.syntax import Route

_UINT32_MAX: Final = 2**32 - 1
_ORDERS: Final = ("strict", "skip")
_MEMBERS: Final = (
    "route",
    "priority",
    "timeToLiveSecs",
    "Recency",
    "order",
    "maxAttempts",
    "maxAgeSecs",
)
_RECENCY_MEMBERS: Final = ("Seconds", "FallbackPriority")
_PRIORITY_HINT: Final = "0 is the best; leave it out for the default, which is behind 9"


def read_route(read: ManifestReader, name: str, entry: Any, *, minor: int) -> RouteSpec | None:
    """Check one entry, None = it has faults, or is a blank one of schema 1.0.

    Args:
        read: Collects faults and warnings.
        name: Name of the route.
        entry: String or object.
        minor: Minor number of the schema version; 0 knows strings only.
    """
    return _Entry(read, name).read(entry, minor)


class _Entry:
    def __init__(self, read: ManifestReader, name: str) -> None:
        self._read = read
        self._name = name
        self._path = f"routes.{name}"

    def read(self, entry: Any, minor: int) -> RouteSpec | None:
        if not self._name.strip():
            self._fault("", "a route needs a name")
        if lone_surrogate_at(self._name) is not None:
            self._fault("", "the name holds half a character", r"write no lone \ud800 to \udfff")
        if isinstance(entry, str):
            return None if minor == 0 and not entry.strip() else self._from_string(entry)
        if not isinstance(entry, dict):
            hint = "take the route out to remove it" if entry is None else ""
            shown = self._read.shown(entry)
            self._fault("", f"must be a string or an object, not {shown}", hint)
            return None
        if minor == 0:
            self._fault("", "schema 1.0 knows routes as strings only", 'use "schemaVersion": "1.1"')
        return self._from_object(entry)

    def _from_string(self, text: str) -> RouteSpec | None:
        route = self._parse(text, self._path)
        if route is None:
            return None
        return RouteSpec(name=self._name, path=self._path, route=route)

    def _from_object(self, entry: dict[str, Any]) -> RouteSpec | None:
        self._read.refuse_unknown(entry, _MEMBERS, self._path, route=self._name)
        self._read.refuse_repeated(entry, self._path, route=self._name)
        priority = self._priority(entry, "priority", "priority")
        ttl_ms = self._seconds_ms(entry, "timeToLiveSecs")
        recency = self._recency(entry, priority)
        rules = self._rules(entry)
        text = entry.get("route")
        path = f"{self._path}.route"
        if "route" not in entry:
            self._fault("route", "is missing", 'write "route": "FROM ... INTO ..."')
            return None
        if not isinstance(text, str):
            self._fault("route", f"must be the route string, not {self._read.shown(text)}")
            return None
        route = self._parse(text, path)
        if route is None:
            return None
        return RouteSpec(
            name=self._name,
            path=path,
            route=route,
            priority=DEFAULT_PRIORITY if priority is None else priority,
            ttl_ms=ttl_ms,
            recency=recency,
            rules=rules,
        )

    def _parse(self, text: str, path: str) -> Route | None:
        try:
            route = parse_route(text)
        except RouteCompileError as error:
            self._read.take_route_faults(error.faults, path, self._name)
            return None
        self._read.take_route_faults(route.warnings, path, self._name, warnings=True)
        return route

    def _priority(self, members: dict[str, Any], name: str, path: str) -> Priority | None:
        """Check a priority; absent = the default, None = it is none."""
        value = members.get(name, DEFAULT_PRIORITY)
        explicit = isinstance(value, int) and not isinstance(value, bool)
        if explicit and (
            BEST_PRIORITY <= value <= WORST_EXPLICIT_PRIORITY or value == DEFAULT_PRIORITY
        ):
            return Priority(value)
        shown = self._read.shown(value)
        self._fault(path, f"must be an integer from 0 to 9, not {shown}", _PRIORITY_HINT)
        return None

    def _seconds_ms(self, entry: dict[str, Any], member: str) -> int | None:
        seconds = self._count(entry, member)
        return seconds * 1000 if seconds else None

    def _count(self, entry: dict[str, Any], member: str) -> int | None:
        if member not in entry:
            return None
        path = f"{self._path}.{member}"
        return self._read.integer(entry[member], path, 0, _UINT32_MAX, route=self._name)

    def _rules(self, entry: dict[str, Any]) -> RouteRules:
        order = entry.get("order")
        if "order" in entry and order not in _ORDERS:
            self._fault("order", f'must be "strict" or "skip", not {self._read.shown(order)}')
        return RouteRules(
            order=order,
            max_attempts=self._count(entry, "maxAttempts"),
            max_age_s=self._count(entry, "maxAgeSecs"),
        )

    def _recency(self, entry: dict[str, Any], priority: Priority | None) -> Recency | None:
        if "Recency" not in entry:
            return None
        path = f"{self._path}.Recency"
        members = entry["Recency"]
        if not isinstance(members, dict):
            self._fault("Recency", f"must be an object, not {self._read.shown(members)}")
            return None
        self._read.refuse_unknown(members, _RECENCY_MEMBERS, path, route=self._name)
        self._read.refuse_repeated(members, path, route=self._name)
        seconds = self._read.integer(
            members.get("Seconds"), f"{path}.Seconds", 1, _UINT32_MAX, route=self._name
        )
        fallback = self._priority(members, "FallbackPriority", "Recency.FallbackPriority")
        if priority is not None and fallback is not None:
            self._compare(priority, fallback)
        if seconds is None or fallback is None:
            return None
        return Recency(seconds=seconds, fallback_priority=fallback)

    def _compare(self, priority: Priority, fallback: Priority) -> None:
        member = "Recency.FallbackPriority"
        if fallback < priority:
            self._fault(
                member,
                f"{fallback} is better than the route's own priority {priority}",
                "older messages cannot go first; take the same number or a higher one",
            )
        elif fallback == priority:
            self._read.warn(
                f"{self._path}.{member}",
                "is the route's own priority, so that recency changes nothing",
                route=self._name,
            )

    def _fault(self, member: str, message: str, hint: str = "") -> None:
        path = f"{self._path}.{member}" if member else self._path
        self._read.fault(path, message, hint, route=self._name)
