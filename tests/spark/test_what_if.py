"""Scenarios on a whole run: parcels as a plain loop adds them up, answers, a wrong file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from analytics import job, readers
from analytics.args import parse_args
from analytics.schemas import LINE
from analytics.what_if.parcels import parcels
from analytics.what_if.recorded import STEP_MS, Parcel
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE, Results
from tests.support.what_if_day import parcels_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MIDNIGHT = datetime.fromisoformat(DATE).replace(tzinfo=UTC)
KEYS = {"priority": 7, "routes": ["raw"], "ttl_ms": 60_000}


def a_day(hub: str) -> HandJournal:
    """Write ten minutes in which twice as much comes as the link takes, and the edges of a day."""
    journal = HandJournal(DATE, hub=hub)
    table = [{"name": "raw", "endpoint": "upstream", "priority": 7, "ttl_ms": 60_000}]
    ages = {"ages": [[5_000, 2], [0, 3]], "age_step_ms": 5_000}
    journal.add("carried", "00:00:00", priority=7, edge="in", rows=5, **ages)
    journal.add("link", "00:00:00", state="up")
    in_force = {"endpoints": {"upstream": {"rate_bytes_s_max": 300}}, "caps": {"rows_max": 0}}
    journal.add("settings", "00:00:01", route_table=table, endpoint=None, **in_force)
    journal.left("moved", "00:00:02", waited_ms=7_000, reason="recency",
                 to_endpoint="upstream", to_priority=8, **KEYS)  # fmt: skip
    journal.left("sent", "00:00:03", waited_ms=8_000, **KEYS | {"priority": 8})
    journal.left("sent", "00:00:03", waited_ms=4_000, attempt_ms=900, count=4, bytes=400, **KEYS)
    for second in range(600):
        at = f"01:{second // 60:02}:{second % 60:02}"
        journal.add("enqueued", at, count=10, bytes=1000, **KEYS)
        journal.left("sent", f"{at}.500", count=5, bytes=500, attempt_ms=100, waited_ms=500, **KEYS)
        if second >= 60:
            journal.left("expired", at, count=5, bytes=500, waited_ms=61_000, **KEYS)
    journal.left("dropped", "01:10:30", count=150, bytes=15_000, reason="by_value", **KEYS)
    journal.left("expired", "01:10:59", count=150, bytes=15_000, waited_ms=61_000, **KEYS)
    journal.add("carried", "24:00:00", priority=7, edge="out", rows=0)
    return journal


def test_parcels_are_the_lines_added_up(spark: SparkSession, tmp_path: Path) -> None:
    """The same as by a plain loop over the lines."""
    journal = a_day("gw")
    journal.write(tmp_path)
    raw = spark.read.schema(LINE).option("recursiveFileLookup", value=True).json(str(tmp_path))
    lines = readers.good_lines(readers.judge(raw, MIDNIGHT, (), asks_what_if=True))
    found = [
        Parcel(
            row["at_ms"],
            row["kind"],
            row["endpoint"],
            row["priority"],
            tuple(row["routes"] or ()),
            row["ttl_ms"],
            row["rows"],
            row["bytes"],
            row["text"],
        )
        for row in parcels(lines, STEP_MS).collect()
    ]
    assert sorted(map(text_of, found)) == sorted(
        map(text_of, parcels_of(journal.lines, journal.start_ms))
    )


def text_of(parcel: Parcel) -> str:
    """Return all of a parcel that its kind has, in a form that can be sorted."""
    text = parcel.text and json.loads(parcel.text)
    priority = parcel.priority if parcel.kind not in {"link", "settings"} else None
    rows = parcel.rows if parcel.kind != "settings" else None
    return str(parcel._replace(text=text, priority=priority, rows=rows))


def run(spark: SparkSession, export: Path, output: Path, *more: str) -> int:
    """Report on the export."""
    args = [f"--input={export}", f"--output={output}", f"--date={DATE}", *more]
    return job.run(spark, parse_args(args))


@pytest.mark.timeout(300)
def test_a_run_answers_scenarios(spark: SparkSession, tmp_path: Path) -> None:
    """For each hub, with what was simulated and recorded."""
    export, output = tmp_path / "export", tmp_path / "results"
    for hub in ("gw-1", "gw-2"):
        a_day(hub).write(export)
    file = tmp_path / "scenarios.json"
    longer = {"name": "longer", "routes": {"raw": {"timeToLiveSecs": 3600}}}
    faster = {"name": "faster", "endpoints": {"upstream": {"linkFactor": 3}}}
    file.write_text(json.dumps({"scenarios": [longer, faster]}), "utf-8")
    assert run(spark, export, output, f"--what-if={file}", "--advise") == 0
    results = Results(output)
    found = results.table("what_if", "route = 'raw' AND scenario IN ('longer', 'faster')")
    assert [(row["hub"], row["scenario"]) for row in sorted(found, key=by_name)] == [
        ("gw-1", "faster"),
        ("gw-1", "longer"),
        ("gw-2", "faster"),
        ("gw-2", "longer"),
    ]
    for row in found:
        assert row["answer"] == "told"
        assert (row["recorded_sent_rows"], row["recorded_expired_rows"]) == (3005, 2850)
        assert abs(row["was_sent_rows"] - 3005) <= 60
        assert row["sent_rows"] > 5500
    assert results.metrics["tables"]["what_if"] == len(results.table("what_if"))
    check_advice(results)
    assert "What if" in results.page.read_text("utf-8")


def check_advice(results: Results) -> None:
    """Check that the longest time to live of the grid is advised: no other queue can be passed."""
    assert json.loads(results.page.with_name("advice.json").read_text("utf-8")) == {
        "routes": {"raw": {"timeToLiveSecs": 240}}
    }
    answered = results.metrics["what_if"]
    assert answered["best"] == "route raw: time to live 1 min to 4 min"
    effect = next(each for each in answered["effects"] if each["scenario"] == answered["best"])
    assert 500 < effect["arrived"] == effect["net"] < effect["of"]
    assert (effect["hubs"], effect["untold"], effect["costs"]) == (2, 0, {})
    page = results.page.read_text("utf-8")
    assert "<b>Advice</b>: route raw: time to live 1 min to 4 min" in page
    assert "messages that did not arrive would have." in page


def by_name(row: dict[str, Any]) -> tuple[str, str]:
    """Return what rows are sorted by."""
    return row["hub"], row["scenario"]


def test_a_wrong_file_ends_the_run_with_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read or written."""
    (tmp_path / "export").mkdir()
    assert run(spark, tmp_path / "export", tmp_path / "out", "--what-if=nowhere.json") == 1
    assert "--what-if nowhere.json: no such file" in capsys.readouterr().err
    file = tmp_path / "scenarios.json"
    file.write_text('{"scenarios": [{}]}', "utf-8")
    assert run(spark, tmp_path / "export", tmp_path / "out", f"--what-if={file}") == 1
    assert "scenarios[0]: has no name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
