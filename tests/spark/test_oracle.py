"""Every figure once more: DuckDB, or a plain loop, over the same files gives the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import report_oracle as oracle
from tests.support.report import export_lines

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from tests.support.report import Results

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def database(export: Path) -> duckdb.DuckDBPyConnection:
    """Return the lines of the export in DuckDB."""
    return export_lines(export)


def test_expiry(results: Results, database: duckdb.DuckDBPyConnection):
    """Rows, bytes and the parts of their waits by queue, route, device, cause and hour."""
    oracle.check_expiry(results, database)


def test_flows_of_the_equation(results: Results, database: duckdb.DuckDBPyConnection):
    """Each flow of each queue in rows and bytes."""
    oracle.check_flows(results, database)


def test_backlog(results: Results, database: duckdb.DuckDBPyConnection):
    """Rows and bytes that wait at the end of each slot of ten minutes."""
    oracle.check_backlog(results, database, {"open": 60})


def test_waiting_percentiles(results: Results, database: duckdb.DuckDBPyConnection):
    """The smallest wait of enough rows, at three digits; the rest exactly."""
    oracle.check_waiting(results, database, "hub LIKE 'model%' OR hub = 'mixed'")


def test_losses(results: Results, database: duckdb.DuckDBPyConnection):
    """Drops, dead letters, demotions, refusals by the kind of their reason."""
    oracle.check_losses(results, database)


def test_starvation_windows(results: Results, database: duckdb.DuckDBPyConnection):
    """A loop over the lines in their order, without pieces or minutes, finds the same windows."""
    oracle.check_windows(results, database)
    assert {row["hub"] for row in results.table("starvation_windows")} >= {"model-1", "model-2"}
