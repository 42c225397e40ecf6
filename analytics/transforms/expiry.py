"""What expired, where, and what its time to live was spent on."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from analytics import schemas

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNKNOWN: Final = "unknown"


def expiry(ended: DataFrame) -> DataFrame:
    """Count expired rows by cause.

    Args:
        ended: See `analytics.transforms.ends`.

    Returns:
        Grain: queue, route (the winner), device, cause, hour of the day (UTC). `rows` and `bytes`
        were lost; `ttl_ms`, `waited_ms` and its four parts are sums over the rows. The cause of a
        row is the largest part of its wait; lines that stand for many rows have no parts: cause
        `unknown`.
    """
    parts = [f"{cause}_ms" for cause in schemas.CAUSES]
    sums = ["rows", "bytes", "ttl_ms", "waited_ms", *parts]
    return ended.where(F.col("event") == "expired").select(
        *(*schemas.QUEUE, "route", "device", "cause", "hour"),
        *(F.coalesce(name, F.lit(0)).alias(name) for name in sums),
    )


def cause() -> Column:
    """Name the largest part of a wait; the first of `schemas.CAUSES` wins a tie."""
    parts = {name: F.coalesce(F.col(f"{name}_ms"), F.lit(0)) for name in schemas.CAUSES}
    largest = reduce(F.greatest, parts.values())
    named = F.when(F.col("waited_ms").isNull(), F.lit(UNKNOWN))
    for name, part in parts.items():
        named = named.when(part == largest, F.lit(name))
    return named
