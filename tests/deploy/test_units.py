"""The unit files: systemd understands them, they shut the service in, and they fit the hub."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import click
import pytest

from edgehub.cli.main import cli
from edgehub.cli.output import EXIT_CONFIG
from edgehub.hub.hub import CLOSE_TIMEOUT_S
from edgehub.hub.store import FLUSH_TIMEOUT_S
from edgehub.settings import HttpSettings, MqttSettings, Settings
from tests.support.unit_file import read_unit, seconds

FOLDER = Path(__file__).parents[2] / "systemd"
SERVICES = sorted(FOLDER.glob("*.service"))
TIMERS = sorted(FOLDER.glob("*.timer"))
INSTALLED = "/opt/edgehub/bin/edgehub"
EXPOSURE_MAX = 2.0

HUB = read_unit(FOLDER / "edgehub.service")["Service"]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze, which needs no systemd that runs."""
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=15
    )


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    """No unknown key, no value that is ignored, no unit that is missing."""
    script = str(Path(sys.executable).parent / "edgehub")
    units = []
    for file in [*SERVICES, *TIMERS]:
        unit = tmp_path / file.name
        unit.write_text(file.read_text("utf-8").replace(INSTALLED, script), "utf-8")
        units.append(str(unit))
    found = analyze("verify", "--man=no", *units)
    assert (found.returncode, found.stderr, found.stdout) == (0, "", "")


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_a_service_is_shut_in(file: Path) -> None:
    """What systemd measures of what a service could do to the machine, from 0 to 10."""
    found = analyze("security", "--offline=true", "--no-pager", str(file))
    score = re.search(r"Overall exposure level for \S+: ([0-9.]+)", found.stdout)
    assert score is not None, found.stderr
    assert float(score[1]) < EXPOSURE_MAX


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_a_service_runs_what_is_installed(file: Path) -> None:
    """One place for the environment, whatever starts from it."""
    service = read_unit(file)["Service"]
    commands = [*service["ExecStart"], *service.get("ExecReload", [])]
    assert [command for command in commands if not command.startswith(f"{INSTALLED} ")] == []


@pytest.mark.parametrize("file", SERVICES, ids=lambda file: file.stem)
def test_a_command_of_a_unit_exists(file: Path) -> None:
    """Names of commands and options are those of this version."""
    service = read_unit(file)["Service"]
    for line in [*service["ExecStart"], *service.get("ExecReload", [])]:
        words = line.split()[1:]
        command: click.Command | None = cli
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        options = {name for option in command.params for name in option.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_a_stop_has_time_for_the_whole_drain() -> None:
    """The kill comes later than the hub gives up by itself."""
    longest = Settings().drain_timeout_s + FLUSH_TIMEOUT_S + CLOSE_TIMEOUT_S
    assert seconds(HUB["TimeoutStopSec"][0]) > longest


def test_faults_that_need_a_person_are_not_tried_again() -> None:
    """Wrong use (2) and a wrong configuration stay wrong."""
    assert HUB["RestartPreventExitStatus"] == [f"2 {EXIT_CONFIG}"]


def test_the_pace_of_restarts_never_reaches_the_start_limit() -> None:
    """A gateway that systemd gave up is silent until somebody travels there."""
    limits = read_unit(FOLDER / "edgehub.service")["Unit"]
    at_once = seconds(limits["StartLimitIntervalSec"][0]) / seconds(HUB["RestartSec"][0])
    assert at_once < int(limits["StartLimitBurst"][0])


def test_there_are_files_for_all_clients() -> None:
    """One descriptor for each connection of both heads, and some for the hub itself."""
    connections = MqttSettings().clients_max + HttpSettings().connections_max
    assert int(HUB["LimitNOFILE"][0]) > connections + 100


def test_all_services_share_one_user_and_its_export() -> None:
    """A dynamic user is the same for units that name it alike; each sees its own folders only."""
    folders = {
        file.stem: set(read_unit(file)["Service"]["StateDirectory"][0].split()) for file in SERVICES
    }
    assert {tuple(read_unit(file)["Service"]["User"]) for file in SERVICES} == {("edgehub",)}
    assert folders == {
        "edgehub": {"edgehub"},
        "edgehub-export": {"edgehub", "edgehub-export"},
        "edgehub-analytics": {"edgehub-export", "edgehub-reports"},
    }


def test_an_export_leaves_the_control_socket_alone() -> None:
    """The RuntimeDirectory of a unit that ends is removed."""
    export = read_unit(FOLDER / "edgehub-export.service")["Service"]
    assert "RuntimeDirectory" not in export
    assert export["Environment"] == [f"RUNTIME_DIRECTORY=/run/{HUB['RuntimeDirectory'][0]}"]


def test_the_report_comes_after_the_latest_export() -> None:
    """Both count in UTC, as the journal does, and a missed night is made up for."""
    export = read_unit(FOLDER / "edgehub-export.timer")["Timer"]
    report = read_unit(FOLDER / "edgehub-analytics.timer")["Timer"]
    latest = _start_of(export) + seconds(export["RandomizedDelaySec"][0])
    assert latest < _start_of(report)
    assert export["Persistent"] == report["Persistent"] == ["yes"]


def _start_of(timer: dict[str, list[str]]) -> int:
    (calendar,) = timer["OnCalendar"]
    found = analyze("calendar", calendar)
    assert found.returncode == 0, found.stderr
    assert calendar.endswith(" UTC")
    time = datetime.strptime(calendar.split()[1], "%H:%M:%S")  # noqa: DTZ007 - a time of day
    return time.hour * 3600 + time.minute * 60
