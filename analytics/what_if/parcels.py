"""From lines to parcels: what happened in each step of each queue, hub by hub in order.

The one place where Spark meets the simulation. Lines of one step, queue and kind are one parcel,
so that what Python sees grows with the length of the day and hardly with the number of rows.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics.outputs import TABLES
from analytics.what_if.answers import Answer, answers
from analytics.what_if.recorded import (
    CAME,
    CARRIED,
    DROPPED,
    END,
    EXPIRED,
    LINK,
    LONG_STEP_MS,
    REMOVED,
    SENT,
    SETTINGS,
    STEP_MS,
    WAITED,
    Parcel,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from analytics.what_if.scenarios import Scenario

COLUMNS: Final = ("routes", "attempt_ms", "details")
"""What the questions of the report have no use for, and these have."""

SHORT_STEPS_MAX: Final = 1_000_000
"""Lines of a date that is simulated in the shorter steps."""

_SERIES: Final = ("hub", "endpoint", "priority", "kind", "routes", "ttl_ms", "text")
_VALUES: Final = ("at_ms", "rows", "bytes")
_GONE: Final = ("dead_lettered", "purged", "lost")


def what_if(lines: DataFrame, scenarios: Sequence[Scenario], *, count: int) -> DataFrame:
    """Simulate scenarios for all hubs.

    Args:
        lines: Good lines without copies, with `COLUMNS`.
        scenarios: What to ask.
        count: Number of the lines; of many, steps are longer.

    Returns:
        Grain: scenario, hub, endpoint, priority and route, of endpoints that a scenario concerns.
    """
    spark = lines.sparkSession
    step_ms = STEP_MS if count <= SHORT_STEPS_MAX else LONG_STEP_MS
    # Otherwise the few bytes of the hubs would be one task, and its Python busy with all of them.
    tasks = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    # A series is handed to Python in a tenth of the time that its parcels would take one by one.
    series = (
        parcels(lines, step_ms)
        .repartition(tasks, "hub")
        .groupBy(*_SERIES)
        .agg(*(F.collect_list(name).alias(name) for name in _VALUES))
        .sortWithinPartitions(*_SERIES)
    )
    asked = list(scenarios)
    found = series.rdd.mapPartitions(lambda rows: _answers_of(rows, asked, step_ms))
    return spark.createDataFrame(found, TABLES["what_if"].schema)


def parcels(lines: DataFrame, step_ms: int) -> DataFrame:
    """Add lines up to parcels of one step of hub time each.

    Returns:
        Grain: hub, step, kind, queue, routes and time to live; see `Parcel`.
    """
    flat = _rows(lines).unionByName(_waited(lines)).unionByName(_others(lines))
    step = F.floor(F.col("at_ms") / F.lit(step_ms)) * F.lit(step_ms)
    at_ms = F.when(F.col("kind") == LINK, F.col("at_ms")).otherwise(step)
    summed = (
        flat.withColumn("at_ms", at_ms)
        .groupBy(*_SERIES, "at_ms")
        .agg(F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes"))
    )
    return summed.where((F.col("kind") != WAITED) | (F.col("rows") > 0))


def _rows(lines: DataFrame) -> DataFrame:
    """Return rows that joined, left or were sent, each at the time that decided about it."""
    event = F.col("event")
    by_command = (event == "moved") & (F.col("detail") == "command")
    kind = (
        F.when(event.isin("enqueued", "requeued"), CAME)
        .when(event == "sent", SENT)
        .when(event == "expired", EXPIRED)
        .when(event == "dropped", DROPPED)
        .when(event.isin(*_GONE) | by_command, REMOVED)
    )
    wait_ms = F.coalesce("waited_ms", F.lit(0))
    overdue_ms = F.greatest(F.lit(0), wait_ms - F.coalesce("ttl_ms", wait_ms))
    before_ms = (
        F.when(event == "sent", F.least(F.coalesce("attempt_ms", F.lit(0)), wait_ms))
        .when(event == "expired", overdue_ms)
        .otherwise(F.lit(0))
    )
    return lines.where(kind.isNotNull()).select(
        "hub",
        (F.col("hub_ms") - before_ms).alias("at_ms"),
        kind.alias("kind"),
        *("endpoint", "priority", "routes"),
        F.when(kind == CAME, F.col("ttl_ms")).alias("ttl_ms"),
        F.lit(None).cast("string").alias("text"),
        *("rows", "bytes"),
    )


def _waited(lines: DataFrame) -> DataFrame:
    """Return rows that waited at 00:00, found where they left; one that moved left twice."""
    event = F.col("event")
    old = lines.where(
        event.isin("sent", "expired", "dropped", *_GONE, "moved")
        & (F.col("waited_ms") > F.col("day_ms"))
    )
    moved = old.where(event == "moved")
    came_in = moved.withColumns(
        {
            "endpoint": F.col("to_endpoint"),
            "priority": F.col("to_priority"),
            "rows": -F.col("rows"),
            "bytes": -F.col("bytes"),
        }
    )
    return old.unionByName(came_in).select(
        "hub",
        (F.col("hub_ms") - F.col("waited_ms")).alias("at_ms"),
        F.lit(WAITED).alias("kind"),
        *("endpoint", "priority", "routes", "ttl_ms"),
        F.lit(None).cast("string").alias("text"),
        *("rows", "bytes"),
    )


def _others(lines: DataFrame) -> DataFrame:
    """Return what was carried in, states of links, ends of the hub, and what is in force."""
    event, detail = F.col("event"), F.col("detail")
    is_stop = (event == "carried") & (detail == "stop")
    kind = (
        F.when((event == "carried") & (detail == "in"), CARRIED)
        .when((event == "carried") & (detail == "out"), END)
        .when((event == "link") | is_stop, LINK)
        .when(event == "settings", SETTINGS)
    )
    none: Column = F.lit(None)
    return lines.where(kind.isNotNull()).select(
        "hub",
        F.col("hub_ms").alias("at_ms"),
        kind.alias("kind"),
        F.when(is_stop, F.lit("")).otherwise(F.coalesce("endpoint", F.lit(""))).alias("endpoint"),
        F.when(is_stop, none.cast("int")).otherwise(F.col("priority")).alias("priority"),
        none.cast("array<string>").alias("routes"),
        none.cast("bigint").alias("ttl_ms"),
        F.when(event == "link", F.col("day_ms").cast("string"))
        .otherwise(F.col("details"))
        .alias("text"),
        F.when(event == "link", (detail == "up").cast("bigint"))
        .when(is_stop, F.lit(0).cast("bigint"))
        .otherwise(F.col("rows"))
        .alias("rows"),
        "bytes",
    )


def _answers_of(
    rows: Iterable[Row], scenarios: Sequence[Scenario], step_ms: int
) -> Iterator[Answer]:
    """Yield the answers for each hub of a partition, in which its series follow each other."""
    for hub, series in groupby(rows, key=itemgetter("hub")):
        own = [parcel for each in series for parcel in _parcels(each)]
        own.sort(key=attrgetter("at_ms"))
        yield from answers(hub, own, scenarios, step_ms)


def _parcels(series: Row) -> Iterator[Parcel]:
    kind, endpoint, ttl_ms, text = (series[name] for name in ("kind", "endpoint", "ttl_ms", "text"))
    priority, routes = series["priority"] or 0, tuple(series["routes"] or ())
    for at_ms, rows, size in zip(*(series[name] for name in _VALUES), strict=True):
        yield Parcel(at_ms, kind, endpoint, priority, routes, ttl_ms, rows, size, text)
