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
    *("moved_out", "carried_out", "left_behind"),
)
UNITS: Final = ("rows", "bytes")


def balance(moved: DataFrame, marks: DataFrame, summed: DataFrame) -> DataFrame:
    """Return the equation of each queue.

    Args:
        moved: Queue flows.
        marks: What was carried over the edges.
        summed: Flows of lines.

    Returns:
        Grain: queue. Each flow in rows and bytes (`sent_rows`, `sent_bytes`), `difference_rows` and
        `difference_bytes` = in - out, and the `state` of the hub's day:
        `closed`; `open`, then the differences are what waits in a hub that goes on; or
        `unbalanced`.
    """
    edges = _edges(marks, summed)
    flows = [moved.select(*schemas.QUEUE, "flow", *UNITS), _carried(edges)]
    sums = [
        F.sum(F.when(F.col("flow") == flow, F.col(unit)).otherwise(F.lit(0))).alias(
            f"{flow}_{unit}"
        )
        for flow in (*IN_FLOWS, *OUT_FLOWS)
        for unit in UNITS
    ]
    queues = reduce(lambda one, other: one.unionByName(other), flows).coalesce(1)
    totals = queues.groupBy(*schemas.QUEUE).agg(*sums)
    for unit in UNITS:
        totals = totals.withColumn(f"difference_{unit}", _difference(unit))
    return _with_state(totals, edges)


def _difference(unit: str) -> Column:
    came = reduce(add, [F.col(f"{flow}_{unit}") for flow in IN_FLOWS])
    left = reduce(add, [F.col(f"{flow}_{unit}") for flow in OUT_FLOWS])
    return came - left


def _carried(edges: DataFrame) -> DataFrame:
    """Return what each day began with and what it ended with, as flows."""
    flow = (
        F.when(F.col("detail") == "in", F.lit("carried_in"))
        .when(F.col("detail") == "out", F.lit("carried_out"))
        .when(F.col("closing") & ~F.col("replaced"), F.lit("carried_out"))
    )
    placed = edges.withColumn("flow", flow).where(F.col("flow").isNotNull())
    return placed.select(*schemas.QUEUE, "flow", *UNITS)


def left_behind(marks: DataFrame, summed: DataFrame) -> DataFrame:
    """Find what still waited in a database file that another one followed.

    Args:
        marks: What was carried over the edges.
        summed: Flows of lines.

    Returns:
        Grain of marks, event `left_behind`: the last `stop` lines of such files.
    """
    left = _edges(marks, summed).where(F.col("closing") & F.col("replaced") & (F.col("rows") > 0))
    return left.select(*marks.columns).withColumn("event", F.lit("left_behind"))


def _edges(marks: DataFrame, summed: DataFrame) -> DataFrame:
    """Place what was carried over edges within the life of its database file.

    Returns:
        Grain of marks. `closing` marks the last `stop` line of a queue where it ends the day of
        its file: that has no `out` line, and no event of a row after it. `replaced` marks files
        that another one followed.
    """
    of_store = Window.partitionBy("hub", "store")
    of_row = F.col("event").isin(*schemas.ROW_EVENTS, "retried")
    files = summed.groupBy("hub", "store").agg(
        F.max(F.when(of_row, F.col("last_ms"))).alias("row_ms"), F.max("last_ms").alias("last_ms")
    )
    # Of a file in which nothing waited at any edge too.
    hubs = files.groupBy("hub").agg(F.max("last_ms").alias("hub_last_ms"))
    newest = Window.partitionBy(*schemas.QUEUE, "store", "detail").orderBy(
        F.col("hub_ms").desc(), F.col("commit").desc()
    )
    return (
        marks.where(F.col("event") == "carried")
        .join(files, on=["hub", "store"], how="inner")
        .join(hubs, on="hub", how="inner")
        .select(
            *marks.columns,
            (
                (F.col("detail") == "stop")
                & (F.col("hub_ms") >= F.coalesce("row_ms", F.lit(0)))
                & ~F.max(F.col("detail") == "out").over(of_store)
                & (F.row_number().over(newest) == 1)
            ).alias("closing"),
            (F.col("last_ms") < F.col("hub_last_ms")).alias("replaced"),
        )
    )


def _with_state(totals: DataFrame, edges: DataFrame) -> DataFrame:
    """Judge each hub's day by all of its queues."""
    ends = ((F.col("detail") == "out") | F.col("closing")) & ~F.col("replaced")
    ended = edges.groupBy("hub").agg(F.max(ends).alias("ended"))
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


def unbalanced(balanced: DataFrame, most: int) -> DataFrame:
    """Keep the queues whose counts do not close, of each hub those with the largest difference."""
    wrong = F.col("state") == "unbalanced"
    is_short = (F.col("difference_rows") != 0) | (F.col("difference_bytes") != 0)
    worst = Window.partitionBy("hub").orderBy(
        F.abs("difference_rows").desc(), F.abs("difference_bytes").desc(), *schemas.QUEUE
    )
    ranked = balanced.where(wrong & is_short).withColumn("place", F.row_number().over(worst))
    return ranked.where(F.col("place") <= most).orderBy("hub", "place")
