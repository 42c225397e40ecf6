"""Metrics of the reports of the last days, which the page shows with the figures of a date."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from analytics.files import literal
from analytics.writers import metrics_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.args import JobArgs
    from analytics.files import Files

DAYS: Final = 7

History = dict[int, dict[str, Any]]
"""Metrics of earlier dates by how many days ago they were."""


def history(spark: SparkSession, files: Files, args: JobArgs) -> History:
    """Read the metrics of the last days that have a page."""
    places = {
        ago: metrics_file(args, args.date - timedelta(days=ago)) for ago in range(1, DAYS + 1)
    }
    known = [literal(place) for place in places.values() if files.exists(place)]
    if not known:
        return {}
    texts = spark.read.text(known, wholetext=True).collect()
    dated = {metrics["date"]: metrics for metrics in (json.loads(row["value"]) for row in texts)}
    found = {}
    for ago in places:
        metrics = dated.get((args.date - timedelta(days=ago)).isoformat(), {})
        if metrics.get("outcome") in ("done", "partial"):
            found[ago] = metrics
    return found
