"""What the pages show, asked of the tables: one query each, for the fleet and every hub at once.

Each record has a `scope`: the hub whose page it is for, null for the page of the fleet. Invariant:
what is collected of a scope is bounded by its queues, whatever the number of devices or rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.balance import IN_FLOWS, OUT_FLOWS, UNITS
from analytics.transforms.waiting import percentiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

Record = dict[str, Any]

TOP: Final = 15
NAMED_MAX: Final = 3
BARS_PER_LANE_MAX: Final = 120
KEYS_MAX: Final = 200
"""Endpoints and priorities are few, but their names come from outside."""

FLOWS: Final = tuple(
    f"{flow}_{unit}" for flow in (*IN_FLOWS, *OUT_FLOWS, "difference") for unit in UNITS
)

_PARTS: Final = ("waited_ms", *(f"{cause}_ms" for cause in schemas.CAUSES))

_EXPIRED: Final = {
    "causes": ("hour", "cause"),
    "spent": ("endpoint", "priority"),
    "routes": ("route", "endpoint", "priority"),
    "devices": ("hub", "device"),
    "hubs_of_queues": ("endpoint", "priority", "hub"),
}
"""What expired rows are summed by."""


def scoped(table: DataFrame, *, by_hub: bool) -> DataFrame:
    """Return each row once for the fleet and, with `by_hub`, once more for its hub."""
    scopes = [F.lit(None).cast("string"), *([F.col("hub")] if by_hub else [])]
    return table.withColumn("scope", F.explode(F.array(*scopes)))


def hubs(balanced: DataFrame) -> list[Record]:
    """Sum up the equation of each hub; they are as many as there are hubs."""
    sums = balanced.groupBy("hub").agg(
        F.first("state").alias("state"), *(F.sum(name).alias(name) for name in FLOWS)
    )
    return _collect(sums)


def whole(table: DataFrame) -> list[Record]:
    """Return a table that has no more rows than there are queues, kinds aside."""
    return _collect(table)


def waiting(backlog: DataFrame) -> list[Record]:
    """Sum up rows that wait by priority and slot."""
    return _collect(backlog.groupBy("scope", "priority", "slot").agg(F.sum("rows").alias("rows")))


def waits(waiting_histogram: DataFrame) -> list[Record]:
    """Return the percentiles of waits over all hubs, by endpoint and priority."""
    queue = ("endpoint", "priority")
    return _collect(percentiles(waiting_histogram, queue).orderBy(*queue).limit(KEYS_MAX))


def windows(starvation_windows: DataFrame) -> list[Record]:
    """Return the longest windows of each queue; short ones would not be seen."""
    return _first(
        starvation_windows, "length_ms", "start", by=schemas.QUEUE, limit=BARS_PER_LANE_MAX
    )


def losses(table: DataFrame) -> list[Record]:
    """Sum up other losses by event and reason, the largest of each scope."""
    key = ("event", "reason")
    sums = table.groupBy("scope", *key).agg(*(F.sum(unit).alias(unit) for unit in UNITS))
    return _first(sums, "rows", *key, by=("scope",), limit=2 * TOP)


def unserved(table: DataFrame) -> list[Record]:
    """Return the endpoints of each scope that nothing served for longest."""
    return _first(table, "length_ms", "hub", "endpoint", by=("scope",), limit=TOP)


def expired(expiry: DataFrame) -> list[Record]:
    """Sum up expired rows by all that the pages show them by.

    Returns:
        Records of the kinds of `_EXPIRED`, named by `kind`: the largest of each, in this order.
        `among` is their number; `devices`, `most` and `least` of how many devices in all rows
        expired, and between which numbers each.
    """
    key = ("hub", "endpoint", "priority", "route", "device", "cause", "hour")
    sets = [[F.col(name) for name in ("scope", *names)] for names in _EXPIRED.values()]
    sums = expiry.groupingSets(sets, "scope", *key).agg(
        _kind().alias("kind"), *(F.sum(name).alias(name) for name in (*UNITS, *_PARTS))
    )
    of_queue = F.when(F.col("kind") == "hubs_of_queues", F.struct("endpoint", "priority"))
    all_of_kind = Window.partitionBy("scope", "kind", of_queue)
    of_device = F.when(F.col("device").isNotNull(), F.col("rows"))
    placed = sums.select(
        "*",
        F.row_number().over(all_of_kind.orderBy(F.col("rows").desc(), *key)).alias("place"),
        F.count(F.lit(1)).over(all_of_kind).alias("among"),
        F.count(of_device).over(all_of_kind).alias("devices"),
        F.coalesce(F.max(of_device).over(all_of_kind), F.lit(0)).alias("most"),
        F.coalesce(F.min(of_device).over(all_of_kind), F.lit(0)).alias("least"),
    )
    most = F.when(F.col("kind") == "causes", KEYS_MAX).when(
        F.col("kind") == "hubs_of_queues", NAMED_MAX
    )
    return _in_place(placed.where(F.col("place") <= F.coalesce(most, F.lit(TOP))))


def _kind() -> Column:
    """Name what a sum is by: the first of its columns that no earlier kind has."""
    of = F.when(F.grouping("hour") == 0, "causes").when(F.grouping("route") == 0, "routes")
    of = of.when(F.grouping("device") == 0, "devices")
    return of.when(F.grouping("hub") == 0, "hubs_of_queues").otherwise("spent")


def _first(table: DataFrame, value: str, *ties: str, by: Sequence[str], limit: int) -> list[Record]:
    """Return the rows of each group that have the largest values."""
    order = Window.partitionBy(*by).orderBy(F.col(value).desc(), *ties)
    placed = table.withColumn("place", F.row_number().over(order))
    return _in_place(placed.where(F.col("place") <= limit))


def _in_place(placed: DataFrame) -> list[Record]:
    return sorted(_collect(placed), key=lambda row: row["place"])


def _collect(frame: DataFrame) -> list[Record]:
    return [row.asDict() for row in frame.collect()]
