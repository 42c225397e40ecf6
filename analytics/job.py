"""The job that spark-submit runs: arguments, session, read, judge, ask, write, exit code.

The only place that makes a session. Names no master, no memory and no secrets: they come from
spark-submit or from `python -m analytics`.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from analytics import quality, readers, writers
from analytics.args import parse_args
from analytics.errors import AnalyticsError
from analytics.files import Files
from analytics.page.page import page
from analytics.tables import share, tables
from analytics.transforms.stores import names_of_several, on_one_time, stores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from analytics.args import JobArgs

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Compressed, ten million lines took twenty seconds longer and a fifth less of the disk.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Unpacked, a segment is twelve times as large: by Spark's own bounds one task would read half a
    # day of a huge hub. Opening one costs little beside its lines.
    "spark.sql.files.maxPartitionBytes": str(32 << 20),
    "spark.sql.files.openCostInBytes": str(1 << 20),
    # A damaged segment is told and ends the run; left out in silence it would be missing rows.
    "spark.sql.files.ignoreCorruptFiles": "false",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job with a session of its own and give its exit code."""
    args = parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        spark = SparkSession.builder.appName(f"edgehub report {args.date}").getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        _say(args, f"Spark does not start: {_reason(error)}")
        return AnalyticsError.exit_code
    except OSError as error:
        _say(args, f"Spark does not start: {error}; has localhost an address (/etc/hosts)?")
        return AnalyticsError.exit_code
    try:
        return run(spark, args)
    finally:
        with suppress(Py4JError, OSError):
            spark.stop()


def run(spark: SparkSession, args: JobArgs) -> int:
    """Report on one date.

    Args:
        spark: A session; its SQL settings are set as the job needs them.
        args: What to do.

    Returns:
        Exit code: 0 done, 1 failed, 5 the counts do not close.
    """
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    try:
        print(_summary(_report(spark, args)))  # noqa: T201 - the one line that the job is asked for
    except AnalyticsError as error:
        _say(args, str(error))
        return error.exit_code
    except (PySparkException, Py4JJavaError) as error:
        _say(args, _reason(error))
        return AnalyticsError.exit_code
    except (Py4JError, OSError) as error:
        _say(args, f"Java has ended: {error}; out of memory?")
        return AnalyticsError.exit_code
    finally:
        with suppress(Py4JError, OSError):
            spark.catalog.clearCache()
    return 0


def _report(spark: SparkSession, args: JobArgs) -> dict[str, Any]:
    started = datetime.now(UTC)
    files = Files(spark)
    metrics: dict[str, Any] = {"date": args.date.isoformat(), "outcome": "empty", "lines": 0}
    lines = readers.read_lines(spark, files, args)
    if lines is not None:
        is_mixed = readers.has_several_stores(lines)
        lines = lines.persist(StorageLevel.DISK_ONLY)
        tally = {row["fault"]: row for row in readers.tally(lines).collect()}
        if tally:
            metrics |= _write(files, args, lines, tally, is_mixed=is_mixed)
    if metrics["outcome"] == "empty":
        writers.clear(files, args)
    metrics["seconds"] = round((datetime.now(UTC) - started).total_seconds(), 1)
    text = json.dumps(metrics, indent=2) + "\n"
    files.write(writers.metrics_file(args), text.encode())
    return metrics


def _write(
    files: Files,
    args: JobArgs,
    lines: DataFrame,
    tally: Mapping[str | None, Row],
    *,
    is_mixed: bool,
) -> dict[str, Any]:
    good = readers.good_lines(lines)
    twins: list[str] = []
    if is_mixed:
        known = stores(good).localCheckpoint(eager=True)
        good, twins = on_one_time(good, known), names_of_several(known)
    copies = sum(row["copies"] for row in tally.values())
    faults = {fault: tally[fault]["lines"] for fault in sorted(tally, key=str) if fault}
    shared = share(readers.without_copies(good) if copies else good)
    quarantine = lines.where(F.col("fault").isNotNull()).select("file", "fault", "line")
    if not faults:
        # Looking through all lines for none takes as long as for many.
        quarantine = quarantine.limit(0)
    quality.check(shared.balanced, quarantine)
    made = tables(shared, args)
    writers.begin(files, args)
    metrics: dict[str, Any] = {
        "outcome": "done",
        "lines": sum(row["lines"] for row in tally.values()),
        "quarantined": sum(faults.values()),
        "faults": faults,
        "copies": copies,
        "excluded_hubs": list(args.exclude_hubs),
        "hubs_of_one_name": twins,
        "starved_after_s": args.starved_after_s,
        "idle_after_s": args.idle_after_s,
    }
    with ThreadPoolExecutor(1, thread_name_prefix="page") as pool:
        made_page = pool.submit(page, args, metrics.copy(), made)
        written = writers.write_tables(files, args, made | {"quarantine": quarantine})
    content = made_page.result()
    metrics |= content.totals
    metrics["tables"] = written
    files.write(writers.page_file(args), content.html.encode())
    return metrics


def _summary(metrics: dict[str, Any]) -> str:
    """Put the metrics that fit on it into one line."""
    told = (
        f"{name}={value}" for name, value in metrics.items() if isinstance(value, str | int | float)
    )
    return "report " + " ".join(told)


def _say(args: JobArgs, reason: str) -> None:
    print(f"analytics: {args.date}: {reason}", file=sys.stderr)  # noqa: T201 - for people


def _reason(error: PySparkException | Py4JJavaError) -> str:
    """Return the lines of a Spark error that help a person: what failed, and why."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "...", "Driver stack"))]
    causes = [line for line in told if line.startswith("Caused by: ")]
    return "\n".join([*told[:2], *causes[-1:]])


if __name__ == "__main__":
    sys.exit(main())
