"""One huge hub and forty small ones: time, memory of the whole process tree, and the same sums."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.journal_fleet import write_fleet
from tests.support.process_tree import TreeUsage
from tests.support.report import DATE, Results, export_lines, rows_of

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES_HUGE = 2_900_000
MESSAGES_SMALL = 52_000
SECONDS_MAX = 120
RESIDENT_MAX = 3 << 30


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_a_fleet_with_one_huge_hub(tmp_path: Path):
    """Ten million lines: 120 s on two cores and 3 GiB in all; no hub is left out."""
    written = write_fleet(tmp_path / "export", (MESSAGES_HUGE, *(MESSAGES_SMALL,) * 40))
    arguments = [f"--input={tmp_path / 'export'}", f"--output={tmp_path / 'results'}"]
    started = time.monotonic()
    with (
        subprocess.Popen(
            [sys.executable, "-m", "analytics", *arguments, f"--date={DATE}", "--master=local[2]"],
            stdout=subprocess.DEVNULL,
        ) as process,
        TreeUsage(process.pid) as usage,
    ):
        assert process.wait() == 0
    seconds = time.monotonic() - started
    results = Results(tmp_path / "results")
    assert results.metrics["lines"] == written
    assert results.metrics["hubs"] == 41
    database = export_lines(tmp_path / "export")
    [counted] = rows_of(
        database,
        "SELECT count(*) FILTER (event = 'sent') AS sent,"
        " count(*) FILTER (event = 'expired') AS expired,"
        " sum(bytes) FILTER (event = 'expired')::BIGINT AS size FROM lines",
    )
    assert results.metrics["sent_rows"] == counted["sent"]
    assert results.metrics["expired_rows"] == counted["expired"]
    assert results.metrics["expired_bytes"] == counted["size"]
    assert usage.peak < RESIDENT_MAX
    assert seconds < SECONDS_MAX
