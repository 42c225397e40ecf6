"""Each queue's day as steps: rows in, rows out, served or not, cut where nothing could be served.

A queue's steps are split into pieces of an hour of hub time, so that one huge hub is spread over
many tasks. Each piece begins with a step that carries what the earlier ones add up to; running sums
within a piece are therefore sums since midnight.

Most minutes are busy: the queue is served in each, and never long before or after. No spell begins
or ends in them, so that two steps stand for all of their lines: the first service and, with all
that the minute adds, the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.balance import IN_FLOWS, OUT_FLOWS
from analytics.transforms.flows import MINUTE_MS, PIECE_MS, piece_of, queue_flows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

PIECE: Final = (*schemas.QUEUE, "piece")
ORDER: Final = ("hub_ms", "commit", "seq")

COUNTS: Final = ("depth", "depth_bytes", "came", "came_bytes", "expired", "retried")
"""What is added up: rows and bytes that wait, that ever came, and events of the queue."""

_BASE, _CARRIED = -3, -2
_LAST: Final = 2**62
_MINUTES: Final = PIECE_MS // MINUTE_MS


def steps(
    lines: DataFrame,
    marks: DataFrame,
    summed: DataFrame,
    moved: DataFrame,
    changes: DataFrame,
    busy: DataFrame,
) -> DataFrame:
    """Return the steps of all queues.

    Args:
        lines: All lines.
        marks: What was carried over the edges or left behind, and moves.
        summed: Flows of lines.
        moved: Flows of queues.
        changes: When endpoints could be served.
        busy: Minutes of queues whose lines are not looked at, see `busy_minutes`.

    Returns:
        Grain: a step. Queue, `piece`, the place (`hub_ms`, `commit`, `seq`), `day_ms`, what it
        adds to `COUNTS`, `served`, and `up` where the endpoint's state changes, or at the end of
        the day.
    """
    carried = _carried_in(marks)
    queues = moved.select(*schemas.QUEUE).union(carried.select(*schemas.QUEUE)).distinct()
    cuts = _cut(changes.join(queues, on=["hub", "endpoint"], how="inner"))
    ends = _cut(day_ends(marks, summed).join(queues, on="hub", how="inner"))
    few = carried.unionByName(cuts).unionByName(ends).withColumn("piece", piece_of("hub_ms"))
    piece = piece_of("hub_ms")
    many = _rows(lines).unionByName(_moved_in(marks)).withColumn("piece", piece)
    others = _left_behind(marks).unionByName(_of_busy(busy)).withColumn("piece", piece)
    sums = _sums(moved, PIECE).unionByName(few.select(*PIECE, *COUNTS))
    exact = _not_in(busy, many)
    return exact.unionByName(others).unionByName(few).unionByName(_bases(sums))


def busy_minutes(served: DataFrame, by_minute: DataFrame, shortest_ms: int) -> DataFrame:
    """Find the minutes of queues in which no spell begins or ends, and none goes on.

    Args:
        served: Services by minute.
        by_minute: Flows of lines by minute.
        shortest_ms: Shorter spells are left out.

    Returns:
        Grain: queue and minute, with services that have neighbours less than `shortest_ms` away.
        `first_ms` and `last_ms` of them, and what the minute adds to `COUNTS`.
    """
    order = Window.partitionBy(*schemas.QUEUE).orderBy("minute")
    # The first and the last service of a queue have no neighbour, and are left out.
    since_ms = F.col("first_ms") - F.lag("last_ms").over(order)
    until_ms = F.lead("first_ms").over(order) - F.col("last_ms")
    near = served.withColumns({"since_ms": since_ms, "until_ms": until_ms}).where(
        (F.col("since_ms") < shortest_ms) & (F.col("until_ms") < shortest_ms)
    )
    minute = (*schemas.QUEUE, "minute")
    sums = _sums(queue_flows(by_minute, "minute"), minute)
    counts = sums.groupBy(*minute).agg(*(F.sum(name).alias(name) for name in COUNTS))
    return near.join(counts, on=list(minute), how="inner").select(
        *minute, "first_ms", "last_ms", *COUNTS
    )


def _not_in(busy: DataFrame, steps: DataFrame) -> DataFrame:
    """Leave out the steps in busy minutes; those of a piece are looked up as one mask of bits."""
    minute = F.col("hub_ms") / F.lit(MINUTE_MS)
    bit = F.expr(f"shiftleft(1L, CAST(minute % {_MINUTES} AS INT))")
    hour = F.floor(F.col("minute") / F.lit(_MINUTES)).cast("int")
    masks = busy.groupBy(*schemas.QUEUE, hour.alias("piece")).agg(F.bit_or(bit).alias("mask"))
    place = F.floor(minute) % F.lit(_MINUTES)
    # A mask an hour and queue: of a thousand hubs they still fit into each executor.
    known = steps.join(F.broadcast(masks), on=list(PIECE), how="left")
    is_busy = F.coalesce(F.bit_get("mask", place), F.lit(0)) == 1
    return known.where(~is_busy).drop("mask")


def _of_busy(busy: DataFrame) -> DataFrame:
    first = busy.select(*schemas.QUEUE, F.col("first_ms").alias("hub_ms"), *_counts({}))
    last = busy.select(*schemas.QUEUE, F.col("last_ms").alias("hub_ms"), *COUNTS)
    return first.unionByName(last).select(
        *schemas.QUEUE,
        "hub_ms",
        # Their place among the steps of other kinds in the same minute decides nothing.
        *(F.lit(0).cast("bigint").alias(name) for name in ("commit", "seq", "day_ms")),
        *COUNTS,
        F.lit(True).alias("served"),
        F.lit(None).cast("boolean").alias("up"),
    )


def _rows(lines: DataFrame) -> DataFrame:
    event = F.col("event")
    comes = event.isin(*schemas.IN_EVENTS).cast("int")
    net = F.when(event == "retried", F.lit(0)).otherwise(comes * 2 - 1)
    return lines.where(event.isin(*schemas.ROW_EVENTS, "retried")).select(
        *schemas.QUEUE,
        *ORDER,
        "day_ms",
        *_counts(
            {
                "depth": F.col("rows") * net,
                "depth_bytes": F.col("bytes") * net,
                "came": F.col("rows") * comes,
                "came_bytes": F.col("bytes") * comes,
                "expired": F.col("rows") * (event == "expired").cast("int"),
                "retried": F.col("rows") * (event == "retried").cast("int"),
            }
        ),
        (event == "sent").alias("served"),
        F.lit(None).cast("boolean").alias("up"),
    )


def _moved_in(marks: DataFrame) -> DataFrame:
    return marks.where(F.col("event") == "moved").select(
        "hub",
        F.col("to_endpoint").alias("endpoint"),
        F.col("to_priority").alias("priority"),
        *ORDER,
        "day_ms",
        *_arrived(),
        F.lit(False).alias("served"),
        F.lit(None).cast("boolean").alias("up"),
    )


def _left_behind(marks: DataFrame) -> DataFrame:
    rows, size = F.col("rows"), F.col("bytes")
    return marks.where(F.col("event") == "left_behind").select(
        *(*schemas.QUEUE, *ORDER, "day_ms"),
        *_counts({"depth": -rows, "depth_bytes": -size}),
        F.lit(False).alias("served"),
        F.lit(None).cast("boolean").alias("up"),
    )


def _carried_in(marks: DataFrame) -> DataFrame:
    """Return what was carried in, which waits from midnight, whenever the hub wrote it down."""
    is_in = (F.col("event") == "carried") & (F.col("detail") == "in") & (F.col("rows") > 0)
    return marks.where(is_in).select(
        *schemas.QUEUE,
        (F.col("hub_ms") - F.col("day_ms")).alias("hub_ms"),
        F.lit(_CARRIED).cast("bigint").alias("commit"),
        "seq",
        F.lit(0).cast("bigint").alias("day_ms"),
        *_arrived(),
        F.lit(False).alias("served"),
        F.lit(None).cast("boolean").alias("up"),
    )


def _arrived() -> list[Column]:
    rows, size = F.col("rows"), F.col("bytes")
    return _counts({"depth": rows, "depth_bytes": size, "came": rows, "came_bytes": size})


def _counts(given: Mapping[str, Column]) -> list[Column]:
    return [given.get(name, F.lit(0)).cast("bigint").alias(name) for name in COUNTS]


def day_ends(marks: DataFrame, summed: DataFrame) -> DataFrame:
    """Return each hub's end of the day: midnight, or its last line while the day is open."""
    outs = (
        marks.where((F.col("event") == "carried") & (F.col("detail") == "out"))
        .groupBy("hub")
        .agg(F.max(F.col("hub_ms") - F.col("day_ms") + schemas.DAY_MS).alias("midnight_ms"))
    )
    last = summed.groupBy("hub").agg(F.max("last_ms").alias("last_ms"))
    return last.join(outs, on="hub", how="left").select(
        "hub",
        F.coalesce("midnight_ms", "last_ms").alias("hub_ms"),
        F.lit(_LAST).cast("bigint").alias("commit"),
        F.lit(0).cast("bigint").alias("seq"),
        F.lit(schemas.DAY_MS).cast("bigint").alias("day_ms"),
        F.lit(False).alias("up"),
    )


def _cut(events: DataFrame) -> DataFrame:
    return events.select(
        *schemas.QUEUE, *ORDER, "day_ms", *_counts({}), F.lit(False).alias("served"), "up"
    )


def _sums(moved: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return what each flow adds to the counts of its piece or minute."""
    comes = F.col("flow").isin(*IN_FLOWS).cast("int")
    net = comes - F.col("flow").isin(*OUT_FLOWS).cast("int")
    rows, size = F.col("rows"), F.col("bytes")
    counts = {"depth": rows * net, "depth_bytes": size * net}
    counts |= {"came": rows * comes, "came_bytes": size * comes}
    counts |= {name: rows * (F.col("flow") == name).cast("int") for name in ("expired", "retried")}
    return moved.select(*key, *_counts(counts))


def _bases(sums: DataFrame) -> DataFrame:
    """Return the first step of each piece: the sums of all earlier pieces of its queue."""
    earlier = (
        Window.partitionBy(*schemas.QUEUE)
        .orderBy("piece")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    pieces = sums.groupBy(*PIECE).agg(*(F.sum(name).alias(name) for name in COUNTS))
    return pieces.select(
        *PIECE,
        (F.col("piece").cast("bigint") * PIECE_MS).alias("hub_ms"),
        F.lit(_BASE).cast("bigint").alias("commit"),
        F.lit(0).cast("bigint").alias("seq"),
        F.lit(0).cast("bigint").alias("day_ms"),
        *(F.coalesce(F.sum(name).over(earlier), F.lit(0)).alias(name) for name in COUNTS),
        F.lit(False).alias("served"),
        F.lit(None).cast("boolean").alias("up"),
    )


def is_base() -> Column:
    """Return whether a step is the first one of a piece, at which nothing happened."""
    return F.col("commit") == _BASE
