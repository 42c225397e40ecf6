"""How long nothing served an endpoint for which rows came: no settings named it.

Grain of the result: an endpoint of a hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics.transforms.steps import day_ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def unserved(marks: DataFrame, summed: DataFrame, moved: DataFrame) -> DataFrame:
    """Add up the times from a link line `unserved` to the next line that ends them.

    That is the endpoint's next link line, a start or stop of the hub, or the end of the day.

    Args:
        marks: States of links, starts and stops.
        summed: Flows, for the last hub time of each hub.
        moved: Flows of queues, for the endpoints that had rows.

    Returns:
        Columns hub, endpoint, `times` and `length_ms`.
    """
    place = ("hub_ms", "commit", "seq")
    key = ("hub", "endpoint")
    endpoints = moved.select(*key).distinct()
    links = marks.where(F.col("event") == "link").select(
        *key, *place, (F.col("detail") == "unserved").alias("begins")
    )
    of_hub = (
        marks.where((F.col("event") == "carried") & F.col("detail").isin("start", "stop"))
        .select("hub", *place)
        .unionByName(day_ends(marks, summed).select("hub", *place))
        .join(endpoints, on="hub", how="inner")
        .select(*key, *place, F.lit(False).alias("begins"))
    )
    order = Window.partitionBy(*key).orderBy(*place)
    ends_ms = F.lead("hub_ms").over(order)
    return (
        links.join(endpoints, on=list(key), how="left_semi")
        .unionByName(of_hub)
        .withColumn("length_ms", ends_ms - F.col("hub_ms"))
        .where(F.col("begins") & (F.col("length_ms") > 0))
        .groupBy(*key)
        .agg(F.count(F.lit(1)).alias("times"), F.sum("length_ms").alias("length_ms"))
    )
