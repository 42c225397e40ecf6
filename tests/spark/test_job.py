"""The job as a whole: exit codes, quarantine, copies, reruns, and what it leaves alone."""

from __future__ import annotations

import os
import resource
import shutil
from typing import TYPE_CHECKING

import duckdb
import pytest
from py4j.protocol import Py4JNetworkError

from analytics import job
from analytics.args import parse_args
from analytics.files import Files
from analytics.hubs import survey
from analytics.outputs import TABLES
from analytics.prepared import read_prepared
from tests.support.journal_lines import HandJournal
from tests.support.process_tree import children, command_name
from tests.support.report import DATE, Results
from tests.support.report_days import sends

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


class Runs:
    """Runs of the job over one export."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.export = folder / "export"
        self.output = folder / "output"
        self.export.mkdir(exist_ok=True)

    def run(self, *more: str) -> int:
        """Run the job and return its exit code."""
        given = [f"--input={self.export}", f"--output={self.output}", f"--date={DATE}", *more]
        return job.run(self.spark, parse_args(given))

    def results(self) -> Results:
        """Return what was written."""
        return Results(self.output)


@pytest.fixture
def runs(spark: SparkSession, tmp_path: Path) -> Runs:
    """Return an empty export and an empty output."""
    return Runs(spark, tmp_path)


def a_day() -> HandJournal:
    """Return a day on which one row expires and some are sent."""
    journal = HandJournal(DATE, hub="gateway-1")
    journal.add("enqueued", "10:00:00", priority=5)
    sends(journal, "10:00:10", "10:05:00")
    journal.left("expired", "10:05:00", priority=5, waited_ms=300_000, behind_ms=300_000)
    return journal


@pytest.fixture(scope="module")
def reported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a report on a day of which each line is there twice, and a bad one.

    It was made in folders with signs in their names, and a hub that cannot be read was left out.
    """
    folder = tmp_path_factory.mktemp("reported")
    runs = Runs(spark, folder)
    runs.export = runs.export.rename(folder / "a b[1]{x,y}*?%20#\\ü")
    runs.output = folder / "out [2]{x}*"
    segment = a_day().write(runs.export, extra=b"torn\n")
    shutil.copy(segment, segment.with_name("000000009999-9f3c21ab.jsonl.gz"))
    broken = HandJournal(DATE, hub="broken").write(runs.export)
    broken.write_bytes(b"no gzip")
    assert runs.run("--exclude-hub=broken") == 0
    shutil.rmtree(broken.parent)
    # DuckDB takes the signs for patterns.
    runs.export.rename(folder / "export")
    runs.output.rename(folder / "output")
    return folder


@pytest.fixture
def rerun(spark: SparkSession, reported: Path, tmp_path: Path) -> Runs:
    """Return a copy of that report, to run again over its export."""
    return Runs(spark, shutil.copytree(reported, tmp_path / "reported"))


def test_an_empty_day_is_done(runs: Runs, capsys: pytest.CaptureFixture[str]):
    """Exit code 0, a line and a metrics file."""
    assert runs.run() == 0
    assert capsys.readouterr().out.startswith(f"report date={DATE} outcome=empty lines=0")
    assert runs.results().metrics["outcome"] == "empty"
    assert not runs.results().page.exists()


def test_an_export_that_is_not_there_fails(runs: Runs, capsys: pytest.CaptureFixture[str]):
    """Exit code 1, and the argument to correct."""
    runs.export.rmdir()
    assert runs.run() == 1
    assert f"--input {runs.export}: no such folder" in capsys.readouterr().err
    assert not runs.output.exists()


def test_counts_that_do_not_close_write_nothing(runs: Runs, capsys: pytest.CaptureFixture[str]):
    """Exit code 5; the queue, the difference and the bad line that may be the reason show."""
    journal = a_day()
    journal.add("carried", "24:00:00", priority=5, edge="out", rows=2)
    journal.write(runs.export, extra=b"torn\n")
    assert runs.run() == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    reason = "unbalanced: queue upstream_Pri5: in - out = -2 messages, -200 bytes"
    assert f"hub gateway-1: {reason}" in printed.err
    assert "not_json: torn" in printed.err
    assert not runs.output.exists()


def test_a_rerun_replaces_its_own_date_only(rerun: Runs, capsys: pytest.CaptureFixture[str]):
    """No second copy, and what was true before is removed, answers too; other dates stay."""
    runs, lines = rerun, len(a_day().lines)
    metrics = runs.results().metrics
    assert (metrics["outcome"], metrics["lines"]) == ("done", 2 * lines + 2)
    assert (metrics["copies"], metrics["faults"]) == (lines, {"not_json": 2})
    assert {row["line"] for row in runs.results().table("quarantine")} == {"torn"}
    columns = "hub, priority, kind, served, length_ms"
    expected = [("gateway-1", 5, "starved", 0, 300_000)]
    assert csv_rows(runs.results(), "starvation_windows", columns) == expected
    for folder in list(runs.output.rglob(f"date={DATE}")):
        shutil.copytree(folder, folder.with_name("date=2026-11-27"))
    other = contents(runs.output, "2026-11-27")
    # Of a run that was asked what if, which this one is not.
    answered = shutil.copytree(runs.results().folder("balance"), runs.results().folder("what_if"))
    advice = runs.results().page.with_name("advice.json")
    advice.write_text("{}")
    shutil.rmtree(runs.export)
    calm = HandJournal(DATE, hub="gateway-1")
    sends(calm, "10:00:00", "10:01:00")
    calm.write(runs.export)
    assert runs.run() == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        f"report date={DATE} outcome=done lines={len(calm.lines)} quarantined=0 "
    )
    assert len(runs.results().table("balance")) == 1
    assert len(runs.results().table("waiting")) == 1
    page = runs.results().page.read_text("utf-8")
    assert "<b>0</b><span>starved</span>" in page
    assert "At none of the ten-minute marks anything waited." in page
    assert runs.results().table("expiry") == runs.results().table("quarantine") == []
    assert not answered.exists()
    assert not advice.exists()
    assert "What if" not in page
    assert not (runs.output / "csv" / "starvation_windows" / f"date={DATE}").exists()
    assert runs.results().metrics["quarantined"] == 0
    assert contents(runs.output, "2026-11-27") == other


def test_prepared_lines_lead_to_the_same_report(rerun: Runs, capsys: pytest.CaptureFixture[str]):
    """Also of faulty lines and copies, after a run that was killed; not with other segments."""
    runs = rerun
    same = "--exclude-hub=broken"
    assert runs.run("--prepare", same) == 0
    lines = runs.results().metrics["lines"]
    printed = capsys.readouterr().out
    assert printed.startswith(f"report date={DATE} outcome=prepared lines={lines} seconds=")
    before, tables = runs.results().metrics, read_tables(runs.results())
    assert not before["prepared"]
    # As it leaves a date.
    runs.results().page.with_name("metrics.json").unlink()
    shutil.rmtree(runs.results().folder("expiry"))
    left = [runs.results().folder(name) / "_temporary" for name in ("expiry", "unserved")]
    for folder in left:
        folder.mkdir(parents=True)
    assert runs.run(same) == 0
    assert not any(folder.exists() for folder in left)
    after = runs.results().metrics
    assert after["prepared"]
    assert after["tables"]["expiry"] == len(runs.results().table("expiry")) == 1
    assert read_tables(runs.results()) == tables
    varying = ("prepared", "phases", "seconds")
    assert without(after, varying) == without(before, varying)
    args = parse_args([f"--input={runs.export}", f"--output={runs.output}", f"--date={DATE}"])
    files = Files(runs.spark)
    surveyed = survey(runs.spark, files, args)
    assert read_prepared(runs.spark, files, args, surveyed) is not None
    a_day().write(runs.export, "000000009998-9f3c21ab.jsonl.gz")
    surveyed = survey(runs.spark, files, args)
    assert read_prepared(runs.spark, files, args, surveyed) is None


def test_a_large_day_leads_to_the_same_report(rerun: Runs, monkeypatch: pytest.MonkeyPatch):
    """Its lines are Parquet meanwhile; nothing is left of them, nor of those of a killed run."""
    runs = rerun
    before, tables = runs.results().metrics, read_tables(runs.results())
    monkeypatch.setattr(job, "is_small", lambda _: False)
    draft = runs.output / f"lines-{DATE}.draft"
    (draft / "_temporary").mkdir(parents=True)
    assert runs.run("--exclude-hub=broken") == 0
    assert not draft.exists()
    assert read_tables(runs.results()) == tables
    varying = ("phases", "seconds")
    assert without(runs.results().metrics, varying) == without(before, varying)


def read_tables(results: Results) -> dict[str, list[str]]:
    """Return the rows of all tables as text, in order, wherever their segments were."""
    return {
        name: sorted(
            repr({**row, "file": row["file"].rsplit("/", 1)[1]} if "file" in row else row)
            for row in results.table(name)
        )
        for name in TABLES
    }


def without(metrics: dict[str, object], names: Sequence[str]) -> dict[str, object]:
    """Return metrics but some."""
    return {name: value for name, value in metrics.items() if name not in names}


def test_a_date_that_has_no_lines_any_more_is_emptied(
    rerun: Runs, capsys: pytest.CaptureFixture[str]
):
    """What was reported of it is removed, its hub is silent, other dates stay."""
    runs = rerun
    tables = {folder.parent.name for folder in runs.output.rglob(f"date={DATE}")}
    for folder in list(runs.output.rglob(f"date={DATE}")):
        shutil.copytree(folder, folder.with_name("date=2026-11-27"))
    other = contents(runs.output, "2026-11-27")
    shutil.rmtree(runs.export / f"date={DATE}")
    assert runs.run() == 6
    printed = capsys.readouterr()
    assert "outcome=empty" in printed.out
    assert "hub gateway-1: silent" in printed.err
    left = {file.parents[1].name for file in contents_of(runs.output, DATE)}
    assert left == {"hubs", "report"}
    assert not runs.results().page.exists()
    assert contents(runs.output, "2026-11-27") == other
    assert tables >= {"quarantine", "balance", "expiry", "report"}


def test_a_run_that_was_cut_off_leaves_no_metrics(rerun: Runs, capsys: pytest.CaptureFixture[str]):
    """They mark the rest as whole, so those of the run before go first."""
    runs = rerun
    assert runs.results().metrics["outcome"] == "done"
    shutil.rmtree(runs.output / "losses", ignore_errors=True)
    shutil.rmtree(runs.output / "expiry")
    (runs.output / "expiry").write_text("in the way")
    assert runs.run() == 1
    assert "expiry" in capsys.readouterr().err
    assert not runs.results().page.with_name("metrics.json").exists()


def test_signs_in_paths_are_no_pattern(rerun: Runs):
    """Folders may have any name that the system allows; nothing else was read or written."""
    assert rerun.results().metrics["excluded_hubs"] == ["broken"]
    assert len(rerun.results().table("balance")) == 2
    assert {path.name for path in rerun.export.parent.iterdir()} == {"export", "output"}


def test_a_full_disk_is_named(runs: Runs, capsys: pytest.CaptureFixture[str]):
    """The root of the chain of causes, not only the task that failed."""
    a_day().write(runs.export)
    [java] = [pid for pid in children(os.getpid()) if command_name(pid) == "java"]
    before = resource.prlimit(java, resource.RLIMIT_FSIZE)
    resource.prlimit(java, resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        assert runs.run() == 1
    finally:
        resource.prlimit(java, resource.RLIMIT_FSIZE, before)
    printed = capsys.readouterr().err
    assert "File too large" in printed
    assert len(printed.splitlines()) <= 3


def test_java_that_ends_is_reported(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The kernel ends what takes too much memory: exit code 1 and a hint, no traceback."""

    def ended(*_: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(job, "_report", ended)
    assert runs.run() == 1
    assert "out of memory?" in capsys.readouterr().err


def contents_of(output: Path, date: str) -> list[Path]:
    """List all files of a date."""
    return [file for folder in output.rglob(f"date={date}") for file in folder.iterdir()]


def contents(output: Path, date: str) -> dict[str, bytes]:
    """Return all files of a date."""
    files = contents_of(output, date)
    return {str(file): file.read_bytes() for file in files}


def csv_rows(results: Results, table: str, columns: str) -> list[tuple[object, ...]]:
    """Return rows of the one file that a table has."""
    [file] = (results.output / "csv" / table / f"date={results.date}").glob("*.csv")
    return duckdb.sql(f"SELECT {columns} FROM read_csv('{file}')").fetchall()


def test_a_damaged_segment_fails_and_is_named(runs: Runs, capsys: pytest.CaptureFixture[str]):
    """Exit code 1: what is missing from it cannot be counted."""
    segment = a_day().write(runs.export)
    segment.write_bytes(segment.read_bytes()[:-20])
    assert runs.run() == 1
    assert segment.name in capsys.readouterr().err
    assert not runs.output.exists()
