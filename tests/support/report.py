"""Reads what the report wrote, and the export it was made from, with DuckDB."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import duckdb

from analytics.schemas import DAY_MS, DEFAULT_PRIORITY

if TYPE_CHECKING:
    from pathlib import Path

DATE: Final = "2026-11-28"

_COLUMNS: Final = {
    "hub": "VARCHAR",
    "store": "VARCHAR",
    "commit": "BIGINT",
    "seq": "BIGINT",
    "time": "VARCHAR",
    "hub_ms": "BIGINT",
    "event": "VARCHAR",
    "endpoint": "VARCHAR",
    "priority": "BIGINT",
    "device": "VARCHAR",
    "routes": "VARCHAR[]",
    "bytes": "BIGINT",
    "count": "BIGINT",
    "ttl_ms": "BIGINT",
    "waited_ms": "BIGINT",
    "offline_ms": "BIGINT",
    "behind_ms": "BIGINT",
    "retry_ms": "BIGINT",
    "rate_ms": "BIGINT",
    "reason": "VARCHAR",
    "to_endpoint": "VARCHAR",
    "to_priority": "BIGINT",
    "edge": "VARCHAR",
    "rows": "BIGINT",
    "state": "VARCHAR",
}


class Results:
    """The tables of one run."""

    def __init__(self, output: Path, date: str = DATE) -> None:
        self.output = output
        self.date = date

    def table(self, name: str, where: str = "true") -> list[dict[str, Any]]:
        """Return rows of a table as they stand in its Parquet files; none without files."""
        files = [str(file) for file in self.folder(name).glob("*.parquet")]
        if not files:
            return []
        found = duckdb.sql(f"SELECT * FROM read_parquet({files}) WHERE {where}")
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]

    def folder(self, name: str) -> Path:
        """Return the folder of a table and the date."""
        return self.output / name / f"date={self.date}"

    @property
    def page(self) -> Path:
        """The page of the date."""
        return self.output / "report" / f"date={self.date}" / "report.html"

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the date."""
        metrics: dict[str, Any] = json.loads(self.page.with_name("metrics.json").read_text("utf-8"))
        return metrics


def export_lines(export: Path, date: str = DATE) -> duckdb.DuckDBPyConnection:
    """Return a database whose table `lines` has each line of a date once.

    Columns in addition: `day_ms`; `n`, the rows that it stands for; `left`, false. `hub_ms` is put
    so that 00:00 of each database file, by its first line, is one day.
    """
    database = duckdb.connect()
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in _COLUMNS.items())
    database.execute(
        f"""
        CREATE TABLE lines AS
        WITH read AS (
            SELECT DISTINCT ON (hub, store, commit, seq) * EXCLUDE (priority, to_priority),
                CASE WHEN endpoint IS NOT NULL
                    THEN coalesce(priority, {DEFAULT_PRIORITY}) END AS priority,
                CASE WHEN event = 'moved'
                    THEN coalesce(to_priority, {DEFAULT_PRIORITY}) END AS to_priority,
                epoch_ms(time::TIMESTAMPTZ) - epoch_ms(TIMESTAMPTZ '{date} 00:00:00+00') AS day_ms,
                CASE WHEN event = 'carried' THEN rows WHEN event = 'link' THEN 0
                    ELSE coalesce(count, 1) END AS n
            FROM read_json('{export}/date={date}/hub=*/*.jsonl.gz', format = 'newline_delimited',
                hive_partitioning = false, ignore_errors = true, columns = {{{columns}}})
            WHERE hub IS NOT NULL AND event IS NOT NULL
        ), files AS (
            SELECT hub, store, arg_min(hub_ms - day_ms, (commit, seq)) AS midnight_ms
            FROM read GROUP BY ALL
        )
        SELECT read.* REPLACE (hub_ms - midnight_ms + {DAY_MS} AS hub_ms), false AS "left"
        FROM read JOIN files USING (hub, store)
        """
    )
    return database


def rows_of(database: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """Run a query and return its rows."""
    found = database.sql(query)
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
