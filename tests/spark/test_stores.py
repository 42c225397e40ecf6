"""Hubs with several database files on one date: a gateway that was replaced, two of one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.report import Results

pytestmark = pytest.mark.timeout(300)


def test_windows_are_of_one_time(results: Results):
    """Hub time began again at noon: no window reaches from one file into the other's."""
    found = [
        (row["hub"], row["kind"], f"{row['start']:%H:%M}", row["length_ms"], row["rows"])
        for row in results.table("starvation_windows", "hub IN ('replaced', 'starved')")
    ]
    assert sorted(found) == [
        ("replaced", "starved", "08:00", 3_600_000, 1),
        ("replaced", "starved", "13:00", 3_600_000, 1),
        ("starved", "starved", "10:00", 3_600_000, 2),
    ]


def test_counts_are_of_both_files(results: Results):
    """They have other commits of the same numbers, which are no copies."""
    assert results.metrics["copies"] == 0
    rows = {
        row["hub"]: row
        for row in results.table(
            "balance", "priority = 5 AND hub IN ('replaced', 'twins', 'starved')"
        )
    }
    assert {hub: row["sent_rows"] for hub, row in rows.items()} == {
        "replaced": 2,
        "twins": 2,
        "starved": 2,
    }
    assert {row["state"] for row in rows.values()} == {"closed"}


def test_two_hubs_of_one_name_are_named(results: Results):
    """The figures of waiting cover both; a hub that was replaced has none."""
    assert results.metrics["hubs_of_one_name"] == ["twins"]
    assert "Several hubs at once call themselves twins" in results.page.read_text("utf-8")
