"""Lines of a date as Parquet: read and judged once, for all questions and the reports that follow.

Owns `prepared/date=D/` in the output, and `lines-D.draft/` while a large day is reported on.
Invariant: prepared lines are used only for the very segments that they were read from, which the
mark of the date names; without a mark they are incomplete.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from analytics.files import Files, literal
from analytics.hubs import survey
from analytics.phases import Phases
from analytics.quality import surveyed as hubs_by_segments
from analytics.readers import is_malformed, read_lines
from analytics.session import adapt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from analytics.args import JobArgs
    from analytics.hubs import Survey
    from analytics.quality import HubDay

FORMAT: Final = 1
"""Raised with each change of how lines are judged: those of another one are not used."""

_DISTINCT: Final = ("commit", "hub_ms", "day_ms")
"""Columns of which most values differ: a dictionary is begun for each page, and given up."""


def prepare(spark: SparkSession, args: JobArgs) -> tuple[dict[str, Any], list[HubDay]]:
    """Read the lines of a date and keep them.

    Returns:
        What the run reports, and the hubs whose segments are damaged.
    """
    phases = Phases()
    files = Files(spark)
    adapt(spark, 0)
    surveyed = survey(spark, files, args)
    adapt(spark, surveyed.size)
    metrics: dict[str, Any] = {"date": args.date.isoformat(), "outcome": "empty", "lines": 0}
    if surveyed.folders:
        metrics |= {"outcome": "prepared", "lines": _write(spark, files, args, surveyed)}
    phases.end("prepare")
    metrics["seconds"] = phases.seconds["prepare"]
    days = hubs_by_segments(surveyed, ()).values()
    return metrics, [day for day in days if day.state == "damaged"]


def _write(spark: SparkSession, files: Files, args: JobArgs, surveyed: Survey) -> int:
    """Write judged lines and return their number."""
    mark, folder = _places(args)
    files.delete(mark)
    written = _read_into(folder, spark, surveyed, args)
    content = {"format": FORMAT, "segments": surveyed.fingerprint}
    files.write(mark, json.dumps(content).encode())
    # Parquet knows it; counted by the way, each line would pass through a step that is interpreted.
    return written.count()


def _read_into(folder: str, spark: SparkSession, surveyed: Survey, args: JobArgs) -> DataFrame:
    """Read and judge the lines of a date, store them, and return what is stored.

    Hubs write whole lines: only if one is found that is not, all are read once more for its text.
    """
    try:
        _store(read_lines(spark, surveyed, args, are_objects=True), folder)
    except (PySparkException, Py4JJavaError) as error:
        if not is_malformed(error):
            raise
        _store(read_lines(spark, surveyed, args), folder)
    return spark.read.parquet(literal(folder))


def _store(lines: DataFrame, folder: str) -> None:
    writer = lines.write.mode("overwrite")
    for name in _DISTINCT:
        writer = writer.option(f"parquet.enable.dictionary#{name}", value=False)
    writer.parquet(folder)


@contextmanager
def drafts(files: Files, args: JobArgs) -> Iterator[None]:
    """Remove what `draft` has written in the end, and what a run left that was killed."""
    folder = _draft(args)
    files.delete(folder)
    try:
        yield
    finally:
        # Java may have ended.
        with suppress(Py4JError, OSError):
            files.delete(folder)


def draft(spark: SparkSession, surveyed: Survey, args: JobArgs) -> DataFrame:
    """Read and judge the lines of a date, of which each question then reads what it needs."""
    return _read_into(_draft(args), spark, surveyed, args)


def read_prepared(
    spark: SparkSession, files: Files, args: JobArgs, surveyed: Survey
) -> DataFrame | None:
    """Return the lines of the segments of a date, None = they were not prepared."""
    mark, folder = _places(args)
    if not files.exists(mark):
        return None
    row = spark.read.text([literal(mark)], wholetext=True).first()
    if row is None or json.loads(row["value"]) != {
        "format": FORMAT,
        "segments": surveyed.fingerprint,
    }:
        return None
    return spark.read.parquet(literal(folder))


def _draft(args: JobArgs) -> str:
    # In the output, which all executors reach.
    return f"{args.output}/lines-{args.date}.draft"


def _places(args: JobArgs) -> tuple[str, str]:
    """Return the places of the mark and of the lines."""
    dated = f"{args.output}/prepared/date={args.date}"
    return f"{dated}/segments.json", f"{dated}/lines"
