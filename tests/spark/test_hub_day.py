"""The report on a day that a real hub lived: equal to the hub's own counts, to the row."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from analytics import job
from analytics.args import parse_args
from tests.support import report_oracle as oracle
from tests.support.http_peer import http_peer
from tests.support.hub_day import DATE, FLOWS, HubDay
from tests.support.journal_format import check_copies, check_equation, read_folder
from tests.support.mqtt_peer import mqtt_peer
from tests.support.report import Results, export_lines
from tests.support.report_equation import Equations

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

DEFAULT = 2_000_000_000


async def _lived(folder: Path) -> HubDay:
    async with mqtt_peer() as upstream, http_peer() as lab:
        day = HubDay(folder, upstream, lab)
        await day.live()
    return day


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> HubDay:
    """Return a day that was lived and exported."""
    return asyncio.run(_lived(tmp_path_factory.mktemp("day")))


@pytest.fixture(scope="module")
def results(spark: SparkSession, day: HubDay) -> Results:
    """Return the report on it."""
    output = day.folder / "results"
    args = parse_args([f"--input={day.export}", f"--output={output}", f"--date={DATE}"])
    assert job.run(spark, args) == 0
    return Results(output)


@pytest.fixture(scope="module")
def database(day: HubDay) -> duckdb.DuckDBPyConnection:
    """Return the lines of the date in DuckDB."""
    return export_lines(day.export)


def test_the_lines_keep_the_format(day: HubDay):
    """Each line has the keys of its event, each copy its life, and the equation closes."""
    lines = read_folder(day.export)
    check_copies(lines)
    left = check_equation(lines)
    assert {date for date, _ in left} <= {"2026-11-29"}


def test_counts_are_those_of_the_hub(day: HubDay, results: Results):
    """Each flow of each queue, over three lives of the hub; nothing is missing or double."""
    balance = results.table("balance")
    assert {row["state"] for row in balance} == {"closed"}
    found = {
        (row["endpoint"], row["priority"]): {
            name: row[f"{flow}_rows"] for name, flow in FLOWS.items()
        }
        for row in balance
    }
    assert found == {
        key: {name: counts[name] for name in FLOWS} for key, counts in day.counts.items()
    }
    for edge, waiting in (("carried_in", day.carried_in), ("carried_out", day.carried_out)):
        carried = {
            (row["endpoint"], row["priority"]): (row[f"{edge}_rows"], row[f"{edge}_bytes"])
            for row in balance
            if row[f"{edge}_rows"]
        }
        assert carried == waiting
    assert all(sum(counts[name] for counts in day.counts.values()) for name in FLOWS)
    moved = Counter[tuple[str, int]]()
    for (endpoint, priority), counts in day.counts.items():
        target = {("upstream", 1): ("upstream", 7), ("upstream", 8): ("lab", 2)}
        if counts["moved"]:
            moved[target[endpoint, priority]] += counts["moved"]
    assert moved == {
        (row["endpoint"], row["priority"]): row["moved_in_rows"]
        for row in balance
        if row["moved_in_rows"]
    }


def test_what_peers_got_is_what_was_sent(day: HubDay, results: Results):
    """The rows that both peers took, counted by them."""
    sent = defaultdict(int)
    for row in results.table("waiting"):
        sent[row["endpoint"]] += row["sent"]
    assert sent["upstream"] == day.confirmed
    assert sent["lab"] == day.accepted


def test_expiry_has_each_cause(day: HubDay, results: Results):
    """As brought about: offline, behind better priorities, refused again and again, own turn."""
    causes: dict[tuple[str, str, int], int] = defaultdict(int)
    for row in results.table("expiry"):
        causes[row["cause"], row["route"], row["priority"]] += row["rows"]
    assert sum(causes.values()) == sum(counts["expired"] for counts in day.counts.values())
    assert causes["offline", "bulk", 5] == 6
    assert causes["behind", "bulk", 5] == 5
    assert causes["retry", "lab", 2] == 2
    assert causes["rate", "slow", 0] >= 8
    # The demoted ones that did not leave before the hub was off for their time to live.
    assert causes["offline", "state", 7] == 2


def test_starvation_is_found(results: Results):
    """The queues behind the alarms, with the rows that waited; the lab's refused ones are not."""
    windows = results.table("starvation_windows", "endpoint = 'upstream' AND kind = 'starved'")
    by_queue = {row["priority"]: row for row in windows if row["length_ms"] >= 890_000}
    bulk = by_queue[5]
    assert (bulk["rows"], bulk["expired"], bulk["served"]) == (5, 5, [0])
    assert 890_000 <= bulk["length_ms"] <= 920_000
    keep = by_queue[DEFAULT]
    assert keep["rows"] == 2
    assert 0 in keep["served"]


def test_losses_are_counted(results: Results):
    """Drops, dead letters, demotions, moves, purges, refusals: rows by reason."""
    losses = {
        (row["event"], row["reason"], row["endpoint"]): row["rows"]
        for row in results.table("losses")
    }
    assert losses["moved", "recency", "upstream"] == 6
    assert losses["moved", "command", "upstream"] == 10
    assert losses["dead_lettered", "rejected", "lab"] == 5
    assert losses["refused", "topic_not_allowed", None] == 1
    assert losses["refused", "too_large", None] == 1
    assert losses["dropped", "by_value", "upstream"] == 10
    assert losses["purged", None, "upstream"] == 30
    assert losses["dead_purged", "command", "lab"] == 1
    assert losses["dead_purged", "requeued", "lab"] == 2


def test_every_figure_once_more(results: Results, database: duckdb.DuckDBPyConnection):
    """DuckDB and a plain loop over the same files."""
    oracle.check_expiry(results, database)
    oracle.check_balance(results, Equations(database))
    oracle.check_backlog(results, database, ())
    oracle.check_waiting(results, database)
    oracle.check_losses(results, database)
    oracle.check_windows(results, database)
