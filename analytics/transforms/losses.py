"""What left its queue unsent, or changed it: drops, dead letters, demotions, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics import schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOSS_EVENTS: Final = (
    *("dropped", "dead_lettered", "purged", "lost"),
    *("moved", "retried", "refused", "dead_purged"),
)


def losses(summed: DataFrame) -> DataFrame:
    """Count events by the kind of their reason.

    Returns:
        Grain: queue, event, `reason` (what stands before its first colon). A `moved` line with the
        reason `recency` is a demotion; `refused` has no queue.
    """
    return (
        summed.where(F.col("event").isin(*LOSS_EVENTS))
        .groupBy(*schemas.QUEUE, "event", F.col("detail").alias("reason"))
        .agg(F.sum("rows").alias("rows"), F.sum("bytes").alias("bytes"))
    )
