"""`edgehub demo` as a newcomer runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import edgehub

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

END_TIMEOUT_S = 60


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demo with its temporary folder inside `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "edgehub", "demo", "--plain", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "200"},
    )


def test_a_round_ends_by_itself_and_passes(tmp_path: Path):
    """An outage, a backlog, alarms in time, nothing missing, nothing left behind."""
    demo = start_demo(tmp_path, "--seconds", "15", "--seed", "3")
    output, _ = demo.communicate(timeout=END_TIMEOUT_S)
    assert demo.returncode == 0, output
    assert "PASSED" in output
    assert "link cut" in output
    assert "link DOWN" in output
    assert "0 missing" in output
    assert list(tmp_path.iterdir()) == []


def test_control_c_ends_it_with_a_verdict(tmp_path: Path):
    """`--forever` stops at the first signal, judges what happened and cleans up."""
    demo = start_demo(tmp_path, "--forever")
    assert demo.stdout is not None
    seen = ""
    # From a delivered alarm on there is something to judge.
    while not re.search(r"P0 waiting \d+ sent [1-9]", seen):
        line = demo.stdout.readline()
        assert line, seen
        seen += line
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=END_TIMEOUT_S)
    assert demo.returncode == 0, seen + output
    assert "PASSED" in output
    assert list(tmp_path.iterdir()) == []


def test_a_round_has_a_shortest_length(tmp_path: Path):
    """Too short for an outage and a recovery: refused as wrong use."""
    done = edgehub("demo", "--seconds", "3", cwd=tmp_path)
    assert done.returncode == 2
    assert "--seconds" in done.stderr
