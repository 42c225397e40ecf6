"""The daemon and the time of day, which libfaketime makes up; the machine's clock stays alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.mosquitto import Mosquitto
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

REBOOTED = Path(__file__).parents[1] / "support" / "rebooted_daemon.py"
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {"all": "FROM /messages/* INTO $upstream"},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 600},
}


class FakeTime:
    """What the daemon takes for the time of day."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "time"

    def says(self, time: str) -> None:
        """Set it: `@2026-05-01 00:00:00` = it is that now; `+900` = so many seconds ahead."""
        self._file.write_text(f"{time}\n", "utf-8")

    def environment(self, boot_id: str) -> dict[str, str]:
        """Return the environment of a daemon that lives in this time."""
        found = subprocess.run(
            ["faketime", "-m", "now", "printenv", "LD_PRELOAD"],
            capture_output=True,
            text=True,
            check=True,
        )
        return {
            "LD_PRELOAD": found.stdout.strip(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            # Else no compiled module is as old as its source: each start would compile all.
            "NO_FAKE_STAT": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Else it adds to the time-outs of Python's lock, and threads that wait for it spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "TZ": "UTC",
            "TEST_BOOT_ID": boot_id,
        }


@pytest.fixture
def fake(tmp_path: Path) -> FakeTime:
    """Return a time of day to play with."""
    return FakeTime(tmp_path)


@pytest.fixture
def daemon(tmp_path: Path, fake: FakeTime) -> Iterator[Daemon]:
    """Return a daemon in that time, which trusts its clock and collects."""
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
    made = Daemon(
        folder,
        'data_dir = "data"\nmanifest = "manifest.json"\n[clock]\ntrust = "always"\n'
        f'[mqtt]\nport = {free_port()}\n[log]\nformat = "json"\n',
        program=(str(REBOOTED),),
        env=fake.environment("a"),
    )
    yield made
    made.close()


def send(daemon: Daemon, count: int) -> None:
    """Let a device hand in messages and wait for their acknowledgements."""
    device = Device("press-1", daemon.mqtt_port)
    for number in range(count):
        device.publish("status", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()


def clock_of(daemon: Daemon) -> dict[str, object]:
    """Return what the daemon says of its clock."""
    clock: dict[str, object] = daemon.call("status")["store"]["clock"]
    return clock


def test_libfaketime_leaves_the_boot_clock_alone(fake: FakeTime) -> None:
    """These tests rest on it: the time of day is made up, CLOCK_BOOTTIME is the kernel's."""
    fake.says("@2001-01-01 00:00:00")
    code = "import time; print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    command = [sys.executable, "-c", code]
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    env = fake.environment("a")
    faked = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert float(faked.stdout.split()[0]) < 1_000_000_000
    boot_s = [float(done.stdout.split()[1]) for done in (plain, faked)]
    assert 0 <= boot_s[1] - boot_s[0] < 10


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("choice", "expired"), [("count", 10), ("pause", 0)])
def test_time_to_live_while_the_machine_is_off(
    daemon: Daemon, fake: FakeTime, choice: str, expired: int
) -> None:
    """T-05: `ttl_while_off` says whether the time between two boots counts."""
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace("[mqtt]", f'ttl_while_off = "{choice}"\n[mqtt]'), "utf-8")
    fake.says("+0")
    daemon.start()
    send(daemon, 10)
    message = daemon.call("queue peek", queue="upstream", limit=1)["rows"][0]["id"]
    assert daemon.stop() == 0
    fake.says("+900")
    daemon.env["TEST_BOOT_ID"] = "b"
    daemon.start()
    daemon.wait_until(lambda: daemon.call("status")["queues"][0]["expired"] == expired, 15)
    assert daemon.call("status")["queues"][0]["depth"] == 10 - expired
    off_s = clock_of(daemon)["off_s"]
    if expired:
        assert off_s == pytest.approx(900, abs=15)
        told = daemon.call("why", id=message)
        assert told["state"] == "expired"
        (line,) = [each for each in told["journal"]["events"] if each["event"] == "expired"]
        assert line["waited_ms"] == pytest.approx(900_000, abs=20_000)
    else:
        assert off_s == 0
        for row in daemon.call("queue peek", queue="upstream")["rows"]:
            assert row["expires_in_s"] == pytest.approx(600, abs=20)
    assert daemon.stop() == 0


@pytest.mark.timeout(90)
def test_a_start_in_1970_is_put_right_once_the_clock_is_set(daemon: Daemon, fake: FakeTime) -> None:
    """W-05: nothing expires, status says what is corrected, and no record leaves with 1970."""
    fake.says("@1970-01-01 00:05:00")
    daemon.start()
    send(daemon, 50)
    assert clock_of(daemon)["trusted"] is False
    fake.says("@2026-05-01 00:00:00")
    daemon.wait_until(lambda: clock_of(daemon)["trusted"] is True, 20)
    assert float(str(clock_of(daemon)["correction_s"])) > 50 * 365 * 86_400
    assert daemon.call("status")["queues"][0]["depth"] == 50
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(f'{text}[upstream]\ntype = "file"\npath = "out.jsonl"\n', "utf-8")
    assert daemon.call("config reload")["faults"] == []
    daemon.wait_until(lambda: daemon.call("status")["queues"][0]["depth"] == 0, 15)
    lines = (daemon.folder / "out.jsonl").read_text("utf-8").splitlines()
    times = [json.loads(line)["enqueued"] for line in lines]
    assert len(times) == 50
    assert all(time.startswith(("2026-04-30T23:5", "2026-05-01T00:00")) for time in times)
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("step", ["-7200", "+7200", "-315360000", "+315360000"])
def test_a_running_daemon_bears_steps(
    daemon: Daemon, fake: FakeTime, tmp_path: Path, step: str
) -> None:
    """W-02, W-03: hours and years, both ways: nothing expires, back-off ends, all arrives."""
    broker = Mosquitto(tmp_path / "broker")
    text = daemon.config.read_text("utf-8")
    upstream = f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {broker.port}\n'
    daemon.config.write_text(f"{text}{upstream}", "utf-8")
    fake.says("+0")
    daemon.start()
    send(daemon, 10)
    daemon.wait_until(lambda: backoff_s(daemon) > 0, 10)
    fake.says(step)
    send(daemon, 10)
    queue = daemon.call("queue list")["queues"][0]
    assert (queue["depth"], queue["expired"]) == (20, 0)
    assert 540 < queue["oldest_expires_in_s"] <= 600
    assert 0 <= queue["oldest_age_s"] < 60
    assert backoff_s(daemon) < 20
    with broker:
        daemon.wait_until(lambda: daemon.call("queue list")["queues"][0]["sent"] == 20, 20)
    fake.says("+0")
    assert daemon.stop() == 0


def backoff_s(daemon: Daemon) -> float:
    """Return the seconds until the next try to connect."""
    return daemon.call("status")["endpoints"][0]["backoff_remaining_s"] or 0.0
