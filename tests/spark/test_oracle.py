"""Every figure once more: DuckDB, or a plain loop, over the same files gives the same numbers.

In full size on 28 generated hub-days, on which the report rests on some only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from analytics import job
from analytics.args import parse_args
from analytics.errors import EXIT_PARTIAL
from tests.support import report_oracle as oracle
from tests.support.generated_days import write_generated
from tests.support.report import DATE, Results, export_lines
from tests.support.report_equation import STATES, Equations, read_hubs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


DAYS = 28
MESSAGES = 6_000


@pytest.fixture(scope="module")
def database(export: Path) -> duckdb.DuckDBPyConnection:
    """Return the lines of the export in DuckDB."""
    return export_lines(export)


@pytest.fixture(scope="module", autouse=True)
def equations(database: duckdb.DuckDBPyConnection) -> Equations:
    """Return the equations of the export, with what was left behind marked in its lines."""
    return Equations(database)


def remove(database: duckdb.DuckDBPyConnection, hubs: Sequence[str]) -> None:
    """Remove the lines of hubs."""
    database.execute("DELETE FROM lines WHERE list_contains(?, hub)", [hubs])


def test_expiry(results: Results, database: duckdb.DuckDBPyConnection):
    """Rows, bytes and the parts of their waits by queue, route, device, cause and hour."""
    oracle.check_expiry(results, database)


def test_balance(results: Results, equations: Equations):
    """Each flow of each queue in rows and bytes, and what they come to."""
    oracle.check_balance(results, equations)


def test_backlog(results: Results, database: duckdb.DuckDBPyConnection, equations: Equations):
    """Rows and bytes that wait at the end of each slot of ten minutes."""
    open_hubs = {hub for hub, state in equations.states.items() if state == "open"}
    oracle.check_backlog(results, database, open_hubs)


def test_waiting_percentiles(results: Results, database: duckdb.DuckDBPyConnection):
    """The smallest wait of enough rows, at three digits; the rest exactly."""
    oracle.check_waiting(results, database, "hub LIKE 'model%' OR hub = 'mixed'")


def test_losses(results: Results, database: duckdb.DuckDBPyConnection):
    """Drops, dead letters, demotions, refusals by the kind of their reason."""
    oracle.check_losses(results, database)


def test_starvation_windows(results: Results, database: duckdb.DuckDBPyConnection):
    """A loop over the lines in their order, without pieces or minutes, finds the same windows."""
    oracle.check_windows(results, database)
    assert {row["hub"] for row in results.table("starvation_windows")} >= {"model-0", "model-1"}


def test_links(results: Results, database: duckdb.DuckDBPyConnection):
    """How long hubs ran, and links were down."""
    oracle.check_links(results, database)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_generated_days(spark: SparkSession, tmp_path: Path):
    """Ties, steps of the clock, cuts, files replaced, copied and cloned: equal to the row."""
    export = tmp_path / "export"
    for number in range(DAYS):
        write_generated(export, number, MESSAGES)
    args = [f"--input={export}", f"--output={tmp_path / 'results'}", f"--date={DATE}"]
    assert job.run(spark, parse_args(args)) == EXIT_PARTIAL
    results = Results(tmp_path / "results")
    database = export_lines(export)
    hubs = read_hubs(export)
    remove(database, [row["hub"] for row in hubs if row["state"] == "cloned"])
    equations = Equations(database)
    for row in hubs:
        if row["state"] == "ok":
            row["state"] = STATES[equations.states[row["hub"]]]
    assert {row["state"] for row in hubs} == {"ok", "open", "cloned", "unbalanced"}
    oracle.same(results.table("hubs"), hubs, list(hubs[0]))
    remove(database, [row["hub"] for row in hubs if row["state"] == "unbalanced"])
    oracle.check_balance(results, equations)
    oracle.check_expiry(results, database)
    open_hubs = {row["hub"] for row in hubs if row["state"] == "open"}
    oracle.check_backlog(results, database, open_hubs)
    oracle.check_waiting(results, database)
    oracle.check_losses(results, database)
    oracle.check_windows(results, database)
    oracle.check_links(results, database)
