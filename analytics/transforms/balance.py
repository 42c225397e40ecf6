"""Do the counts close? The equation of the journal per hub and queue, in rows and bytes.

Source: docs/reference/journal-format.md.
Invariant: every row that went in went out, or waits at the end.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IN_FLOWS: Final = ("enqueued", "requeued", "carried_in", "moved_in")
OUT_FLOWS: Final = (
    *("sent", "expired", "dropped", "dead_lettered", "purged", "lost"),
    *("moved_out", "carried_out"),
)
UNITS: Final = ("rows", "bytes")


def balance(moved: DataFrame, marks: DataFrame) -> DataFrame:
    """Set up the equation.

    Args:
        moved: Queue flows.
        marks: What was carried over the edges.

    Returns:
        Grain: queue. Each flow in rows and bytes (`sent_rows`, `sent_bytes`), `difference_rows` and
        `difference_bytes` = in - out, and the `state` of the hub's day:
        `closed`; `open`, then the differences are what waits in a hub that goes on; or
        `unbalanced`.
    """
    carried = marks.where(F.col("event") == "carried").select(
        *schemas.QUEUE, "hub_ms", "commit", "detail", "rows", "bytes"
    )
    last = moved.groupBy("hub").agg(F.max("last_ms").alias("last_ms"))
    flows = [moved.select(*schemas.QUEUE, "flow", *UNITS), _carried(carried, last)]
    sums = [
        F.sum(F.when(F.col("flow") == flow, F.col(unit)).otherwise(F.lit(0))).alias(
            f"{flow}_{unit}"
        )
        for flow in (*IN_FLOWS, *OUT_FLOWS)
        for unit in UNITS
    ]
    queues = reduce(lambda one, other: one.unionByName(other), flows)
    totals = queues.groupBy(*schemas.QUEUE).agg(*sums)
    for unit in UNITS:
        totals = totals.withColumn(f"difference_{unit}", _difference(unit))
    return _with_state(totals, carried, last)


def _difference(unit: str) -> Column:
    came = reduce(add, [F.col(f"{flow}_{unit}") for flow in IN_FLOWS])
    left = reduce(add, [F.col(f"{flow}_{unit}") for flow in OUT_FLOWS])
    return came - left


def _carried(carried: DataFrame, last: DataFrame) -> DataFrame:
    """Return what each day began with and what it ended with, as flows."""
    placed = _closing(carried, last)
    flow = (
        F.when(F.col("detail") == "in", F.lit("carried_in"))
        .when(F.col("detail") == "out", F.lit("carried_out"))
        .when((F.col("detail") == "stop") & F.col("closing"), F.lit("carried_out"))
    )
    newest = Window.partitionBy(*schemas.QUEUE, "detail").orderBy(
        F.col("hub_ms").desc(), F.col("commit").desc()
    )
    return (
        placed.withColumn("flow", flow)
        .where(F.col("flow").isNotNull())
        .withColumn("place", F.row_number().over(newest))
        .where((F.col("detail") != "stop") | (F.col("place") == 1))
        .select(*schemas.QUEUE, "flow", *UNITS)
    )


def _closing(carried: DataFrame, last: DataFrame) -> DataFrame:
    """Mark `stop` lines that end their hub's day: no `out` line, no event of a row after them."""
    of_hub = Window.partitionBy("hub")
    has_out = F.max(F.col("detail") == "out").over(of_hub)
    since = F.coalesce(F.col("last_ms"), F.lit(0))
    return carried.join(last, on="hub", how="left").withColumn(
        "closing", ~has_out & (F.col("hub_ms") >= since)
    )


def _with_state(totals: DataFrame, carried: DataFrame, last: DataFrame) -> DataFrame:
    """Judge each hub's day by all of its queues."""
    ended = (
        _closing(carried, last)
        .groupBy("hub")
        .agg(
            F.max(
                (F.col("detail") == "out") | ((F.col("detail") == "stop") & F.col("closing"))
            ).alias("ended")
        )
    )
    of_hub = Window.partitionBy("hub")
    differences = [F.col(f"difference_{unit}") for unit in UNITS]
    is_zero = F.min((differences[0] == 0) & (differences[1] == 0)).over(of_hub)
    is_short = F.max((differences[0] < 0) | (differences[1] < 0)).over(of_hub)
    has_ended = F.coalesce(F.col("ended"), F.lit(False))
    state = (
        F.when(is_zero, F.lit("closed"))
        .when(has_ended | is_short, F.lit("unbalanced"))
        .otherwise(F.lit("open"))
    )
    return totals.join(ended, on="hub", how="left").withColumn("state", state).drop("ended")


def unbalanced(balanced: DataFrame) -> DataFrame:
    """Keep the queues whose counts do not close, the largest difference first."""
    wrong = F.col("state") == "unbalanced"
    is_short = (F.col("difference_rows") != 0) | (F.col("difference_bytes") != 0)
    return balanced.where(wrong & is_short).orderBy(
        F.abs("difference_rows").desc(), F.abs("difference_bytes").desc(), *schemas.QUEUE
    )
