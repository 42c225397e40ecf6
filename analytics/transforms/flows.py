"""How many rows of which queue did what, and when: the one pass that most questions share.

Grain: queue, database file, event, detail, target queue, slot of ten minutes of UTC, and minute or
piece, an hour, of hub time. Also the few lines about the hub rather than about rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics import schemas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SLOT_MS: Final = 600_000
SLOTS: Final = schemas.DAY_MS // SLOT_MS
MINUTE_MS: Final = 60_000
PIECE_MS: Final = 3_600_000
_FLOW: Final = (
    *schemas.QUEUE,
    *("store", "event", "detail", "to_endpoint", "to_priority", "slot"),
)
_MARK: Final = (
    *schemas.QUEUE,
    *("store", "hub_ms", "commit", "seq", "day_ms"),
    *("event", "detail", "to_endpoint", "to_priority", "rows", "bytes"),
)


def minute_flows(lines: DataFrame) -> DataFrame:
    """Sum up lines by minute of hub time.

    Returns:
        Columns `rows`, `bytes`, and the hub times `first_ms` and `last_ms`. The slot is that of
        `time`; the end of the day belongs to the last one.
    """
    minute = F.floor(F.col("hub_ms") / F.lit(MINUTE_MS))
    timed = lines.withColumn("slot", _slot()).withColumn("minute", minute)
    return timed.groupBy(*_FLOW, "minute").agg(
        F.sum("rows").alias("rows"),
        F.sum("bytes").alias("bytes"),
        F.min("hub_ms").alias("first_ms"),
        F.max("hub_ms").alias("last_ms"),
    )


def flows(by_minute: DataFrame) -> DataFrame:
    """Add minutes up to pieces.

    Args:
        by_minute: See `minute_flows`.
    """
    return by_minute.groupBy(*_FLOW, piece_of("first_ms").alias("piece")).agg(
        F.sum("rows").alias("rows"),
        F.sum("bytes").alias("bytes"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )


def left_flows(left: DataFrame) -> DataFrame:
    """Return what was left behind as flows of queues."""
    return left.select(
        *(*schemas.QUEUE, "store", F.col("event").alias("flow")),
        *(_slot().alias("slot"), piece_of("hub_ms").alias("piece")),
        *("rows", "bytes", F.col("hub_ms").alias("last_ms")),
    )


def _slot() -> Column:
    slot = F.least(F.col("day_ms"), F.lit(schemas.DAY_MS - 1)) / F.lit(SLOT_MS)
    return F.floor(slot).cast("int")


def piece_of(name: str) -> Column:
    """Return the hour of a hub time."""
    return F.floor(F.col(name) / F.lit(PIECE_MS)).cast("int")


def marks(lines: DataFrame) -> DataFrame:
    """Keep the lines that few questions ask for, but those again and again.

    They are about the hub, what was carried over its edges and the state of its links, and about
    rows that moved to another queue.
    """
    return lines.where(F.col("event").isin("carried", "link", "moved")).select(*_MARK)


def queue_flows(summed: DataFrame, span: str = "piece") -> DataFrame:
    """Return flows from the queue's side: a move is `moved_out` of one and `moved_in` of the other.

    Args:
        summed: Flows of lines.
        span: `minute` where they are by minute.

    Returns:
        Same grain with `flow` instead of `event`: what the equation has, and `retried`.
    """
    of_row = summed.where(F.col("event").isin(*schemas.ROW_EVENTS, "retried"))
    columns = ("store", "flow", "slot", span, "rows", "bytes", "last_ms")
    flow = F.when(F.col("event") == "moved", F.lit("moved_out")).otherwise(F.col("event"))
    own = of_row.withColumn("flow", flow).select(*schemas.QUEUE, *columns)
    into = (
        of_row.where(F.col("event") == "moved")
        .withColumn("flow", F.lit("moved_in"))
        .select(
            "hub",
            F.col("to_endpoint").alias("endpoint"),
            F.col("to_priority").alias("priority"),
            *columns,
        )
    )
    return own.unionByName(into)
