"""When an endpoint could not be served: the hub did not run, or the link was down.

`states` has each change of both, `outages` those that matter to a queue, `links` how long each
lasted in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

_ENDPOINT: Final = ("hub", "endpoint")
_PLACE: Final = ("hub_ms", "commit", "seq", "day_ms")


def states(marks: DataFrame, summed: DataFrame) -> DataFrame:
    """Find the state of link and hub after each line with one.

    The state before the first such line is the opposite of that line: what becomes up was
    down. Without any line the link is taken as up and the hub as running.

    Args:
        marks: States of links, starts and stops.
        summed: Flows, for the endpoints and the first hub time of each hub.

    Returns:
        Grain: hub, endpoint and the place (`hub_ms`, `commit`, `seq`), `day_ms`. `link` and
        `running` are true from there on; the first one per endpoint stands at the hub's first line.
    """
    endpoints = (
        summed.where(F.col("endpoint").isNotNull())
        .groupBy("hub", "endpoint")
        .agg(F.min("first_ms").alias("own_ms"))
    )
    first = endpoints.groupBy("hub").agg(F.min("own_ms").alias("hub_ms"))
    links = marks.where(F.col("event") == "link").select(
        *_ENDPOINT,
        *_PLACE,
        (F.col("detail") == "up").alias("link"),
        F.lit(None).cast("boolean").alias("running"),
    )
    runs = (
        marks.where((F.col("event") == "carried") & F.col("detail").isin("start", "stop"))
        .select("hub", *_PLACE, (F.col("detail") == "start").alias("running"))
        .join(endpoints.select("hub", "endpoint"), on="hub", how="inner")
        .select(*_ENDPOINT, *_PLACE, F.lit(None).cast("boolean").alias("link"), "running")
    )
    begin = endpoints.join(first, on="hub", how="inner").select(
        *_ENDPOINT,
        "hub_ms",
        F.lit(-1).cast("bigint").alias("commit"),
        F.lit(-1).cast("bigint").alias("seq"),
        F.lit(0).cast("bigint").alias("day_ms"),
        F.lit(None).cast("boolean").alias("link"),
        F.lit(None).cast("boolean").alias("running"),
    )
    changes = links.unionByName(runs).unionByName(begin).coalesce(1)
    return changes.select(
        *_ENDPOINT,
        *_PLACE,
        _state("link").alias("link"),
        _state("running").alias("running"),
    )


def outages(known: DataFrame) -> DataFrame:
    """Keep the changes between served and not served.

    Args:
        known: See `states`.

    Returns:
        Same grain; `up` is true from there on.
    """
    up = F.col("link") & F.col("running")
    before = F.lag("up").over(_in_order())
    return (
        known.withColumn("up", up)
        .withColumn("before", before)
        .where(F.col("before").isNull() | (F.col("before") != F.col("up")))
        .select(*_ENDPOINT, *_PLACE, "up")
    )


def links(known: DataFrame, ends: DataFrame) -> DataFrame:
    """Add up for how long the hub ran, and for how long of that a link was down.

    Args:
        known: See `states`.
        ends: The end of each hub's day, see `steps.day_ends`.

    Returns:
        Grain: hub, endpoint. `known_ms` from the hub's first line to the end of its day,
        `running_ms` of it the hub ran; `down_ms` of that the link was down or not served, `downs`
        times, `longest_down_ms` at most. What a stop of the hub parts counts as two times.
    """
    order = _in_order()
    is_down = F.col("running") & ~F.col("link")
    until_ms = F.coalesce(F.lead("hub_ms").over(order), F.col("end_ms"))
    begins = F.col("down") & ~F.coalesce(F.lag("down").over(order), F.lit(False))
    lengths = (
        known.withColumn("down", is_down)
        .join(ends.select("hub", F.col("hub_ms").alias("end_ms")), on="hub", how="inner")
        .withColumn("length_ms", F.greatest(until_ms - F.col("hub_ms"), F.lit(0)))
        .withColumn("time", F.sum(begins.cast("int")).over(order))
    )
    down_ms = F.sum(F.when(F.col("down"), F.col("length_ms")).otherwise(F.lit(0)))
    running_ms = F.sum(F.when(F.col("running"), F.col("length_ms")).otherwise(F.lit(0)))
    times = lengths.groupBy(*_ENDPOINT, "time").agg(
        F.sum("length_ms").alias("known_ms"),
        running_ms.alias("running_ms"),
        down_ms.alias("down_ms"),
    )
    return times.groupBy(*_ENDPOINT).agg(
        *(F.sum(name).alias(name) for name in ("known_ms", "running_ms", "down_ms")),
        # The opposite of a hub's first line, if by it a link is up, lasts for no time.
        F.count_if(F.col("down_ms") > 0).alias("downs"),
        F.max("down_ms").alias("longest_down_ms"),
    )


def _in_order() -> WindowSpec:
    return Window.partitionBy(*_ENDPOINT).orderBy("hub_ms", "commit", "seq")


def _state(name: str) -> Column:
    """Return the last state recorded so far, else the opposite of the first one, else true."""
    order = _in_order()
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    known = F.last(name, ignorenulls=True).over(so_far)
    first = F.first(name, ignorenulls=True).over(whole)
    return F.coalesce(known, ~first, F.lit(True))
