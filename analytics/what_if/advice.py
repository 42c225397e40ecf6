"""What to change: a grid of scenarios for the worst routes, and what each answer comes to.

Owns the grid and the choice. Invariant: only answers that could be told count.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from analytics import schemas
from analytics.what_if.answers import TOLD
from analytics.what_if.scenarios import RouteChange, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

ROUTES_MAX: Final = 3
"""The routes of which most rows expired."""
_CHANGES: Final = ((1.5, 0), (2.0, 0), (4.0, 0), (1.0, 1), (1.0, 3), (2.0, 1))
"""How much longer the time to live is, and by how many priorities a route becomes better; small
changes first."""
_WORST: Final = 9
_MINUTE_S: Final = 60


def grid(lines: DataFrame) -> list[Scenario]:
    """Return scenarios for the routes of which most rows expired.

    Args:
        lines: Good lines without copies.
    """
    expired = lines.where((F.col("event") == "expired") & (F.col("ttl_ms") > 0))
    worst = (
        expired.where(F.col("route").isNotNull())
        .groupBy("route")
        .agg(
            F.sum("rows").alias("rows"),
            F.max_by("priority", "rows").alias("priority"),
            # The route's: that of a row may be shorter, where its sender wanted it so.
            F.max("ttl_ms").alias("ttl_ms"),
        )
        .orderBy(F.col("rows").desc(), "route")
        .limit(ROUTES_MAX)
        .collect()
    )
    return [
        scenario
        for row in worst
        for scenario in _of_route(row["route"], row["priority"], round(row["ttl_ms"] / 1000))
    ]


def _of_route(route: str, priority: int, ttl_s: int) -> Iterator[Scenario]:
    place = min(priority, _WORST + 1)
    for factor, step in _CHANGES:
        longer_s, better = round(ttl_s * factor), place - step
        if better < 0 or (factor > 1 and longer_s == ttl_s):
            continue
        parts = [f"time to live {_span(ttl_s)} to {_span(longer_s)}"] if factor > 1 else []
        parts += [f"priority {_shown(priority)} to {better}"] if step else []
        change = RouteChange(
            priority=better if step else None, ttl_ms=longer_s * 1000 if factor > 1 else None
        )
        yield Scenario(name=f"route {route}: {', '.join(parts)}", routes={route: change})


def effects(table: DataFrame, scenarios: Sequence[Scenario]) -> list[dict[str, Any]]:
    """Add up what each scenario comes to over all hubs.

    Args:
        table: Answers.
        scenarios: In the order of the result.

    Returns:
        Per scenario its name; `arrived`, rows sent in addition; `of`, rows of the same priorities
        that were not sent; `costs`, rows that are not sent any more by priority; `net`, the
        difference; and how many `hubs` it was told for and how many `untold`.
    """
    is_told = F.col("answer") == TOLD
    sums = table.groupBy("scenario", "priority").agg(
        F.sum(F.when(is_told, F.col("sent_rows") - F.col("was_sent_rows"))).alias("more"),
        F.sum(F.when(is_told, F.col("came_rows") - F.col("was_sent_rows"))).alias("unsent"),
    )
    by_name: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in sums.orderBy("priority").collect():
        by_name[row["scenario"]].append((row["priority"], row["more"] or 0, row["unsent"] or 0))
    per_hub = table.groupBy("scenario", "hub").agg(F.min(is_told.cast("int")).alias("told"))
    hubs = {
        row["scenario"]: (row["hubs"], row["told"])
        for row in per_hub.groupBy("scenario")
        .agg(F.count(F.lit(1)).alias("hubs"), F.sum("told").alias("told"))
        .collect()
    }
    found = []
    for scenario in scenarios:
        parts = by_name[scenario.name]
        count, told = hubs.get(scenario.name, (0, 0))
        arrived = sum(more for _, more, _ in parts if more > 0)
        costs = {_shown(priority): -more for priority, more, _ in parts if more < 0}
        found.append(
            {
                "scenario": scenario.name,
                "arrived": arrived,
                "of": sum(unsent for _, more, unsent in parts if more > 0),
                "costs": costs,
                "net": arrived - sum(costs.values()),
                "hubs": told,
                "untold": count - told,
            }
        )
    return found


def best(found: Sequence[dict[str, Any]], scenarios: Sequence[Scenario]) -> Scenario | None:
    """Return the scenario that lets most rows arrive, the smallest change of those; None = none."""
    gains = [effect["net"] for effect in found]
    most = max(gains, default=0)
    return scenarios[gains.index(most)] if most > 0 else None


def _shown(priority: int) -> str:
    return "default" if priority == schemas.DEFAULT_PRIORITY else str(priority)


def _span(seconds: int) -> str:
    minutes, rest = divmod(seconds, _MINUTE_S)
    return f"{seconds} s" if rest or not minutes else f"{minutes} min"
