"""What is read of an export: faults of lines, copies, files that are no segments."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from analytics import readers, schemas
from analytics.args import parse_args
from analytics.files import Files
from analytics.hubs import survey
from analytics.session import SMALL_BYTES, adapt
from tests.support.fuzzing import EXAMPLES, JSON_PIECES, hostile, sized
from tests.support.journal_lines import HandJournal
from tests.support.report import DATE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)

FAULTS = {"version", "not_json", "incomplete", "event", "time", "other_date", "value"}


def lines_of(spark: SparkSession, export: Path, *more: str, are_objects: bool = False) -> DataFrame:
    """Read an export."""
    args = parse_args([f"--input={export}", "--output=unused", f"--date={DATE}", *more])
    surveyed = survey(spark, Files(spark), args)
    return readers.read_lines(spark, surveyed, args, are_objects=are_objects)


def faults_of(spark: SparkSession, export: Path) -> list[tuple[str | None, str | None]]:
    """Return fault and text of each line."""
    lines = lines_of(spark, export)
    return [(row["fault"], row["line"]) for row in lines.select("fault", "line").collect()]


def a_line() -> HandJournal:
    """Return a journal of one line."""
    journal = HandJournal(DATE)
    journal.add("enqueued", "10:00:00", priority=5)
    return journal


def test_lines_that_cannot_be_used_are_separated(spark: SparkSession, tmp_path: Path):
    """Each with its fault; the text is kept, and blank lines are none."""
    journal = a_line()
    line = journal.lines[0]
    carried = journal.add("carried", "11:00:00", edge="start", rows=1)
    link = journal.add("link", "11:00:00", state="up")
    bad = {
        "{": "not_json",
        '{"v":3,"hub":"gateway-1","event":"sent"}': "version",
        '{"v":1,"hub":"gateway-1","event":"sent"}': "incomplete",
        '{"v":2,"hub":"gateway-1","event":"traffic"}': "incomplete",
        json.dumps({**line, "bytes": "many"}): "not_json",
        json.dumps({**line, "event": "vanished"}): "event",
        json.dumps({**line, "event": "moved"}): "incomplete",
        json.dumps({**line, "time": "yesterday"}): "time",
        json.dumps({**line, "time": "today"}): "time",
        json.dumps({**line, "time": DATE}): "time",
        json.dumps({**line, "time": "10:00:00Z"}): "time",
        json.dumps({**line, "time": f"{DATE}T10:00:00+05:00"}): "time",
        json.dumps({**line, "time": f"{DATE}T10:00:00"}): "time",
        json.dumps({**line, "time": "2026-11-27T23:59:59.999Z"}): "other_date",
        json.dumps({**line, "time": "2026-11-29T00:00:00.000Z"}): "other_date",
        json.dumps({**line, "bytes": -1}): "value",
        json.dumps({**line, "bytes": 2**63 - 1}): "value",
        json.dumps({**line, "commit": 2**62}): "value",
        json.dumps({**line, "commit": 2**70}): "not_json",
        json.dumps({**carried, "edge": "side"}): "value",
        json.dumps({**carried, "rows": None}): "incomplete",
        json.dumps({**link, "state": "sideways"}): "value",
    }
    journal.add("carried", "24:00:00", edge="out", rows=1)
    segment = journal.write(tmp_path, extra="\n".join(bad).encode() + b"\n\n")
    found = faults_of(spark, tmp_path)
    assert sorted(fault for fault, _ in found if fault) == sorted(bad.values())
    assert len([fault for fault, _ in found if fault is None]) == len(journal.lines)
    assert ("not_json", "{") in found
    lines = lines_of(spark, tmp_path)
    files = {row["file"] for row in lines.where("fault IS NOT NULL").select("file").collect()}
    assert [file.rsplit("/", 1)[-1] for file in files] == [segment.name]


@pytest.mark.parametrize(
    "line", ["{", "torn", '{"bytes":"many"}', '{"commit":1e400}', '{"ages":[["old",1]]}', "7"]
)
def test_a_line_that_is_not_of_the_schema_fails_a_read_that_expects_none(
    spark: SparkSession, tmp_path: Path, line: str
):
    """Lines with other faults do not, and are judged in the same way."""
    wrong = {"event": "vanished", "time": "today", "bytes": -1, "v": 3}
    others = [json.dumps({**a_line().lines[0], name: value}) for name, value in wrong.items()]
    more = "\n".join(others).encode() + b"\n"
    a_line().write(tmp_path, extra=more)
    judged, expected = lines_of(spark, tmp_path, are_objects=True), lines_of(spark, tmp_path)
    assert sorted(map(repr, judged.collect())) == sorted(map(repr, expected.collect()))
    a_line().write(tmp_path, extra=more + line.encode() + b"\n")
    assert sum(fault == "not_json" for fault, _ in faults_of(spark, tmp_path)) == 1
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        lines_of(spark, tmp_path, are_objects=True).collect()
    assert readers.is_malformed(caught.value)


@sized(max(1, EXAMPLES // 100))
@given(
    st.lists(
        hostile([json.dumps(a_line().lines[0]).encode()], JSON_PIECES), min_size=50, max_size=300
    )
)
def test_damaged_lines_spoil_no_others(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, damaged: list[bytes]
):
    """Each is a line within its range or has a fault; whole lines among them stay good."""
    journal = a_line()
    folder = tmp_path_factory.mktemp("export")
    # What is cut off inside a line must not join the next one.
    journal.write(folder, extra=b"\n".join(line.replace(b"\r", b"") for line in damaged) + b"\n")
    lines = lines_of(spark, folder)
    found = lines.select("fault", "commit", "rows", "bytes").collect()
    good = [row for row in found if row["fault"] is None]
    assert len(found) <= 1 + sum(line.count(b"\n") + 1 for line in damaged)
    assert len(good) >= 1
    assert all(
        0 <= row[name] <= readers.NUMBER_MAX for row in good for name in ("commit", "rows", "bytes")
    )
    assert {row["fault"] for row in found if row["fault"] is not None} <= FAULTS


@pytest.mark.parametrize("asks_what_if", [False, True])
@pytest.mark.parametrize("is_doubtful", [False, True])
def test_judging_is_compiled(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_doubtful: bool,
    asks_what_if: bool,
):
    """Java leaves a method of 8 000 bytes to its interpreter, for millions of lines."""
    a_line().write(tmp_path)
    raw = spark.read.schema(schemas.LINE).json(str(tmp_path / f"date={DATE}"))
    args = parse_args([f"--input={tmp_path}", "--output=unused", f"--date={DATE}"])
    adapt(spark, SMALL_BYTES + 1)
    try:
        doubtful = ["gateway-7-a3f1"] * is_doubtful
        judged = readers.judge(raw, args.midnight, doubtful, asks_what_if=asks_what_if)
        judged.explain("codegen")
    finally:
        adapt(spark, 0)
    sizes = re.findall(r"maxMethodCodeSize:(\d+)", capsys.readouterr().out)
    assert sizes != []
    assert max(map(int, sizes)) < 8_000


def test_unknown_keys_are_passed_over(spark: SparkSession, tmp_path: Path):
    """A newer hub may write more."""
    journal = a_line()
    journal.lines[0]["mood"] = {"nested": ["text", 1]}
    journal.write(tmp_path)
    assert faults_of(spark, tmp_path) == [(None, None)]


def test_only_segments_are_read(spark: SparkSession, tmp_path: Path):
    """Unpacked ones too; drafts, notes and other dates are none."""
    segment = a_line().write(tmp_path)
    segment.with_suffix("").write_bytes(gzip.decompress(segment.read_bytes()))
    segment.unlink()
    segment.with_name("README.txt").write_text("not a segment")
    segment.with_name("_draft.jsonl.gz").write_bytes(b"not a segment")
    for name in ("a.jsonl.gz.open", "a.jsonl.zst", ".a.jsonl.gz.01.part", "a.jsonl.gz.events"):
        segment.with_name(name).write_bytes(b"not a segment")
    HandJournal("2026-11-27").write(tmp_path)
    assert faults_of(spark, tmp_path) == [(None, None)]


def test_a_hub_may_be_left_out(spark: SparkSession, tmp_path: Path):
    """Its folder is not even opened."""
    a_line().write(tmp_path)
    folder = tmp_path / f"date={DATE}" / "hub=broken"
    folder.mkdir()
    (folder / "000000000001-00000000.jsonl.gz").write_bytes(b"no gzip at all")
    lines = lines_of(spark, tmp_path, "--exclude-hub=broken")
    assert lines.count() == 1


def test_copies_of_lines_are_found(spark: SparkSession, tmp_path: Path):
    """In one segment or in two, in commits of any size; what is left has each line once."""
    journal = a_line()
    for seq in range(200):
        journal.add("enqueued", "12:00:00")
        journal.lines[-1] |= {"commit": 9_000, "seq": seq}
    journal.write(tmp_path)
    journal.lines = [*journal.lines[:5], *journal.lines[-2:], journal.lines[-1]]
    journal.write(tmp_path, name="000000009999-9f3c21ab.jsonl.gz")
    lines = lines_of(spark, tmp_path)
    assert readers.tally(lines, {"gateway-7-a3f1"}).collect()[0]["copies"] == 8
    without = readers.without_copies(lines)
    assert without.count() == 201
    assert readers.tally(without, {"gateway-7-a3f1"}).collect()[0]["copies"] == 0
