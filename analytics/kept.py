"""Frames that are computed once and read by several questions, cut off from their plans.

Plans that grow from question to question cost more than the questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def keep(frame: DataFrame, *, eager: bool = True) -> DataFrame:
    """Return a frame that is computed now, or by the first question that reads it."""
    # Where executors may be lost, and with them what only they have, spark.checkpoint.dir is set.
    if frame.sparkSession.sparkContext.getCheckpointDir():
        return frame.checkpoint(eager=eager)
    return frame.localCheckpoint(eager=eager)
