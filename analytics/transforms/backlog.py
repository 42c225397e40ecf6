"""How many rows waited in each queue over the day, in slots of ten minutes of UTC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.balance import IN_FLOWS, OUT_FLOWS
from analytics.transforms.flows import SLOTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def backlog(moved: DataFrame, balanced: DataFrame) -> DataFrame:
    """Add flows up from what was carried in.

    Args:
        moved: Queue flows.
        balanced: The equation of each queue.

    Returns:
        Grain: queue and `slot`, 0 to 143, up to the hub's last slot with an event. `rows` and
        `bytes` wait at the end of the slot; `rows_in` and `rows_out` came and left in it.
    """
    comes, goes = F.col("flow").isin(*IN_FLOWS), F.col("flow").isin(*OUT_FLOWS)
    none = F.lit(0)
    net_bytes = F.when(comes, F.col("bytes")).when(goes, -F.col("bytes")).otherwise(none)
    slots = moved.groupBy(*schemas.QUEUE, "slot").agg(
        F.sum(F.when(comes, F.col("rows")).otherwise(none)).alias("rows_in"),
        F.sum(F.when(goes, F.col("rows")).otherwise(none)).alias("rows_out"),
        F.sum(net_bytes).alias("net_bytes"),
    )
    grid = _grid(moved, balanced)
    upto = Window.partitionBy(*schemas.QUEUE).orderBy("slot")
    filled = grid.join(slots, on=[*schemas.QUEUE, "slot"], how="left").fillna(
        0, subset=["rows_in", "rows_out", "net_bytes"]
    )
    net = F.sum(F.col("rows_in") - F.col("rows_out")).over(upto)
    return filled.select(
        *schemas.QUEUE,
        "slot",
        (F.col("carried_in_rows") + net).alias("rows"),
        (F.col("carried_in_bytes") + F.sum("net_bytes").over(upto)).alias("bytes"),
        "rows_in",
        "rows_out",
    )


def _grid(moved: DataFrame, balanced: DataFrame) -> DataFrame:
    """Return every slot up to the hub's last one for each of its queues."""
    last = moved.groupBy("hub").agg(F.max("slot").alias("last_slot"))
    closed = F.when(F.col("state") == "closed", F.lit(SLOTS - 1)).otherwise(F.col("last_slot"))
    return balanced.join(last, on="hub", how="left").select(
        *schemas.QUEUE,
        "carried_in_rows",
        "carried_in_bytes",
        F.explode(F.sequence(F.lit(0), F.coalesce(closed, F.lit(SLOTS - 1)))).alias("slot"),
    )
