"""Hubs that cannot be reported on, each for its own reason, among others that can."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from analytics import hubs, job, session
from analytics.args import parse_args
from analytics.files import Files
from analytics.hubs import Found, Listed
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE, Results
from tests.support.report_days import sends

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def a_day(hub: str) -> HandJournal:
    """Return a day on which five rows are sent."""
    journal = HandJournal(DATE, hub=hub)
    sends(journal, "10:00:00", "10:02:30")
    return journal


def _sound(export: Path, hub: str) -> None:
    journal = a_day(hub)
    journal.list_segment(export, journal.write(export))


def _without_manifest(export: Path, hub: str) -> None:
    a_day(hub).write(export)


def _open(export: Path, hub: str) -> None:
    journal = a_day(hub)
    journal.add("enqueued", "11:00:00")
    journal.write(export)


def _truncated(export: Path, hub: str) -> None:
    path = a_day(hub).write(export)
    path.write_bytes(path.read_bytes()[:-20])


def _emptied(export: Path, hub: str) -> None:
    journal = a_day(hub)
    path = journal.write(export)
    journal.list_segment(export, path)
    path.write_bytes(b"")


def _lost_a_segment(export: Path, hub: str) -> None:
    journal = a_day(hub)
    journal.list_segment(export, journal.write(export))
    late = HandJournal(DATE, hub=hub)
    late.add("enqueued", "23:00:00")
    late.lines[0]["commit"] = 9_000
    path = late.write(export)
    late.list_segment(export, path)
    path.unlink()


def _newer(export: Path, hub: str) -> None:
    journal = a_day(hub)
    for line in journal.lines:
        line["v"] = 99
    journal.write(export)


def _unbalanced(export: Path, hub: str) -> None:
    journal = a_day(hub)
    journal.add("carried", "24:00:00", priority=5, edge="out", rows=2)
    journal.write(export)


def _cloned(export: Path, hub: str) -> None:
    for name, device in (("one", "press-1"), ("two", "press-2")):
        journal = a_day(hub)
        for line in journal.lines:
            line["device"] = device
        journal.write(export, f"{name}.jsonl.gz")


def _copied(export: Path, hub: str) -> None:
    for name in ("one", "two"):
        a_day(hub).write(export, f"{name}.jsonl.gz")


def _replaced(export: Path, hub: str) -> None:
    """Write two files: two rows wait in the old one as it stops; the new one ends the day."""
    old = _stopped(hub, rows=2)
    new = HandJournal(DATE, hub=hub, start_ms=5)
    new.add("carried", "12:00:00", priority=5, edge="start", rows=0)
    sends(new, "13:00:00", "14:00:00")
    new.add("enqueued", "23:00:00", priority=5)
    new.add("carried", "24:00:00", priority=5, edge="out", rows=1)
    _write_both(export, old, new)


def _replaced_empty(export: Path, hub: str) -> None:
    """Write two files: nothing waits in the old one as it stops, nor in the new one at any edge."""
    new = HandJournal(DATE, hub=hub, start_ms=5)
    sends(new, "13:00:00", "14:00:00")
    _write_both(export, _stopped(hub, rows=0), new)


def _replaced_going_on(export: Path, hub: str) -> None:
    """Write two files: nothing waits in the old one as it stops; the new one goes on."""
    new = HandJournal(DATE, hub=hub, start_ms=5)
    new.add("enqueued", "23:00:00", priority=5)
    _write_both(export, _stopped(hub, rows=0), new)


def _replaced_idle(export: Path, hub: str) -> None:
    """Write two files: two rows wait in the old one as it stops; nothing comes to the new one."""
    new = HandJournal(DATE, hub=hub, start_ms=5)
    new.add("link", "12:00:00", state="up")
    _write_both(export, _stopped(hub, rows=2), new)


def _stopped(hub: str, *, rows: int) -> HandJournal:
    """Return the file of a gateway in which so many rows wait as it stops for good."""
    journal = a_day(hub)
    if rows:
        journal.add("enqueued", "10:30:00", priority=5, count=rows)
    journal.add("carried", "11:00:00", priority=5, edge="stop", rows=rows)
    return journal


def _write_both(export: Path, old: HandJournal, new: HandJournal) -> None:
    """Write the files of a gateway and of the one in its place."""
    for journal, store in ((old, "aaaaaaaa"), (new, "bbbbbbbb")):
        for line in journal.lines:
            line["store"] = store * 2
        journal.list_segment(export, journal.write(export, f"000000004712-{store}.jsonl.gz"))


FLEET: Final[dict[str, tuple[Callable[[Path, str], None], str, str]]] = {
    "sound": (_sound, "ok", ""),
    "without-manifest": (_without_manifest, "ok", ""),
    "copied": (_copied, "ok", ""),
    "replaced": (_replaced, "ok", ""),
    "replaced-empty": (_replaced_empty, "ok", ""),
    "replaced-going-on": (_replaced_going_on, "open", ""),
    "replaced-idle": (_replaced_idle, "ok", ""),
    "open": (_open, "open", ""),
    "truncated": (_truncated, "damaged", r"segment \S+ cannot be unpacked to its end"),
    "emptied": (_emptied, "damaged", r"segment \S+, which a manifest names, is missing or empty"),
    "lost": (
        _lost_a_segment,
        "damaged",
        "segment 000000009000-9f3c21ab.jsonl.gz, which a manifest",
    ),
    "newer": (_newer, "unreadable", "none of its lines could be used: version 10"),
    "unbalanced": (_unbalanced, "unbalanced", "queue upstream_Pri5: in - out = -2 messages, -200"),
    "cloned": (_cloned, "cloned", "10 lines of one key differ, as in one.jsonl.gz and two.jsonl"),
}
SILENT: Final = "silent"
OPEN: Final = sorted(hub for hub, (_, state, _) in FLEET.items() if state == "open")
SOUND: Final = {hub for hub, (_, state, _) in FLEET.items() if state in ("ok", "open")}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the arguments for a report on the fleet."""
    folder = tmp_path_factory.mktemp("fleet")
    for hub, (write, _, _) in FLEET.items():
        write(folder / "export", hub)
    (folder / "hubs").write_text("\n".join([*FLEET, "", SILENT]))
    return [
        f"--input={folder / 'export'}",
        f"--output={folder / 'out'}",
        f"--date={DATE}",
        f"--hubs={folder / 'hubs'}",
    ]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_hubs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One damaged, one silent, one unbalanced, one of a newer version: a report on the other 96."""
    wrong = {"gw-07": "truncated", "gw-31": "unbalanced", "gw-58": "newer", "gw-99": SILENT}
    export, output = tmp_path / "export", tmp_path / "out"
    names = [f"gw-{number:02}" for number in range(100)]
    for hub in names:
        if wrong.get(hub) != SILENT:
            FLEET[wrong.get(hub, "sound")][0](export, hub)
    (tmp_path / "hubs").write_text("\n".join(names))
    args = [f"--input={export}", f"--output={output}", f"--hubs={tmp_path / 'hubs'}"]
    assert job.run(spark, parse_args([*args, f"--date={DATE}"])) == 6
    states = {hub: FLEET[name][1] if name in FLEET else SILENT for hub, name in wrong.items()}
    printed = capsys.readouterr().err
    assert re.findall(r"hub (\S+): (\w+): ", printed) == sorted(states.items())
    results = Results(output)
    found = {row["hub"]: row["state"] for row in results.table("hubs")}
    assert found == dict.fromkeys(names, "ok") | states
    assert {row["hub"] for row in results.table("balance")} == set(names) - wrong.keys()
    assert "96 of 100 hubs reported" in results.page.read_text("utf-8")


@pytest.fixture(scope="module")
def results(spark: SparkSession, fleet: list[str]) -> Results:
    """Return the report on the fleet."""
    args = parse_args(fleet)
    assert job.run(spark, args) == 6
    return Results(Path(args.output))


def test_each_hub_is_judged(results: Results):
    """By its segments, lines and counts, with the reason; one of which nothing came is silent."""
    found = {row["hub"]: (row["state"], row["reason"]) for row in results.table("hubs")}
    states = {hub: state for hub, (_, state, _) in FLEET.items()} | {SILENT: "silent"}
    assert {hub: state for hub, (state, _) in found.items()} == states
    for hub, (_, _, reason) in FLEET.items():
        assert re.match(reason, found[hub][1]), (hub, found[hub])


def test_segments_of_a_large_day_are_judged_alike(
    spark: SparkSession, fleet: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Those that no manifest names are unpacked by executors."""
    monkeypatch.setattr(session, "SMALL_BYTES", 0)
    judged = hubs.survey(spark, Files(spark), parse_args(fleet))
    assert judged.damaged.keys() == {hub for hub in FLEET if FLEET[hub][1] == "damaged"}
    assert re.match(FLEET["truncated"][2], judged.damaged["truncated"])


def test_sums_are_over_sound_hubs(results: Results):
    """No table has a row of another hub."""
    for name in ("balance", "backlog", "waiting", "starvation", "losses"):
        assert {row["hub"] for row in results.table(name)} <= SOUND
    assert {row["hub"] for row in results.table("balance")} == SOUND
    assert results.metrics["outcome"] == "partial"
    assert results.metrics["copies"] == 10
    assert results.metrics["sent_rows"] == 8 * 5 + 2 * 120


def test_rows_of_a_replaced_gateway_are_left_behind(results: Results):
    """They are in the equation of their day, and wait no longer; where none did, none are."""
    names = ("left_behind_rows", "left_behind_bytes", "carried_out_rows", "difference_rows")
    queues = results.table("balance", "hub LIKE 'replaced%' AND priority = 5")
    assert {row["hub"]: tuple(row[name] for name in names) for row in queues} == {
        "replaced": (2, 200, 1, 0),
        "replaced-going-on": (0, 0, 0, 1),
        "replaced-idle": (2, 200, 0, 0),
    }
    slots = results.table("backlog", "hub = 'replaced' AND priority = 5")
    assert {row["slot"]: row["rows"] for row in slots if row["slot"] in (64, 70, 143)} == {
        64: 2,
        70: 0,
        143: 1,
    }
    windows = results.table("starvation_windows", "hub = 'replaced' AND priority = 5")
    assert [(row["start"].hour, row["rows"]) for row in windows] == [(10, 2), (23, 1)]


def test_the_page_begins_with_the_hubs(results: Results):
    """How many reported, and which did not, before any figure."""
    page = results.page.read_text("utf-8")
    first = page.split("</h1>")[1].split("</p>")[0]
    assert f"{len(SOUND)} of {len(FLEET) + 1} hubs reported" in first
    for part in ("silent: silent", "damaged: emptied, lost, truncated", "unbalanced: unbalanced"):
        assert part in first
    goes_on = ", ".join(f'<a href="hubs/{hub}.html">{hub}</a>' for hub in OPEN)
    assert f"The day is still open at {goes_on}: " in page


def test_what_the_report_is_without_is_named(
    spark: SparkSession, fleet: list[str], capsys: pytest.CaptureFixture[str]
):
    """Strictly nothing is written, and each hub is named; without any sound hub it is the same."""
    assert job.run(spark, parse_args([*fleet, "--strict"])) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    for hub, (_, state, reason) in FLEET.items():
        if hub not in SOUND:
            assert re.search(f"hub {hub}: {state}: {reason}", printed.err)
    left_out = [f"--exclude-hub={hub}" for hub in FLEET if FLEET[hub][1] != "unreadable"]
    assert job.run(spark, parse_args([*fleet, *left_out])) == 5
    assert "hub newer: unreadable" in capsys.readouterr().err


def test_a_hub_that_reported_is_expected(
    spark: SparkSession,
    results: Results,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """Within two weeks, and unless a file names all hubs; one that was silent is not."""
    output = shutil.copytree(results.output, tmp_path / "out")
    (tmp_path / "export").mkdir()
    given = [f"--input={tmp_path / 'export'}", f"--output={output}"]
    assert job.run(spark, parse_args([*given, "--date=2026-12-13", "--date=2026-12-12"])) == 6
    printed = capsys.readouterr()
    assert re.findall(r"date=(\S+) outcome=(\S+)", printed.out) == [
        ("2026-12-12", "empty"),
        ("2026-12-13", "empty"),
    ]
    assert "2026-12-12: the report is without:" in printed.err
    assert "2026-12-13" not in printed.err
    assert "hub cloned: silent: no line of this date was exported" in printed.err
    expected = {row["hub"]: row["state"] for row in Results(output, "2026-12-12").table("hubs")}
    assert expected == dict.fromkeys(FLEET, "silent")
    missing = f"--hubs={tmp_path / 'missing'}"
    assert job.run(spark, parse_args([*given, "--date=2026-12-12", missing])) == 1
    assert f"--hubs {tmp_path / 'missing'}: no such file" in capsys.readouterr().err


A: Final = "000000000001-aaaaaaaa.jsonl.gz"
B: Final = "000000000009-aaaaaaaa.jsonl.gz"
C: Final = "000000000005-cccccccc.jsonl.gz"


@pytest.mark.parametrize(
    ("commits", "is_doubtful"),
    [
        ({A: (1, 8), B: (9, 20)}, False),
        ({A: (1, 9), B: (9, 20)}, True),
        ({A: (1, 8), C: (5, 12)}, False),
        ({A: None}, True),
    ],
)
def test_copies_are_sought_where_commits_overlap(
    commits: dict[str, tuple[int, int] | None], is_doubtful: bool
):
    """Of one database file; what no manifest names may be anything."""
    found = {"hub": {name: Found(10, "digest") for name in commits}}
    listed = {"hub": {name: Listed(10, "digest", *span) for name, span in commits.items() if span}}
    judged = hubs.judged({"hub": "folder"}, found, listed, {})
    assert (judged.doubtful == {"hub"}) == is_doubtful
    assert judged.has_several_stores == (C in commits)


def test_other_bytes_of_the_same_number_are_damage():
    """The digest finds what the size does not show."""
    listed = {"hub": {A: Listed(10, "digest", 1, 2)}}
    judged = hubs.judged({"hub": "folder"}, {"hub": {A: Found(10, "other")}}, listed, {})
    assert judged.damaged == {"hub": f"segment {A} has other bytes than its manifest says"}
    assert judged.folders == {}
