"""Database files of hubs: one hub may have had several on a date, each with a hub time of its own.

A gateway that was replaced, a file that was created again; or two hubs with one name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics import schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TWINS_MAX: Final = 100


def stores(lines: DataFrame) -> DataFrame:
    """Describe the database files of the hubs.

    Args:
        lines: Good lines.

    Returns:
        Grain: `hub`, `store`. `midnight_ms` is the hub time of 00:00 by its first line, `first_ms`
        and `last_ms` the times of day of its first and last event of a row, null without any.
    """
    of_row = F.when(F.col("event").isin(*schemas.ROW_EVENTS), F.col("day_ms"))
    return lines.groupBy("hub", "store").agg(
        F.min_by(F.col("hub_ms") - F.col("day_ms"), F.struct("commit", "seq")).alias("midnight_ms"),
        F.min(of_row).alias("first_ms"),
        F.max(of_row).alias("last_ms"),
    )


def on_one_time(lines: DataFrame, known: DataFrame) -> DataFrame:
    """Return lines with the hub times of a hub's stores put one after the other.

    Hub time begins again with each database file, so that without this what happened in two of them
    would be taken for one moment, or for days apart.

    Args:
        lines: Good lines.
        known: See `stores`.
    """
    midnights = F.broadcast(known.select("hub", "store", "midnight_ms"))
    placed = lines.join(midnights, on=["hub", "store"], how="inner")
    since = F.col("hub_ms") - F.col("midnight_ms") + F.lit(schemas.DAY_MS)
    return placed.withColumn("hub_ms", since).select(*lines.columns)


def names_of_several(known: DataFrame) -> list[str]:
    """Name the hubs of which two stores had events at the same time: two hubs of one name."""
    held = known.where(F.col("first_ms").isNotNull())
    others = held.select(
        "hub",
        F.col("store").alias("other"),
        F.col("first_ms").alias("other_first_ms"),
        F.col("last_ms").alias("other_last_ms"),
    )
    overlap = (
        (F.col("store") < F.col("other"))
        & (F.col("first_ms") < F.col("other_last_ms"))
        & (F.col("other_first_ms") < F.col("last_ms"))
    )
    found = held.join(others, on="hub", how="inner").where(overlap)
    return sorted(row["hub"] for row in found.select("hub").distinct().limit(TWINS_MAX).collect())
