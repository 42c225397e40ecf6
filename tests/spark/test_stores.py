"""Hubs with several database files on one date: a gateway that was replaced, two of one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from analytics import job
from analytics.args import parse_args
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE, Results
from tests.support.report_days import sends

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

HUB_MS_OLD = 1 << 43
"""Of a file that is ten days older than the other one, both began with this."""
TEN_DAYS_MS = 864_000_000


def starving(journal: HandJournal, first: str, last: str) -> None:
    """Add a row of priority 5 that waits behind better ones, and then leaves."""
    journal.add("enqueued", first, priority=5)
    sends(journal, f"{first[:-2]}10", last)
    journal.left("sent", last, priority=5, waited_ms=3_600_000)


def write(export: Path, hub: str, store: str, start_ms: int, first: str, last: str) -> None:
    """Write the journal of one database file of a hub."""
    journal = HandJournal(DATE, hub=hub, start_ms=start_ms)
    starving(journal, first, last)
    for line in journal.lines:
        line["store"] = store * 2
    journal.write(export, f"000000004712-{store}.jsonl.gz")


@pytest.fixture(scope="module")
def results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the report on three hubs."""
    folder = tmp_path_factory.mktemp("stores")
    export, output = folder / "export", folder / "output"
    old, new = HUB_MS_OLD + TEN_DAYS_MS, HUB_MS_OLD - 43_200_000
    write(export, "replaced", "aaaaaaaa", old, "08:00:00", "09:00:00")
    write(export, "replaced", "bbbbbbbb", new, "13:00:00", "14:00:00")
    write(export, "twins", "aaaaaaaa", old, "08:00:00", "09:00:00")
    write(export, "twins", "bbbbbbbb", new, "08:30:00", "09:30:00")
    write(export, "single", "cccccccc", old, "10:00:00", "11:00:00")
    args = parse_args([f"--input={export}", f"--output={output}", f"--date={DATE}"])
    assert job.run(spark, args) == 0
    return Results(output)


def test_windows_are_of_one_time(results: Results):
    """Hub time began again at noon: no window reaches from one file into the other's."""
    found = [
        (row["hub"], row["kind"], f"{row['start']:%H:%M}", row["length_ms"], row["rows"])
        for row in results.table("starvation_windows", "hub <> 'twins'")
    ]
    assert sorted(found) == [
        ("replaced", "starved", "08:00", 3_600_000, 1),
        ("replaced", "starved", "13:00", 3_600_000, 1),
        ("single", "starved", "10:00", 3_600_000, 1),
    ]


def test_counts_are_of_both_files(results: Results):
    """They have other commits of the same numbers, which are no copies."""
    assert results.metrics["copies"] == 0
    rows = {row["hub"]: row for row in results.table("balance", "priority = 5")}
    assert {hub: row["sent_rows"] for hub, row in rows.items()} == {
        "replaced": 2,
        "twins": 2,
        "single": 1,
    }
    assert {row["state"] for row in rows.values()} == {"closed"}


def test_two_hubs_of_one_name_are_named(results: Results):
    """The figures of waiting cover both; a hub that was replaced has none."""
    assert results.metrics["hubs_of_one_name"] == ["twins"]
    assert "Several hubs at once call themselves twins" in results.page.read_text("utf-8")
