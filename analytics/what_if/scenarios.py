"""Scenarios: what would have been different, read from a file in the words of manifests.

Owns the file's form and its errors; see docs/reference/report.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from analytics import schemas
from analytics.errors import InputError
from analytics.files import literal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import SparkSession

    from analytics.files import Files

SCENARIOS_MAX: Final = 100
_PRIORITY_MAX: Final = 9
_SECONDS_MAX: Final = 2**31 - 1
_FACTOR_MIN: Final = 0.01
_FACTOR_MAX: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """What is different of one route; None = as it was.

    Attributes:
        priority: Another priority.
        ttl_ms: Another time to live.
        recency_ms: Rows younger than this wait in the route's priority, older ones in `fallback`.
        fallback: The priority of older rows.
    """

    priority: int | None = None
    ttl_ms: int | None = None
    recency_ms: int | None = None
    fallback: int = schemas.DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question.

    Attributes:
        name: What answers are named by.
        routes: Changed routes by name.
        factors: How much faster the link is, by endpoint; less than 1 = slower.
    """

    name: str
    routes: Mapping[str, RouteChange] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)

    def fragment(self) -> dict[str, Any]:
        """Return the members of the manifest's routes that differ."""
        return {name: _members(change) for name, change in self.routes.items()}


def read_scenarios(spark: SparkSession, files: Files, place: str) -> list[Scenario]:
    """Read a file of scenarios.

    Raises:
        InputError: It is not there, or is wrong.
    """
    if not files.exists(place):
        raise InputError(f"--what-if {place}: no such file")
    row = spark.read.text([literal(place)], wholetext=True).first()
    return parse_scenarios("" if row is None else row["value"], place)


def parse_scenarios(text: str, place: str) -> list[Scenario]:
    """Parse a file of scenarios.

    Args:
        text: Its content.
        place: Its name, for errors.

    Raises:
        InputError: It is wrong; says where, and what it should be.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(f"{place}: no JSON: {error}") from error
    reader = _Reader(place)
    members = reader.members(document, "", ("scenarios",))
    listed = members.get("scenarios")
    if not isinstance(listed, list) or not 0 < len(listed) <= SCENARIOS_MAX:
        reader.fail("scenarios", f"want a list of 1 to {SCENARIOS_MAX} scenarios")
    scenarios = [
        reader.scenario(entry, f"scenarios[{number}]") for number, entry in enumerate(listed)
    ]
    names = [scenario.name for scenario in scenarios]
    for name in names:
        if names.count(name) > 1:
            reader.fail("scenarios", f"{name!r} is there twice; give each a name of its own")
    return scenarios


class _Reader:
    """Reads one file; each error has its place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def fail(self, path: str, wrong: str) -> NoReturn:
        """Raise the error of one place."""
        raise InputError(f"{self._place}: {path}: {wrong}" if path else f"{self._place}: {wrong}")

    def members(self, value: Any, path: str, known: Collection[str] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(path, "want an object")
        for name in value:
            if known and name not in known:
                self.fail(path, f"{name!r} is not known; known are {', '.join(known)}")
        return value

    def scenario(self, value: Any, path: str) -> Scenario:
        members = self.members(value, path, ("name", "routes", "endpoints"))
        name = members.get("name")
        if not isinstance(name, str) or not name.strip():
            self.fail(path, "has no name; write one, such as 'raw for 35 min'")
        routes = self.members(members.get("routes", {}), f"{path}.routes")
        endpoints = self.members(members.get("endpoints", {}), f"{path}.endpoints")
        if not routes and not endpoints:
            self.fail(path, "changes nothing; name routes or endpoints")
        return Scenario(
            name=name,
            routes={
                route: self._route(change, f"{path}.routes.{route}")
                for route, change in routes.items()
            },
            factors={
                endpoint: self._factor(change, f"{path}.endpoints.{endpoint}")
                for endpoint, change in endpoints.items()
            },
        )

    def _route(self, value: Any, path: str) -> RouteChange:
        members = self.members(value, path, ("priority", "timeToLiveSecs", "Recency"))
        if not members:
            self.fail(path, "changes nothing; name priority, timeToLiveSecs or Recency")
        recency = members.get("Recency")
        seconds, fallback = None, schemas.DEFAULT_PRIORITY
        if recency is not None:
            rule = self.members(recency, f"{path}.Recency", ("Seconds", "FallbackPriority"))
            seconds = self._number(rule.get("Seconds"), f"{path}.Recency.Seconds", 1)
            if "FallbackPriority" in rule:
                fallback = self._priority(rule["FallbackPriority"], f"{path}.Recency")
        ttl_s = members.get("timeToLiveSecs")
        if ttl_s is not None:
            ttl_s = self._number(ttl_s, f"{path}.timeToLiveSecs", 1)
        priority = members.get("priority")
        return RouteChange(
            priority=None if priority is None else self._priority(priority, f"{path}.priority"),
            ttl_ms=None if ttl_s is None else ttl_s * 1000,
            recency_ms=None if seconds is None else seconds * 1000,
            fallback=fallback,
        )

    def _factor(self, value: Any, path: str) -> float:
        members = self.members(value, path, ("linkFactor",))
        factor = members.get("linkFactor")
        if (
            isinstance(factor, bool)
            or not isinstance(factor, int | float)
            or not _FACTOR_MIN <= factor <= _FACTOR_MAX
        ):
            self.fail(path, f"want linkFactor, a number from {_FACTOR_MIN} to {_FACTOR_MAX:.0f}")
        return float(factor)

    def _priority(self, value: Any, path: str) -> int:
        if value == schemas.DEFAULT_PRIORITY:
            return schemas.DEFAULT_PRIORITY
        return self._number(value, path, 0, _PRIORITY_MAX)

    def _number(self, value: Any, path: str, least: int, most: int = _SECONDS_MAX) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(path, f"{value!r}: want a whole number from {least} to {most}")
        return value


def _members(change: RouteChange) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if change.priority is not None:
        members["priority"] = change.priority
    if change.ttl_ms is not None:
        members["timeToLiveSecs"] = change.ttl_ms // 1000
    if change.recency_ms is not None:
        members["Recency"] = {
            "Seconds": change.recency_ms // 1000,
            "FallbackPriority": change.fallback,
        }
    return members
