"""The kinds of spells: starved by better priorities, or unserved although the link was idle.

The exact words and formulas stand in docs/reference/report.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.flows import MINUTE_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPELL: Final = (*schemas.QUEUE, "start_ms")


def services(by_minute: DataFrame) -> DataFrame:
    """Record when each queue was served.

    Args:
        by_minute: Flows of lines by minute.

    Returns:
        Grain: queue, minute of hub time; hub times of the `first_ms` and `last_ms` sent row.
    """
    return (
        by_minute.where(F.col("event") == "sent")
        .groupBy(*schemas.QUEUE, "minute")
        .agg(F.min("first_ms").alias("first_ms"), F.max("last_ms").alias("last_ms"))
    )


def starvation(spells: DataFrame, served: DataFrame, idle_after_ms: int) -> DataFrame:
    """Classify spells by what kept the queue waiting.

    A minute is enough to decide exactly: spells and pauses are never shorter, so what happens
    inside one minute is never a pause, and a spell never lies within one.

    Args:
        spells: Spells of at least a minute.
        served: Services by minute.
        idle_after_ms: Shortest pause of the endpoint that counts as idle, at least a minute.

    Returns:
        Grain of spells that are `starved` (a better priority was served), `idle` (nothing of the
        endpoint was sent for `idle_after_ms` or longer) or `held_back` (idle, after refusals of
        this queue): `kind`. `idle_ms` is the sum of such pauses, `served` lists the better
        priorities.
    """
    end_ms = F.col("start_ms") + F.col("length_ms")
    minutes = F.sequence(_minute(F.col("start_ms")), _minute(end_ms))
    others = served.withColumnRenamed("priority", "other")
    seen = (
        spells.select(*SPELL, end_ms.alias("end_ms"), F.explode(minutes).alias("minute"))
        .join(others, on=["hub", "endpoint", "minute"], how="inner")
        .where((F.col("last_ms") > F.col("start_ms")) & (F.col("first_ms") < F.col("end_ms")))
    )
    found = _better(seen), _pauses(seen, idle_after_ms)
    joined = spells
    for frame in found:
        joined = joined.join(frame, on=list(SPELL), how="left")
    # A spell in which nothing was sent is one pause.
    alone = F.when(F.col("length_ms") >= idle_after_ms, F.col("length_ms")).otherwise(F.lit(0))
    idle_ms = F.coalesce("idle_ms", alone)
    return (
        joined.withColumn("idle_ms", idle_ms)
        .withColumn("kind", _kind())
        .where(F.col("kind").isNotNull())
    )


def _minute(moment_ms: Column) -> Column:
    return F.floor(moment_ms / F.lit(MINUTE_MS))


def _better(seen: DataFrame) -> DataFrame:
    better = seen.where(F.col("other") < F.col("priority"))
    return better.groupBy(*SPELL).agg(F.sort_array(F.collect_set("other")).alias("served"))


def _pauses(seen: DataFrame, idle_after_ms: int) -> DataFrame:
    """Add up the pauses between services of any priority, from the spell's start to its end."""
    first = F.greatest("first_ms", "start_ms")
    last = F.least("last_ms", "end_ms")
    minutes = seen.groupBy(*SPELL, "end_ms", "minute").agg(
        F.min(first).alias("first_ms"), F.max(last).alias("last_ms")
    )
    order = Window.partitionBy(*SPELL).orderBy("minute")
    before_ms = F.col("first_ms") - F.coalesce(F.lag("last_ms").over(order), F.col("start_ms"))
    is_last = F.lead("minute").over(order).isNull()
    after_ms = F.when(is_last, F.col("end_ms") - F.col("last_ms")).otherwise(F.lit(0))
    pauses = minutes.select(
        *SPELL, _if_long(before_ms, idle_after_ms) + _if_long(after_ms, idle_after_ms)
    ).toDF(*SPELL, "pause_ms")
    return pauses.groupBy(*SPELL).agg(F.sum("pause_ms").alias("idle_ms"))


def _if_long(pause_ms: Column, idle_after_ms: int) -> Column:
    return F.when(pause_ms >= idle_after_ms, pause_ms).otherwise(F.lit(0))


def _kind() -> Column:
    is_idle = F.col("idle_ms") > 0
    return (
        F.when(F.col("served").isNotNull(), F.lit("starved"))
        .when(is_idle & (F.col("retried") > 0), F.lit("held_back"))
        .when(is_idle, F.lit("idle"))
    )


def starved_queues(windows: DataFrame) -> DataFrame:
    """Sum up per queue and kind.

    Returns:
        Grain: queue, kind. `windows`, `longest_ms`, `total_ms`, `idle_ms`; `rows` and `bytes` are
        sums over the windows, so a row that waited through two of them counts twice.
    """
    return windows.groupBy(*schemas.QUEUE, "kind").agg(
        F.count(F.lit(1)).alias("windows"),
        F.max("length_ms").alias("longest_ms"),
        F.sum("length_ms").alias("total_ms"),
        *(F.sum(name).alias(name) for name in ("idle_ms", "rows", "bytes", "expired")),
    )
