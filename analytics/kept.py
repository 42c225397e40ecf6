"""Frames that are computed once and read by several questions, cut off from their plans.

Plans that grow from question to question cost more than the questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import StorageLevel

from analytics.session import is_small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def keep(frame: DataFrame, *, eager: bool = True) -> DataFrame:
    """Return a frame that is computed now, or by the first question that reads it."""
    # Where executors may be lost, and with them what only they have, spark.checkpoint.dir is set.
    if frame.sparkSession.sparkContext.getCheckpointDir():
        return frame.checkpoint(eager=eager)
    return frame.localCheckpoint(eager=eager)


def keep_lines(lines: DataFrame, size: int, *, is_stored: bool = False) -> DataFrame:
    """Return lines that are read and judged by the first question that reads them.

    Args:
        lines: Judged lines.
        size: Bytes of the segments that they come from.
        is_stored: Whether they are read from Parquet, of which each question reads what it needs.
    """
    if is_small(size):
        # In one partition no later question has to move rows: half of all stages are not needed.
        return keep(lines.repartition(1), eager=False)
    return lines if is_stored else lines.persist(StorageLevel.DISK_ONLY)
