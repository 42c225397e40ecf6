"""Settings of Spark, for every day and for a small one.

Owns the bound between them. A small day is over before code that is made and compiled for each
step would pay: it is interpreted, in one piece, by queries that are planned once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SMALL_BYTES: Final = 2 << 20
"""Of segments, packed: about seventy thousand lines, well below where both ways take as long."""

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Compressed, ten million lines took twenty seconds longer and a fifth less of the disk.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Unpacked, a segment is twelve times as large: by Spark's own bounds one task would read half a
    # day of a huge hub. Opening one costs little compared with its lines.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
    "spark.sql.files.openCostInBytes": str(1 << 20),
    # Without it the errors of tasks, such as a full disk, would come without their cause.
    "spark.sql.pyspark.jvmStacktrace.enabled": "true",
    # A damaged segment is reported and ends the run; left out in silence its rows would be missing.
    "spark.sql.files.ignoreCorruptFiles": "false",
}

_SMALL: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}

_SMALL_JAVA: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_WORTH_IT: Final = {
    "Invocation": 200_000,
    "MinInvocation": 24_000,
    "Compile": 600_000,
    "BackEdge": 1_600_000,
}
"""Forty times Java's own: with ten times the second compiler took twice as long, tasks no less."""

_MOST_CLASSES: Final = (
    *("spark-catalyst", "spark-sql", "spark-sql-api", "spark-core", "scala-library"),
    *("hadoop-client-api", "hadoop-client-runtime"),
)


def is_small(size: int) -> bool:
    """Return whether segments of so many bytes are a small day."""
    return size <= SMALL_BYTES


def adapt(spark: SparkSession, size: int) -> None:
    """Set up the session's SQL for a date.

    Args:
        spark: The session; one for several dates is set up for each of them.
        size: Bytes of the date's segments.
    """
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    started_with = spark.sparkContext.getConf()
    for name, small in _SMALL.items():
        if is_small(size):
            spark.conf.set(name, small)
        elif started_with.contains(name):
            spark.conf.set(name, str(started_with.get(name)))
        else:
            spark.conf.unset(name)


def java_options(size: int | None) -> list[str]:
    """Return options of Java for a date.

    Args:
        size: Bytes of the date's segments, None where they are not known before Java runs.
    """
    if size is not None and is_small(size):
        return list(_SMALL_JAVA)
    # Each step has code of its own, made for it: only what runs for long is worth the second
    # compiler, which took a quarter of all time for ten million lines.
    thresholds = [f"-XX:Tier4{name}Threshold={number}" for name, number in _WORTH_IT.items()]
    return ["-XX:+UseParallelGC", *thresholds]


def class_path(home: Path) -> str:
    """Return the jars with most classes, for Java to look into them first.

    Otherwise it searches hundreds of jars for each class, in the order of their folder: a sixth of
    the time of a small day.

    Args:
        home: Folder of the Spark installation.
    """
    jars = [path for name in _MOST_CLASSES for path in home.glob(f"jars/{name}[-_][0-9]*.jar")]
    return os.pathsep.join(map(str, jars))
