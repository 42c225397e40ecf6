"""From segments to judged lines: every line gets a fault or none, copies are found and dropped.

Owns which lines count. May read files; writes nothing. Invariant: what was read is good, faulty, or
a copy.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from analytics import schemas
from analytics.files import literal
from analytics.hubs import SEGMENTS

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from analytics.args import JobArgs
    from analytics.hubs import Survey

NUMBER_MAX: Final = 1 << 48
"""More bytes, commits or milliseconds are no figure of a hub, and a sum of them no number."""


def read_lines(
    spark: SparkSession, surveyed: Survey, args: JobArgs, *, are_objects: bool = False
) -> DataFrame:
    """Read all lines of the sound hubs of a date, at least one hub.

    Args:
        spark: The session.
        surveyed: The hubs.
        args: What is asked for.
        are_objects: Fail where a line is not of the schema, instead of naming that as its fault.
            Spark then does not look up each key once more to keep the text of the line.

    Returns:
        Grain: a line of a segment, good or not.
    """
    reader = spark.read.option("pathGlobFilter", SEGMENTS)
    # Otherwise the names of folders would replace those of the lines.
    reader = reader.option("recursiveFileLookup", value=True)
    folders = [literal(folder) for folder in surveyed.folders.values()]
    if are_objects:
        keys = StructType([key for key in schemas.LINE if key.name != schemas.CORRUPT])
        raw = reader.schema(keys).option("mode", "FAILFAST").json(folders)
        raw = raw.withColumn(schemas.CORRUPT, F.lit(None).cast("string"))
    else:
        reader = reader.option("columnNameOfCorruptRecord", schemas.CORRUPT)
        raw = reader.schema(schemas.LINE).json(folders)
    return judge(raw, args.midnight, surveyed.doubtful, asks_what_if=args.reads_for_what_if)


def is_malformed(error: Exception) -> bool:
    """Return whether a read has failed because a line is not of the schema."""
    return "MALFORMED_RECORD_IN_PARSING" in str(error)


def judge(
    raw: DataFrame,
    midnight: datetime,
    doubtful: Collection[str],
    *,
    asks_what_if: bool = False,
) -> DataFrame:
    """Judge every line, and keep only what the questions need.

    Args:
        raw: Lines as `schemas.LINE` has them, as they come from their files.
        midnight: 00:00 UTC of the date that they should belong to.
        doubtful: Hubs of which lines may be there twice.
        asks_what_if: Keep what scenarios need, too.

    Returns:
        Same grain; `fault` is null for a good line, `line` is set for others only. `content` is a
        hash of the line of a doubtful hub, `file` is set for its lines and for faulty ones.
        A line without a hub is of the one whose folder it is in. `day_ms` is the time since
        midnight, `rows` the number of rows that the line stands for, `detail` the edge, the link's
        state or the kind of reason.
    """
    midnight_ms = int(midnight.timestamp() * 1000)
    event = F.col("event")
    timed = raw.withColumn(
        "day_ms", F.unix_millis(F.expr("try_cast(time AS timestamp)")) - F.lit(midnight_ms)
    ).withColumn("fault", _fault())
    is_faulty = F.col("fault").isNotNull()
    is_doubtful = F.col("hub").isin(*doubtful) if doubtful else F.lit(False)
    default = F.lit(schemas.DEFAULT_PRIORITY)
    folder = F.regexp_extract(F.input_file_name(), "/hub=([^/]*)/[^/]*$", 1)
    return timed.select(
        F.when(is_faulty, F.coalesce("hub", folder)).otherwise(F.col("hub")).alias("hub"),
        *schemas.LINE_KEY[1:],
        "hub_ms",
        "day_ms",
        "event",
        "endpoint",
        F.when(F.col("endpoint").isNotNull(), F.coalesce("priority", default)).alias("priority"),
        F.when(event == "expired", F.get("routes", F.lit(0))).alias("route"),
        F.when(event == "expired", F.col("device")).alias("device"),
        F.when(event == "carried", F.col("rows"))
        .when(event != "link", F.coalesce("count", F.lit(1)))
        .otherwise(F.lit(0))
        .alias("rows"),
        F.coalesce("bytes", F.lit(0)).alias("bytes"),
        # Any large number may stand for a row that may wait for ever.
        F.when(F.col("ttl_ms") > NUMBER_MAX, F.lit(NUMBER_MAX))
        .otherwise(F.col("ttl_ms"))
        .alias("ttl_ms"),
        "waited_ms",
        *(f"{cause}_ms" for cause in schemas.CAUSES),
        F.coalesce("edge", "state", F.substring_index("reason", ":", 1)).alias("detail"),
        "to_endpoint",
        F.when(event == "moved", F.coalesce("to_priority", default)).alias("to_priority"),
        "fault",
        F.when(is_doubtful, F.xxhash64(*_own_columns())).alias("content"),
        F.when(is_faulty | is_doubtful, F.input_file_name()).alias("file"),
        F.when(is_faulty, F.coalesce(schemas.CORRUPT, F.to_json(F.struct(*_own_columns())))).alias(
            "line"
        ),
        *(_for_scenarios() if asks_what_if else ()),
    )


def _for_scenarios() -> list[Column]:
    """Return the columns that `analytics.what_if.parcels` has a use for, and no other question."""
    # What Spark reads as text is the JSON itself.
    names = {"routes": "route_table", "endpoints": "endpoints", "caps": "caps"}
    parts: list[Column] = []
    for name, column in names.items():
        before = "," if parts else "{"
        parts += [F.lit(f'{before}"{name}":'), F.coalesce(column, F.lit("null"))]
    in_force = F.concat(*parts, F.lit("}"))
    details = F.when(F.col("event") == "settings", in_force).otherwise(F.to_json("ages"))
    return [F.col("routes"), F.col("attempt_ms"), details.alias("details")]


def _own_columns() -> list[str]:
    return [name for name in schemas.LINE.names if name != schemas.CORRUPT]


def _fault() -> Column:
    """Name what is wrong with a line, the most telling fault first."""
    day_ms, edge = F.col("day_ms"), F.col("edge")
    is_end = (F.col("event") == "carried") & (edge == "out") & (day_ms == schemas.DAY_MS)
    outside = (day_ms < 0) | (day_ms >= schemas.DAY_MS)
    return (
        F.when(~F.col("v").isin(*schemas.VERSIONS), F.lit("version"))
        .when(F.col(schemas.CORRUPT).isNotNull(), F.lit("not_json"))
        .when(_is_incomplete(), F.lit("incomplete"))
        .when(~F.col("event").isin(*schemas.EVENTS), F.lit("event"))
        .when(day_ms.isNull() | ~_is_utc(), F.lit("time"))
        .when(outside & ~F.coalesce(is_end, F.lit(False)), F.lit("other_date"))
        .when(_is_out_of_range(), F.lit("value"))
    )


def _is_utc() -> Column:
    """Return whether it is a moment in UTC; a cast takes dates, times and other zones for one."""
    return (F.substring("time", 11, 1) == "T") & F.col("time").endswith("Z")


def _is_incomplete() -> Column:
    event = F.col("event")
    of_queue = (*schemas.ROW_EVENTS, "retried", "carried")
    needs = {
        # One look at a set of all, however many they are.
        "endpoint": event.isin(*of_queue, "link", "dead_purged", "traffic"),
        "bytes": event.isin(*of_queue, "traffic"),
        "to_endpoint": event == "moved",
        "edge": event == "carried",
        "rows": event == "carried",
        "state": event == "link",
    }
    always = ("v", *schemas.LINE_KEY, "time", "hub_ms", "event")
    missing = [F.col(name).isNull() for name in always]
    # In this order a line that has the key is not asked for its event.
    missing += [F.col(name).isNull() & when for name, when in needs.items()]
    return reduce(or_, missing)


def _is_out_of_range() -> Column:
    numbers = ("commit", "seq", "hub_ms", "priority", "bytes", "count", "rows")
    waits = ("waited_ms", "to_priority", *(f"{cause}_ms" for cause in schemas.CAUSES))
    edge, state = F.col("edge"), F.col("state")
    given = [F.col(name) for name in (*numbers, *waits)]
    wrong = [
        # The least, and the greatest, of those that are there.
        F.least(*given, F.col("ttl_ms")) < 0,
        F.greatest(*given) > NUMBER_MAX,
        (F.col("event") == "carried") & ~edge.isin(*schemas.EDGES),
        (F.col("event") == "link") & ~state.isin(*schemas.LINK_STATES),
    ]
    return reduce(or_, [F.coalesce(each, F.lit(False)) for each in wrong])


def good_lines(lines: DataFrame) -> DataFrame:
    """Keep the lines without a fault."""
    return lines.where(F.col("fault").isNull()).drop("fault", "content", "file", "line")


def tally(lines: DataFrame, doubtful: Collection[str]) -> DataFrame:
    """Count lines by hub and fault, and good ones of doubtful hubs that repeat another one.

    The places within a commit are looked at in masks of 64 bits: as exact as a count of distinct
    keys, with a group per commit instead of one per line, and one in all for other hubs.

    Args:
        lines: Judged lines.
        doubtful: Hubs of which lines may be there twice.

    Returns:
        Grain: `hub`, `fault`, null for good lines. `lines` and, among the good ones, `copies`.
    """
    if not doubtful:
        counted = F.count(F.lit(1)).alias("lines")
        return lines.groupBy("hub", "fault").agg(counted, F.lit(0).alias("copies"))
    place = F.col("seq")
    is_sought = F.col("fault").isNull() & F.col("content").isNotNull()
    masks = lines.groupBy(
        "fault",
        "hub",
        F.when(is_sought, F.col("store")).alias("store"),
        F.when(is_sought, F.col("commit")).alias("commit"),
        F.when(is_sought, F.shiftrightunsigned(place, 6)).alias("block"),
    ).agg(
        F.count(F.lit(1)).alias("lines"),
        F.bit_or(F.expr("shiftleft(1L, CAST(seq % 64 AS INT))")).alias("mask"),
    )
    repeated = F.when(F.col("commit").isNotNull(), F.col("lines") - F.bit_count("mask"))
    return masks.groupBy("hub", "fault").agg(
        F.sum("lines").alias("lines"), F.coalesce(F.sum(repeated), F.lit(0)).alias("copies")
    )


def clones(lines: DataFrame, repeated: Collection[str]) -> DataFrame:
    """Find hubs of which two lines have one key and differ: two hubs went on from one file.

    Args:
        lines: Judged lines.
        repeated: Hubs with copies, none of the others is looked at.

    Returns:
        Grain: `hub`. `lines` that differ, and of one of them the files `one` and `other`.
    """
    good = lines.where(F.col("fault").isNull() & F.col("hub").isin(*repeated))
    if not repeated:
        good = good.limit(0)
    keys = good.groupBy(*schemas.LINE_KEY).agg(
        F.min("content").alias("least"),
        F.max("content").alias("most"),
        F.min_by("file", "content").alias("one"),
        F.max_by("file", "content").alias("other"),
    )
    return (
        keys.where(F.col("least") != F.col("most"))
        .groupBy("hub")
        .agg(
            F.count(F.lit(1)).alias("lines"),
            F.min_by("one", "commit").alias("one"),
            F.min_by("other", "commit").alias("other"),
        )
    )


def without_copies(lines: DataFrame) -> DataFrame:
    """Keep one line of each key."""
    return lines.dropDuplicates(list(schemas.LINE_KEY))
