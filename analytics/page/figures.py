"""The few numbers that the page shows, taken from the tables.

Invariant: every collected frame is bounded, whatever the number of hubs, devices or rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas
from analytics.page.headline import LOST
from analytics.transforms.balance import IN_FLOWS, OUT_FLOWS
from analytics.transforms.waiting import percentiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

Record = dict[str, Any]

TOP: Final = 15
NAMED_MAX: Final = 3
LANES_MAX: Final = 16
BARS_PER_LANE_MAX: Final = 120
KEYS_MAX: Final = 200
"""Endpoints and priorities are few, but their names come from outside."""

_PARTS: Final = tuple(f"{cause}_ms" for cause in schemas.CAUSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bounded sums, as plain records.

    Attributes:
        totals: One record over all hubs.
        hubs: The worst ones, by the share that did not arrive, then by how long queues starved.
        waiting: Rows that wait, by priority and slot.
        percentiles: Waits of sent rows by endpoint and priority.
        causes: Expired rows by hour and cause.
        spent: Expired rows by queue with the parts of their waits, over all hubs.
        routes: Routes whose rows expired most.
        devices: Devices whose rows expired most.
        queues: Queues that were not served for longest, with kind.
        windows: Windows of those queues.
        losses: Other events by reason.
        unserved: Endpoints that nothing served, by hub.
        hubs_of_queues: Hubs of which most rows expired, by queue.
        idle_hubs: Hubs with the most idle windows.
        spread: Of how many devices rows expired, and between which numbers each.
    """

    totals: Record
    hubs: list[Record]
    waiting: list[Record]
    percentiles: list[Record]
    causes: list[Record]
    spent: list[Record]
    routes: list[Record]
    devices: list[Record]
    queues: list[Record]
    windows: list[Record]
    losses: list[Record]
    unserved: list[Record]
    hubs_of_queues: list[Record]
    idle_hubs: list[Record]
    spread: Record


def figures(tables: Mapping[str, DataFrame]) -> Figures:
    """Take the page's numbers from the tables."""
    expired, balanced = tables["expiry"], tables["balance"]
    queue = ("endpoint", "priority")
    hubs = _hubs(balanced, tables["starvation"])
    return Figures(
        totals=_totals(balanced, tables["starvation"]),
        hubs=_top(hubs, "lost_share", "starved_ms", "idle_ms", by=("hub",)),
        waiting=_records(
            tables["backlog"].groupBy("priority", "slot").agg(_sum("rows")), "priority", "slot"
        ),
        percentiles=_records(
            percentiles(tables["waiting_histogram"], queue).limit(KEYS_MAX), *queue
        ),
        causes=_records(expired.groupBy("hour", "cause").agg(_sum("rows")), "hour", "cause"),
        spent=_top(
            expired.groupBy(*queue).agg(
                *(_sum(n) for n in ("rows", "bytes", "waited_ms", *_PARTS))
            ),
            "rows",
            by=queue,
        ),
        routes=_most_expired(expired, "route", "endpoint", "priority"),
        devices=_most_expired(expired, "hub", "device"),
        queues=_top(tables["starvation"], "total_ms", by=(*schemas.QUEUE, "kind"), limit=LANES_MAX),
        windows=_windows(tables),
        losses=_top(
            tables["losses"].groupBy("event", "reason").agg(_sum("rows"), _sum("bytes")),
            "rows",
            by=("event", "reason"),
            limit=2 * TOP,
        ),
        unserved=_top(tables["unserved"], "length_ms", by=("hub", "endpoint")),
        hubs_of_queues=_hubs_of_queues(expired),
        idle_hubs=_top(
            tables["starvation"].where(F.col("kind") == "idle").groupBy("hub").agg(_sum("windows")),
            "windows",
            by=("hub",),
            limit=NAMED_MAX,
        ),
        spread=_spread(expired),
    )


def _totals(balanced: DataFrame, starved: DataFrame) -> Record:
    names = [f"{flow}_{unit}" for flow in (*IN_FLOWS, *OUT_FLOWS) for unit in ("rows", "bytes")]
    counted = balanced.agg(
        F.countDistinct("hub").alias("hubs"),
        F.countDistinct(F.when(F.col("state") == "open", F.col("hub"))).alias("open_hubs"),
        *(_sum(name) for name in (*names, "difference_rows", "difference_bytes")),
    )
    kinds = ("starved", "idle", "held_back")
    windows = starved.agg(
        *(_sum_of(kind, "windows").alias(f"{kind}_windows") for kind in kinds),
        *(_sum_of(kind, "total_ms").alias(f"{kind}_ms") for kind in kinds),
        F.coalesce(F.max(_only("starved", "longest_ms")), F.lit(0)).alias("longest_starved_ms"),
    )
    return {**counted.collect()[0].asDict(), **windows.collect()[0].asDict()}


def _hubs(balanced: DataFrame, starved: DataFrame) -> DataFrame:
    came = ("enqueued", "requeued", "carried_in")
    sums = balanced.groupBy("hub").agg(
        F.first("state").alias("state"),
        _sum_over(came, "rows").alias("came_rows"),
        _sum_over(LOST, "rows").alias("lost_rows"),
        _sum_over(LOST, "bytes").alias("lost_bytes"),
        (_sum_column("carried_out_rows") + _sum_column("difference_rows")).alias("waiting_rows"),
    )
    windows = starved.groupBy("hub").agg(
        _sum_of("starved", "total_ms").alias("starved_ms"), F.sum("idle_ms").alias("idle_ms")
    )
    joined = sums.join(windows, on="hub", how="left").fillna(0, subset=["starved_ms", "idle_ms"])
    # A hub to which nothing came may have lost what nobody counted as coming.
    return joined.withColumn("lost_share", F.col("lost_rows") / F.greatest("came_rows", F.lit(1)))


def _sum_over(flows: Sequence[str], unit: str) -> Column:
    return F.sum(sum((F.col(f"{flow}_{unit}") for flow in flows), F.lit(0)))


def _hubs_of_queues(expired: DataFrame) -> list[Record]:
    """Return of each queue the hubs of which most rows expired, and how many others there are."""
    of_queue = Window.partitionBy("endpoint", "priority")
    sums = expired.groupBy(*schemas.QUEUE).agg(_sum("rows"))
    ranked = sums.withColumn(
        "place", F.row_number().over(of_queue.orderBy(F.col("rows").desc(), "hub"))
    ).withColumn("hubs", F.count(F.lit(1)).over(of_queue))
    named = ranked.where(F.col("place") <= NAMED_MAX)
    return _records(named.limit(NAMED_MAX * KEYS_MAX), "endpoint", "priority", "place")


def _spread(expired: DataFrame) -> Record:
    """Return of how many devices rows expired, and of one at most."""
    devices = expired.where(F.col("device").isNotNull()).groupBy("hub", "device").agg(_sum("rows"))
    found = devices.agg(
        F.count(F.lit(1)).alias("devices"),
        F.coalesce(F.max("rows"), F.lit(0)).alias("most"),
        F.coalesce(F.min("rows"), F.lit(0)).alias("least"),
    )
    return found.collect()[0].asDict()


def _most_expired(expired: DataFrame, *by: str) -> list[Record]:
    sums = expired.groupBy(*by).agg(
        *(_sum(name) for name in ("rows", "bytes", "waited_ms", *_PARTS))
    )
    return _top(sums, "rows", by=by)


def _windows(tables: Mapping[str, DataFrame]) -> list[Record]:
    """Return the longest windows of the queues with the most time; short ones would not be seen."""
    lanes = (
        tables["starvation"]
        .groupBy(*schemas.QUEUE)
        .agg(_sum("total_ms"))
        .orderBy(F.col("total_ms").desc(), *schemas.QUEUE)
        .limit(LANES_MAX)
    )
    windows = tables["starvation_windows"].join(
        F.broadcast(lanes), on=list(schemas.QUEUE), how="inner"
    )
    return _top(
        windows, "length_ms", by=(*schemas.QUEUE, "start"), limit=LANES_MAX * BARS_PER_LANE_MAX
    )


def _top(frame: DataFrame, *columns: str, by: Sequence[str], limit: int = TOP) -> list[Record]:
    order = [F.col(name).desc() for name in columns]
    return [row.asDict() for row in frame.orderBy(*order, *by).limit(limit).collect()]


def _records(frame: DataFrame, *order: str) -> list[Record]:
    return [row.asDict() for row in frame.orderBy(*order).collect()]


def _sum(name: str) -> Column:
    return _sum_column(name).alias(name)


def _sum_column(name: str) -> Column:
    return F.coalesce(F.sum(name), F.lit(0))


def _only(kind: str, name: str) -> Column:
    return F.when(F.col("kind") == kind, F.col(name))


def _sum_of(kind: str, name: str) -> Column:
    return F.coalesce(F.sum(_only(kind, name)), F.lit(0))
