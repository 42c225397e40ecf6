"""Spells: the longest times in which a queue had rows, could be served, and was not.

A spell ends when a row of the queue is sent, when the queue is empty, when the link goes down or
the hub stops, and at the end of the day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.steps import COUNTS, ORDER, PIECE, is_base

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def spells(steps: DataFrame, shortest_ms: int) -> DataFrame:
    """Find the spells of all queues.

    Args:
        steps: Steps in pieces.
        shortest_ms: Shorter spells are left out.

    Returns:
        Grain: queue, `start_ms` (hub time). `start_day_ms` places it on the day, `length_ms` is its
        true duration. `rows` and `bytes` waited at some moment of it, `expired` of them expired in
        it; `retried` counts refused sends.
    """
    bounds = _bounds(steps, shortest_ms)
    order = Window.partitionBy(*schemas.QUEUE).orderBy(*ORDER)
    so_far = order.rowsBetween(Window.unboundedPreceding, -1)
    before = {name: F.lag(name).over(order) for name in ("hub_ms", "day_ms", *COUNTS)}
    known = bounds.select(
        "*",
        *(column.alias(f"{name}_0") for name, column in before.items()),
        F.last("up", ignorenulls=True).over(so_far).alias("was_up"),
    )
    length_ms = F.col("hub_ms") - F.col("hub_ms_0")
    waited = F.col("depth_0") >= 1
    is_whole = F.col("gap_ms").isNull() | (F.col("gap_ms") >= shortest_ms)
    return known.where(waited & is_whole & F.col("was_up") & (length_ms >= shortest_ms)).select(
        *schemas.QUEUE,
        F.col("hub_ms_0").alias("start_ms"),
        F.col("day_ms_0").alias("start_day_ms"),
        length_ms.alias("length_ms"),
        (F.col("depth_0") + F.col("came") - F.col("came_0")).alias("rows"),
        (F.col("depth_bytes_0") + F.col("came_bytes") - F.col("came_bytes_0")).alias("bytes"),
        (F.col("expired") - F.col("expired_0")).alias("expired"),
        (F.col("retried") - F.col("retried_0")).alias("retried"),
    )


def _bounds(steps: DataFrame, shortest_ms: int) -> DataFrame:
    """Keep the steps at which spells may begin or end.

    Within a piece both ends of each long gap are kept; the first and the last bound of a piece are
    kept because the gap goes on in its neighbours; changes of the link are kept because they
    decide about what follows.

    Returns:
        Bounds with the sums up to them. `gap_ms` is the time since the bound before, null for the
        first one of a piece.
    """
    order = Window.partitionBy(*PIECE).orderBy(*ORDER)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    keys = (*PIECE, *ORDER, "day_ms", "served", "up")
    added = steps.select(
        *keys,
        F.col("depth").alias("net"),
        *(F.sum(name).over(so_far).alias(name) for name in COUNTS),
    )
    bounds = added.where(~is_base() & _is_bound())
    gap_ms = F.col("hub_ms") - F.lag("hub_ms").over(order)
    next_ms = F.lead("hub_ms").over(order) - F.col("hub_ms")
    kept = (
        _none_or_long("gap_ms", shortest_ms)
        | _none_or_long("next_ms", shortest_ms)
        | F.col("up").isNotNull()
    )
    return bounds.select("*", gap_ms.alias("gap_ms"), next_ms.alias("next_ms")).where(kept)


def _is_bound() -> Column:
    depth_before = F.col("depth") - F.col("net")
    return F.col("served") | (F.col("depth") <= 0) | (depth_before <= 0) | F.col("up").isNotNull()


def _none_or_long(name: str, shortest_ms: int) -> Column:
    return F.col(name).isNull() | (F.col(name) >= shortest_ms)
