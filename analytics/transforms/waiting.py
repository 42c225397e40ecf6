"""For how long rows waited before they were sent: a histogram, and percentiles from it.

Waits are grouped at three significant digits (below one second: milliseconds), rounded down. So
each percentile is exact in rank and at most 1 % low in value, and days or hubs can be added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

PERCENTILES: Final = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99}
_EXACT_MS: Final = 1_000
_DIGITS_MAX: Final = 15


def histogram(ended: DataFrame) -> DataFrame:
    """Group the waits of sent rows.

    Args:
        ended: See `analytics.transforms.ends`.

    Returns:
        Grain: queue and `bucket_ms`, null where a line stands for many rows. `rows`, the longest
        `max_ms`, and the sums of the wait's parts.
    """
    parts = ("waited_ms", *(f"{cause}_ms" for cause in schemas.CAUSES))
    return ended.where(F.col("event") == "sent").select(
        *schemas.QUEUE, "bucket_ms", "rows", "max_ms", *parts
    )


def bucket(name: str) -> Column:
    """Round milliseconds down to three significant digits."""
    value = F.col(name)
    rounded = F.when(value < _EXACT_MS, value)
    for digits in range(1, _DIGITS_MAX):
        rounded = rounded.when(value < _EXACT_MS * 10**digits, value - value % F.lit(10**digits))
    return rounded.otherwise(value)


def percentiles(buckets: DataFrame, by: Sequence[str] = schemas.QUEUE) -> DataFrame:
    """Read percentiles off a histogram.

    Args:
        buckets: A histogram.
        by: Columns that stay; fewer of them add hubs up.

    Returns:
        Grain: `by`. `sent` rows, `unknown` ones among them without a wait; `p50_ms`, `p90_ms`,
        `p99_ms`: the smallest wait that at least so many per cent did not exceed; `max_ms`; sums.
    """
    upto = Window.partitionBy(*by).orderBy("bucket_ms")
    whole = Window.partitionBy(*by)
    known = F.when(F.col("bucket_ms").isNotNull(), F.col("rows")).otherwise(F.lit(0))
    reached = buckets.groupBy(*by, "bucket_ms").agg(
        F.sum("rows").alias("rows"),
        F.max("max_ms").alias("max_ms"),
        *(F.sum(f"{name}_ms").alias(f"{name}_ms") for name in ("waited", *schemas.CAUSES)),
    )
    placed = (
        reached.withColumn("known", known)
        .withColumn("rank", F.sum("known").over(upto))
        .withColumn("all", F.sum("known").over(whole))
    )
    return placed.groupBy(*by).agg(
        F.sum("rows").alias("sent"),
        F.sum(F.col("rows") - F.col("known")).alias("unknown"),
        *(_percentile(percent).alias(name) for name, percent in PERCENTILES.items()),
        F.max("max_ms").alias("max_ms"),
        *(
            F.coalesce(F.sum(f"{name}_ms"), F.lit(0)).alias(f"{name}_ms")
            for name in ("waited", *schemas.CAUSES)
        ),
    )


def _percentile(percent: int) -> Column:
    enough = F.col("rank") * F.lit(100) >= F.col("all") * F.lit(percent)
    return F.min(F.when(enough, F.col("bucket_ms")))
