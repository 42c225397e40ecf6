"""When an endpoint could not be served: the hub did not run, or the link was down.

Grain of the result: a change, per hub and endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec


def outages(marks: DataFrame, summed: DataFrame) -> DataFrame:
    """Find the changes between served and not served.

    What was so before the first line that tells is the opposite of that line: who becomes up was
    down. Without any line the link is taken as up and the hub as running.

    Args:
        marks: States of links, starts and stops.
        summed: Flows, for the endpoints and the first hub time of each hub.

    Returns:
        Columns hub, endpoint, `hub_ms`, `commit`, `seq`, `day_ms` and `up`, true from there on; the
        first one per endpoint stands at the hub's first line.
    """
    place = ("hub_ms", "commit", "seq", "day_ms")
    endpoints = (
        summed.where(F.col("endpoint").isNotNull())
        .groupBy("hub", "endpoint")
        .agg(F.min("first_ms").alias("own_ms"))
    )
    first = endpoints.groupBy("hub").agg(F.min("own_ms").alias("hub_ms"))
    links = marks.where(F.col("event") == "link").select(
        "hub",
        "endpoint",
        *place,
        (F.col("detail") == "up").alias("link"),
        F.lit(None).cast("boolean").alias("running"),
    )
    runs = (
        marks.where((F.col("event") == "carried") & F.col("detail").isin("start", "stop"))
        .select("hub", *place, (F.col("detail") == "start").alias("running"))
        .join(endpoints.select("hub", "endpoint"), on="hub", how="inner")
        .select("hub", "endpoint", *place, F.lit(None).cast("boolean").alias("link"), "running")
    )
    begin = endpoints.join(first, on="hub", how="inner").select(
        "hub",
        "endpoint",
        "hub_ms",
        F.lit(-1).cast("bigint").alias("commit"),
        F.lit(-1).cast("bigint").alias("seq"),
        F.lit(0).cast("bigint").alias("day_ms"),
        F.lit(None).cast("boolean").alias("link"),
        F.lit(None).cast("boolean").alias("running"),
    )
    changes = links.unionByName(runs).unionByName(begin)
    order = Window.partitionBy("hub", "endpoint").orderBy("hub_ms", "commit", "seq")
    known = changes.withColumn("up", _state("link", order) & _state("running", order))
    before = F.lag("up").over(order)
    return (
        known.withColumn("before", before)
        .where(F.col("before").isNull() | (F.col("before") != F.col("up")))
        .select("hub", "endpoint", *place, "up")
    )


def _state(name: str, order: WindowSpec) -> Column:
    """Return the last state told so far, else the opposite of the first one told, else true."""
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    told = F.last(name, ignorenulls=True).over(so_far)
    first = F.first(name, ignorenulls=True).over(whole)
    return F.coalesce(told, ~first, F.lit(True))
