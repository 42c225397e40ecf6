"""`edgehub selftest` as an operator runs it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgehub.lab.selftest.report import NOT_TESTED
from tests.support.command_line import edgehub
from tests.support.process_tree import processes_that_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

END_TIMEOUT_S = 90
KILLS = 50 if os.environ.get("EDGEHUB_SOAK") else 2
SECONDS = 300 if os.environ.get("EDGEHUB_SOAK") else 1
SLOW_SYNC = Path(__file__).parents[1] / "support" / "slow_sync.c"


class Launch:
    """Starts the command, and ends in order what a failed test has left running."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, stderr: int = subprocess.PIPE, **env: str
    ) -> subprocess.Popen[str]:
        """Start the command."""
        process = subprocess.Popen(
            [sys.executable, "-m", "edgehub", "selftest", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **env},
        )
        self._started.append(process)
        return process

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*arguments, **env)
        stdout, stderr = process.communicate(timeout=END_TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def close(self) -> None:
        """Leave no process and no pipe behind."""
        for process in self._started:
            if process.returncode is None:
                process.terminate()
                process.communicate(timeout=END_TIMEOUT_S)


@pytest.fixture(name="launch")
def fixture_launch() -> Iterator[Launch]:
    """Return the command."""
    launch = Launch()
    yield launch
    launch.close()


def until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait for what another process does; its end ends the waiting."""
    while not condition():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"ended too early: {process.communicate()}")


def rest(terminal: int) -> bytes:
    """Read what is left behind a terminal whose last user has gone."""
    found = b""
    while True:
        try:
            found += os.read(terminal, 4096)
        except OSError:
            os.close(terminal)
            return found


@pytest.mark.scaled
@pytest.mark.timeout(60 + SECONDS * 2 + KILLS * 10)
def test_a_run_passes_and_leaves_nothing(launch: Launch, tmp_path: Path):
    """Figures for every part, exit code 0, an empty folder."""
    arguments = ("--directory", str(tmp_path), "--kills", str(KILLS), "--seconds", str(SECONDS))
    process = launch.start(*arguments, "--json")
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    assert stderr == ""
    document = json.loads(stdout)
    assert document["passed"] is True
    assert document["lost"] == 0
    assert document["out_of_order"] == 0
    assert document["integrity"] == []
    assert document["kills"] == KILLS == len(document["starts_after_kill_s"])
    assert document["acknowledged"] > 100
    # Nothing waits for a PUBACK at the end, so what was found is what was acknowledged.
    assert document["delivered"] + document["waiting"] == document["acknowledged"]
    assert document["fdatasync"]["count"] > 1
    assert list(tmp_path.iterdir()) == []


def test_it_runs_beside_the_state_and_does_not_touch_it(launch: Launch, tmp_path: Path):
    """Without --directory it works inside the state folder, beside the hub's own files."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "queue.db").write_bytes(b"not a database")
    done = launch.run(
        *("--kills", "1", "--seconds", "1"),
        EDGEHUB_DATA_DIR=str(state),
        EDGEHUB_MQTT__PORT="1",
        EDGEHUB_UPSTREAM='{"type": "file", "path": "/nonexistent/file"}',
    )
    assert done.returncode == 0, done
    assert f" {state} " in done.stdout
    assert "PASSED: 1 kill, all " in done.stdout
    assert NOT_TESTED in done.stdout
    assert [path.name for path in state.iterdir()] == ["queue.db"]
    assert (state / "queue.db").read_bytes() == b"not a database"


def test_a_loss_is_found(launch: Launch, tmp_path: Path):
    """Somebody empties the file of delivered messages meanwhile: exit code 1, with the count."""
    process = launch.start("--directory", str(tmp_path), "--kills", "1", "--seconds", "3", "--json")

    def some_are_delivered() -> bool:
        return any(file.stat().st_size > 50_000 for file in tmp_path.glob("*/delivered.jsonl"))

    until(process, some_are_delivered)
    (delivered,) = tmp_path.glob("*/delivered.jsonl")
    os.truncate(delivered, 0)
    stdout, stderr = process.communicate(timeout=END_TIMEOUT_S)
    assert process.returncode == 1, stdout + stderr
    document = json.loads(stdout)
    assert document["passed"] is False
    assert document["lost"] > 50
    assert document["lost_examples"]
    assert document["faults"] == [f"{document['lost']} acknowledged messages are lost"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_control_c_cleans_up(launch: Launch, tmp_path: Path, number: signal.Signals):
    """In the middle of the load: no hub and no file stays, and no result is claimed."""
    ours, theirs = pty.openpty()
    process = launch.start("--directory", str(tmp_path), stderr=theirs, TERM="xterm", COLUMNS="120")
    os.close(theirs)
    seen = b""
    # A terminal is told how far it is.
    while b"kill 1 of 10" not in seen:
        seen += os.read(ours, 4096)
    assert len(processes_that_name(str(tmp_path))) == 2
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=END_TIMEOUT_S)
    seen += rest(ours)
    assert process.returncode == 1
    assert stdout == ""
    assert b"stopped before the end" in seen
    assert processes_that_name(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_is_measured_and_passes(launch: Launch, tmp_path: Path):
    """Four milliseconds a sync, as on an SD card."""
    shim = tmp_path / "slow_sync.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", shim, SLOW_SYNC, "-ldl"], check=True)
    folder = tmp_path / "disk"
    folder.mkdir()
    done = launch.run(
        *("--directory", str(folder), "--kills", "1", "--seconds", "1", "--json"),
        LD_PRELOAD=str(shim),
        SLOW_SYNC_US="4000",
    )
    assert done.returncode == 0, done
    document = json.loads(done.stdout)
    assert document["fsync"]["median_ms"] > 4
    assert document["fdatasync"]["median_ms"] > 4
    assert document["rate_single_per_s"] < 250
    assert document["acknowledged"] > 10


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path):
    """Where, why and what to do; exit code 1."""
    done = edgehub("selftest", "--directory", "/sys", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot make a folder in /sys: " in done.stderr
    assert "--directory" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [("--kills", "0"), ("--seconds", "0"), ("--directory", "/nonexistent"), ("--power",)],
    ids=" ".join,
)
def test_wrong_use_is_refused(tmp_path: Path, arguments: tuple[str, ...]):
    """Exit code 2, naming the option."""
    done = edgehub("selftest", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
