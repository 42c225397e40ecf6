"""The self-test's result in words and for scripts."""

from __future__ import annotations

import json

from msgspec.structs import replace

from edgehub.lab.selftest.file_system import FileSystem
from edgehub.lab.selftest.judge import Findings
from edgehub.lab.selftest.latency import DiskLatency, Latency
from edgehub.lab.selftest.report import NOT_TESTED, Report

FINDINGS = Findings(
    acknowledged=1000,
    unacknowledged=0,
    delivered=600,
    waiting=400,
    lost=0,
    lost_examples=(),
    redelivered=7,
    resent=3,
    out_of_order=0,
    unknown=0,
)


def a_report(*, sync_ms: float = 2.0, kind: str = "ext4", lost: int = 0) -> Report:
    """Build a report."""
    sync = Latency.of([sync_ms / 1000] * 10)
    return Report(
        directory="/var/lib/edgehub",
        file_system=FileSystem(kind=kind, mount_point="/var", free_bytes=2**30),
        latency=DiskLatency(
            fsync=sync,
            fdatasync=sync,
            commit=Latency.of([0.004]),
            group_commit=Latency.of([0.016]),
        ),
        starts_s=(0.5, 0.7, 0.9),
        findings=replace(
            FINDINGS, lost=lost, lost_examples=tuple(f"device-1 {n}" for n in range(lost))
        ),
        integrity=(),
        elapsed_s=12.0,
    )


def test_latencies_are_summed_up():
    """Median, 99th percentile and maximum, in milliseconds."""
    latency = Latency.of([number / 1000 for number in range(200, 0, -1)])
    assert latency == Latency(count=200, median_ms=100.0, p99_ms=198.0, max_ms=200.0)


def test_the_durable_rate_follows_from_the_commits():
    """One at a time, and a full group of 1 024 at a time."""
    latency = a_report().latency
    assert latency.rate_single_per_s == 250.0
    assert latency.rate_group_per_s == 64_000.0


def test_a_pass_says_what_it_rests_on():
    """How many kills and messages."""
    report = a_report()
    assert report.headline() == "PASSED: 2 kills, all 1000 acknowledged messages are there"
    assert ("lost", "0") in report.rows()
    assert ("start", "0.50 s the first time, after a kill 0.80 s, max 0.90 s") in report.rows()


def test_a_loss_is_in_the_headline_and_named():
    """And the result is no pass."""
    report = a_report(lost=2)
    assert report.headline() == "FAILED: 2 acknowledged messages are lost"
    assert ("lost, for example", "device-1 0, device-1 1") in report.rows()
    assert report.document()["passed"] is False


def test_a_damaged_database_fails():
    """Even if every message was found."""
    report = replace(a_report(), integrity=("row 3 missing from index i",))
    assert report.faults == ["database: row 3 missing from index i"]


def test_a_sync_that_is_quicker_than_any_disk_gets_a_remark():
    """A cache that outlives power cuts, or a lie."""
    (remark,) = a_report(sync_ms=0.01).remarks
    assert "reports too early" in remark
    assert a_report(sync_ms=0.2).remarks == []


def test_of_memory_only_the_file_system_is_remarked_on():
    """That its sync is quick is no news."""
    (remark,) = a_report(sync_ms=0.001, kind="tmpfs").remarks
    assert "memory" in remark


def test_the_document_claims_no_more_than_was_tested():
    """It is JSON, and says what a killed process cannot show."""
    document = json.loads(json.dumps(a_report().document()))
    assert document["not_tested"] == NOT_TESTED
    assert document["starts_after_kill_s"] == [0.7, 0.9]
    assert document["group_commit"]["rows"] == 1024
