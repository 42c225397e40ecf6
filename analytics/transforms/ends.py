"""How rows ended their wait, sent or expired: the one pass that two questions share.

Grain: queue, event and, of sent rows, `bucket_ms`; of expired ones `route`, `device`, `cause` and
`hour`. What does not belong to the event is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics import schemas
from analytics.transforms.expiry import cause
from analytics.transforms.waiting import bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_MS: Final = 3_600_000


def ends(lines: DataFrame) -> DataFrame:
    """Sum up sent and expired rows.

    Returns:
        Columns `rows`, `bytes`, `max_ms`, the longest wait, and sums of `ttl_ms`, `waited_ms` and
        its four parts, null where no line has them.
    """
    is_sent, is_expired = F.col("event") == "sent", F.col("event") == "expired"
    hour = F.floor(F.col("day_ms") / F.lit(_HOUR_MS)).cast("int")
    sums = ("rows", "bytes", "ttl_ms", "waited_ms", *(f"{cause}_ms" for cause in schemas.CAUSES))
    return (
        lines.where(is_sent | is_expired)
        .groupBy(
            *schemas.QUEUE,
            "event",
            F.when(is_sent, bucket("waited_ms")).alias("bucket_ms"),
            "route",
            "device",
            F.when(is_expired, cause()).alias("cause"),
            F.when(is_expired, hour).alias("hour"),
        )
        .agg(F.max("waited_ms").alias("max_ms"), *(F.sum(name).alias(name) for name in sums))
    )
