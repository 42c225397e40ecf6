"""Tables to Parquet and CSV, each date replaced whole.

Owns the layout under the output: `<table>/date=D/`, `csv/<table>/date=D/`, `report/date=D/`.
Invariants: a run replaces exactly its own date, also where the new result is empty; the metrics of
a date are there only if all the rest is of the same run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from analytics.args import JobArgs
    from analytics.files import Files

TABLES: Final = (
    *("balance", "backlog", "expiry", "waiting", "waiting_histogram"),
    *("starvation_windows", "starvation", "losses", "unserved", "quarantine"),
)
FILE_ROWS: Final = 2_000_000
AT_ONCE: Final = 4
"""Tables written at a time: small ones cost planning, not work."""


def begin(files: Files, args: JobArgs) -> None:
    """Take the metrics of an earlier run away, before anything else of the date is replaced."""
    files.delete(metrics_file(args))


def clear(files: Files, args: JobArgs) -> None:
    """Remove what earlier runs left of a date that has no lines now."""
    begin(files, args)
    for name in TABLES:
        files.delete(f"{args.output}/{name}/date={args.date}")
        files.delete(f"{args.output}/csv/{name}/date={args.date}")
    files.delete(page_file(args))


def write_tables(files: Files, args: JobArgs, tables: Mapping[str, DataFrame]) -> dict[str, int]:
    """Write all tables of the date.

    Args:
        files: Access to the folders.
        args: Output and date.
        tables: Frames by name; they should be persisted.

    Returns:
        Rows of each table.
    """
    assert set(tables) == set(TABLES)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="write") as pool:
        written = {
            name: pool.submit(_write, files, args, name, table) for name, table in tables.items()
        }
    return {name: rows.result() for name, rows in written.items()}


def page_file(args: JobArgs) -> str:
    """Return the place of the page of the date."""
    return f"{args.output}/report/date={args.date}/report.html"


def metrics_file(args: JobArgs) -> str:
    """Return the place of the metrics of the date."""
    return f"{args.output}/report/date={args.date}/metrics.json"


def _write(files: Files, args: JobArgs, name: str, table: DataFrame) -> int:
    rows = table.count()
    if not rows:
        # Dynamic overwrite leaves a partition alone when no row belongs to it.
        files.delete(f"{args.output}/{name}/date={args.date}")
        files.delete(f"{args.output}/csv/{name}/date={args.date}")
        return 0
    dated = table.withColumn("date", F.lit(args.date.isoformat()))
    flat = dated.select(*(_as_text(dated, column) for column in dated.columns))
    # Otherwise each task of the last question would leave a file of its own.
    parts = 1 + rows // FILE_ROWS
    _overwrite(dated.coalesce(parts), f"{args.output}/{name}", "parquet")
    _overwrite(flat.coalesce(1), f"{args.output}/csv/{name}", "csv")
    return rows


def _overwrite(table: DataFrame, folder: str, kind: str) -> None:
    writer = table.write.mode("overwrite").partitionBy("date").format(kind)
    if kind == "csv":
        writer = writer.option("header", value=True).option("escape", '"')
    writer.save(folder)


def _as_text(table: DataFrame, name: str) -> Column:
    column = F.col(name)
    if table.schema[name].dataType.typeName() == "array":
        return F.array_join(column.cast("array<string>"), " ").alias(name)
    return column
