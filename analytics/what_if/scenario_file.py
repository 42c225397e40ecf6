"""Reads a file of scenarios.

Owns the file's form and its errors; see docs/reference/report.md.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from analytics import schemas
from analytics.errors import InputError
from analytics.files import literal
from analytics.what_if.limits import OVERFLOWS
from analytics.what_if.scenarios import RouteChange, Scenario
from analytics.what_if.windows import ALWAYS, DayWindows, windows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import SparkSession

    from analytics.files import Files

SCENARIOS_MAX: Final = 100
_PRIORITY_MAX: Final = 9
_SECONDS_MAX: Final = 2**31 - 1
_FACTOR_MIN: Final = 0.01
_FACTOR_MAX: Final = 100.0
_TIME: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_MINUTE_MS: Final = 60_000
_OPENS_MAX: Final = 1440
_OPEN_FOR_S: Final = 600
_DAY_S: Final = schemas.DAY_MS // 1000
_LIMITS: Final = {
    "rowsMax": "rows_max",
    "bytesMax": "bytes_max",
    "queueRowsMax": "queue_rows_max",
    "queueBytesMax": "queue_bytes_max",
}
_LIMIT_MAX: Final = 2**48


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
        InputError: It is wrong; names the place, and what it should be.
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
        members = self.members(value, path, ("name", "routes", "endpoints", "limits"))
        name = members.get("name")
        if not isinstance(name, str) or not name.strip():
            self.fail(path, "has no name; write one, such as 'raw for 35 min'")
        routes = self.members(members.get("routes", {}), f"{path}.routes")
        endpoints = self.members(members.get("endpoints", {}), f"{path}.endpoints")
        limits = self._limits(members.get("limits", {}), f"{path}.limits")
        if not routes and not endpoints and not limits:
            self.fail(path, "changes nothing; name routes, endpoints or limits")
        links = {
            endpoint: self._link(change, f"{path}.endpoints.{endpoint}")
            for endpoint, change in endpoints.items()
        }
        return Scenario(
            name=name,
            routes={
                route: self._route(change, f"{path}.routes.{route}")
                for route, change in routes.items()
            },
            factors={name: factor for name, (factor, _) in links.items() if factor != 1},
            windows={name: found for name, (_, found) in links.items() if found is not None},
            limits=limits,
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

    def _link(self, value: Any, path: str) -> tuple[float, DayWindows | None]:
        known = ("linkFactor", "openAt", "openForSecs", "urgentPriority")
        members = self.members(value, path, known)
        if "openAt" not in members and members.keys() - {"linkFactor"}:
            self.fail(path, "openForSecs and urgentPriority need openAt, a list of times of day")
        if not members:
            self.fail(path, "changes nothing; name linkFactor or openAt")
        factor = members.get("linkFactor", 1)
        if (
            isinstance(factor, bool)
            or not isinstance(factor, int | float)
            or not _FACTOR_MIN <= factor <= _FACTOR_MAX
        ):
            self.fail(path, f"want linkFactor, a number from {_FACTOR_MIN} to {_FACTOR_MAX:.0f}")
        return float(factor), self._windows(members, path) if "openAt" in members else None

    def _windows(self, members: Mapping[str, Any], path: str) -> DayWindows:
        times = members["openAt"]
        if not isinstance(times, list) or len(times) > _OPENS_MAX:
            self.fail(f"{path}.openAt", "want a list of times of day in UTC, such as 06:00")
        found = [_TIME.fullmatch(time) if isinstance(time, str) else None for time in times]
        opens_ms = [(int(each[1]) * 60 + int(each[2])) * _MINUTE_MS for each in found if each]
        if len(opens_ms) < len(times):
            wrong = times[found.index(None)]
            self.fail(f"{path}.openAt", f"{wrong!r}: want a time of day in UTC, such as 06:00")
        seconds, urgent = members.get("openForSecs", _OPEN_FOR_S), members.get("urgentPriority", 0)
        open_for_s = self._number(seconds, f"{path}.openForSecs", 1, _DAY_S)
        urgent = self._number(urgent, f"{path}.urgentPriority", -1, _PRIORITY_MAX)
        return windows(opens_ms, open_for_s * 1000, urgent) if times else ALWAYS

    def _limits(self, value: Any, path: str) -> dict[str, int | str]:
        members = self.members(value, path, (*_LIMITS, "overflow"))
        found: dict[str, int | str] = {
            _LIMITS[name]: self._number(number, f"{path}.{name}", 0, _LIMIT_MAX)
            for name, number in members.items()
            if name != "overflow"
        }
        if "overflow" in members:
            overflow = members["overflow"]
            if overflow not in OVERFLOWS:
                self.fail(f"{path}.overflow", f"{overflow!r}: want {', '.join(OVERFLOWS)}")
            found["overflow"] = overflow
        return found

    def _priority(self, value: Any, path: str) -> int:
        if value == schemas.DEFAULT_PRIORITY:
            return schemas.DEFAULT_PRIORITY
        return self._number(value, path, 0, _PRIORITY_MAX)

    def _number(self, value: Any, path: str, least: int, most: int = _SECONDS_MAX) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(path, f"{value!r}: want a whole number from {least} to {most}")
        return value
