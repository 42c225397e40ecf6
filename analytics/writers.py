"""Tables to Parquet and CSV, each date replaced whole.

Owns the layout under the output: `<table>/date=D/`, `csv/<table>/date=D/`, `report/date=D/`.
Invariants: a run replaces exactly its own date, also where the new result is empty; the metrics of
a date are there only if all the rest is of the same run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from analytics import outputs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from analytics.args import JobArgs
    from analytics.files import Files

FILE_ROWS: Final = 2_000_000
TEXT_ROWS: Final = 500_000
"""Larger tables have no CSV file: it is for spreadsheets, which hold a million rows."""

_MARK: Final = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
AT_ONCE: Final = 4
"""Tables written at a time: small ones cost planning, not work."""


def begin(files: Files, args: JobArgs) -> None:
    """Remove what an earlier run wrote about the date as a whole, before any of it is replaced.

    That is its metrics, and its answers and advice, which this run may not be asked for.
    """
    files.delete(metrics_file(args))
    files.delete(fragment_file(args))
    for folder in _folders(args, "what_if"):
        files.delete(folder)


def clear(files: Files, args: JobArgs) -> None:
    """Remove what earlier runs left of a date that has no lines now."""
    begin(files, args)
    for name in outputs.TABLES:
        for folder in _folders(args, name):
            files.delete(folder)
    for place in _pages(args):
        files.delete(place)


def write_tables(
    files: Files, args: JobArgs, tables: Mapping[str, DataFrame], quarantined: int = 0
) -> dict[str, int]:
    """Write tables of the date.

    Args:
        files: Access to the folders.
        args: Output and date.
        tables: Frames by name; they should be persisted.
        quarantined: Rows of the quarantine, the one table that may be as large as the export.

    Returns:
        Rows of each table.

    Raises:
        AnalyticsError: A table does not have its schema; none was written.
    """
    for name, table in tables.items():
        outputs.check(name, table)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="write") as pool:
        # Otherwise each task of the last question would leave a file of its own.
        parts = {"quarantine": 1 + quarantined // FILE_ROWS}
        written = {
            name: pool.submit(_write, files, args, name, table, parts.get(name, 1))
            for name, table in tables.items()
        }
    return {name: rows.result() for name, rows in written.items()}


def _folders(args: JobArgs, name: str) -> tuple[str, str]:
    """Return where a table's date is, as Parquet and as CSV."""
    dated = f"{name}/date={args.date}"
    return f"{args.output}/{dated}", f"{args.output}/csv/{dated}"


def write_pages(files: Files, args: JobArgs, fleet: str, hubs: Mapping[str, str]) -> None:
    """Write the page of the date, and those of its hubs by the names of their files."""
    page, folder = _pages(args)
    files.delete(folder)
    for name, text in hubs.items():
        files.write(f"{folder}/{name}", text.encode())
    files.write(page, fleet.encode())


def _pages(args: JobArgs) -> tuple[str, str]:
    """Return the place of the page of the date, and the folder of those of its hubs."""
    dated = f"{args.output}/report/date={args.date}"
    return f"{dated}/report.html", f"{dated}/hubs"


def fragment_file(args: JobArgs) -> str:
    """Return the place of the fragment of a manifest that is advised."""
    return f"{args.output}/report/date={args.date}/advice.json"


def metrics_file(args: JobArgs, date: date | None = None) -> str:
    """Return the place of the metrics of a date, by default that of the run."""
    return f"{args.output}/report/date={date or args.date}/metrics.json"


def _write(files: Files, args: JobArgs, name: str, table: DataFrame, parts: int) -> int:
    folder, text_folder = _folders(args, name)
    written = Observation()
    counted = table.observe(written, F.count(F.lit(1)).alias("rows"))
    # The metrics mark a date as whole; a mark in each folder would only cost time.
    unmarked = counted.coalesce(parts).write.option(_MARK, value=False)
    unmarked.mode("overwrite").parquet(folder)
    rows = int(written.get.get("rows", 0))
    if not rows:
        files.delete(folder)
    files.delete(text_folder)
    if 0 < rows <= TEXT_ROWS:
        # Where Hadoop has no native library, each file and folder of Spark's own writer costs a
        # process that sets its mode.
        files.write(f"{text_folder}/{name}.csv", _csv(name, table).encode())
    return rows


def _csv(name: str, table: DataFrame) -> str:
    fields = outputs.TABLES[name].schema.fields
    flat = F.struct(*(_as_text(field) for field in fields))
    lines = table.select(F.to_csv(flat, {"escape": '"'})).collect()
    return "\n".join([",".join(field.name for field in fields), *(line for (line,) in lines), ""])


def _as_text(field: StructField) -> Column:
    column = F.col(field.name)
    if field.dataType.typeName() == "array":
        return F.array_join(column.cast("array<string>"), " ").alias(field.name)
    return column
