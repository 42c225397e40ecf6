"""The units under a real systemd, on a Debian of their own. As root, some minutes: `make soak`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.debian_root import install_hub
from tests.support.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="a root folder and namespaces need root"),
]

UNITS = Path(__file__).parents[2] / "systemd"
SETTINGS = "/etc/edgehub/edgehub.toml"
LOG_TIMEOUT_S = 60.0
# Everything that has native code is loaded: loop, TLS, HTTP parser, JSON, validation, SQLite.
WITH_ALL = """
hub_id = "gateway-7"
[http]
port = 8080
[upstream]
type = "mqtt"
host = "127.0.0.1"
port = 8883
tls = true
username = "gateway-7"
password_file = "credential:upstream-password"
"""
PUBLISH = """
import sys, paho.mqtt.client as paho
client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump-7")
client.connect("127.0.0.1", 1883)
client.loop_start()
for number in range(int(sys.argv[1])):
    client.publish("devices/pump-7/messages/events/kind=x", str(number), qos=1).wait_for_publish(10)
client.disconnect()
"""

# A broker that lets everybody in and confirms nothing.
SILENT_PEER = r"""
import socket
with socket.create_server(("127.0.0.1", 1884)) as server:
    client, _ = server.accept()
    client.recv(4096)
    client.sendall(b"\x20\x02\x00\x00")
    while client.recv(65536):
        pass
"""
WITH_SILENT_PEER = """
drain_timeout_s = 6
[upstream]
type = "mqtt"
host = "127.0.0.1"
port = 1884
mqtt = "3.1.1"
"""


@pytest.fixture(scope="module")
def root(debian: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Debian with the hub and its units installed as the guide says."""
    made = tmp_path_factory.mktemp("machine") / "root"
    subprocess.run(["cp", "--archive", str(debian), str(made)], check=True)
    install_hub(made, wheels)
    for unit in UNITS.iterdir():
        target = "usr/local/bin" if unit.name == "edgehub" else "etc/systemd/system"
        shutil.copy(unit, made / target / unit.name)
    (made / "var" / "tmp" / "publish.py").write_text(PUBLISH, "utf-8")
    (made / "var" / "tmp" / "peer.py").write_text(SILENT_PEER, "utf-8")
    return made


@pytest.fixture
def machine(root: Path) -> Iterator[Machine]:
    """Return the machine, booted for this test, without settings and state of the one before."""
    for left in ("etc/edgehub", "etc/credstore", "var/lib/private", "var/log/journal"):
        shutil.rmtree(root / left, ignore_errors=True)
    for drop_in in (root / "etc/systemd/system").glob("*.d"):
        shutil.rmtree(drop_in)
    with Machine(root) as booted:
        yield booted


def settings(machine: Machine, text: str = WITH_ALL) -> None:
    """Write the settings and the secret that they name."""
    machine.write(SETTINGS, text)
    machine.write("/etc/credstore/edgehub.upstream-password", "secret", mode=0o600)


def drop_in(machine: Machine, unit: str, *lines: str) -> None:
    """Change a unit as `systemctl edit` does."""
    text = "\n".join(["[Service]", *lines, ""])
    machine.write(f"/etc/systemd/system/{unit}.service.d/override.conf", text)
    machine.run("systemctl", "daemon-reload")


def publish(machine: Machine, count: int) -> None:
    """Publish as a device of this machine and have it acknowledged."""
    machine.run("/opt/edgehub/bin/python", "/var/tmp/publish.py", str(count))


def status(machine: Machine) -> dict[str, Any]:
    """Ask as an administrator."""
    document: dict[str, Any] = json.loads(machine.run("edgehub", "status", "--json").stdout)
    return document


def journal(machine: Machine, unit: str = "edgehub") -> str:
    """Return what a unit has logged."""
    return machine.run("journalctl", "--unit", unit, "--output=cat", "--no-pager").stdout


def wait_logged(machine: Machine, event: str, times: int = 1) -> None:
    """Wait until the hub has logged an event so often; each look paces the next."""
    deadline = time.monotonic() + LOG_TIMEOUT_S
    while journal(machine).count(f'"{event}"') < times:
        assert time.monotonic() < deadline, journal(machine)


def test_it_starts_shut_in_and_keeps_messages_over_a_restart(machine: Machine) -> None:
    """Ready when devices can connect; the state belongs to the service's user; a stop is clean."""
    settings(machine)
    machine.run("systemctl", "start", "edgehub")
    shown = machine.show("edgehub", "ActiveState", "StatusText", "NotifyAccess")
    assert shown["ActiveState"] == "active"
    assert shown["StatusText"] == "collecting, not sending, 0 waiting"
    publish(machine, 20)
    machine.run("systemctl", "restart", "edgehub")
    assert status(machine)["summary"] == "collecting, not sending, 20 waiting"
    state = machine.run("stat", "--format=%a %U", "/var/lib/private/edgehub").stdout.split()
    assert state[0] == "700"
    assert state[1] != "root"
    machine.run("systemctl", "stop", "edgehub")
    ended = machine.show("edgehub", "Result", "ExecMainStatus", "ActiveState")
    assert ended == {"Result": "success", "ExecMainStatus": "0", "ActiveState": "inactive"}
    assert "Traceback" not in journal(machine)


def test_no_other_user_gets_to_the_control_socket(machine: Machine) -> None:
    """Root operates the hub and sees what the hub sees, other users do not."""
    settings(machine)
    machine.run("systemctl", "start", "edgehub")
    assert machine.run("edgehub", "status", "--quiet").returncode == 0
    assert "no faults" in machine.run("edgehub", "config", "validate").stdout
    command = ["setpriv", "--reuid=nobody", "--clear-groups", "edgehub", "status", "--quiet"]
    refused = machine.run(*command, check=False)
    assert refused.returncode == 4
    assert "Permission denied" in refused.stderr


def test_it_starts_without_settings_and_secrets(machine: Machine) -> None:
    """The units work as they come; the hub collects."""
    machine.run("systemctl", "start", "edgehub")
    publish(machine, 1)
    assert status(machine)["summary"] == "collecting, no upstream named, 1 waiting"


def test_a_reload_reports_its_outcome(machine: Machine) -> None:
    """`systemctl reload` fails with every fault, and the hub runs on."""
    settings(machine)
    machine.run("systemctl", "start", "edgehub")
    before = machine.show("edgehub", "MainPID")
    settings(machine, WITH_ALL + "[mqtt]\nclients_max = 5\n")
    machine.run("systemctl", "reload", "edgehub")
    settings(machine, WITH_ALL + "[mqtt]\nclients_max = true\n")
    assert machine.run("systemctl", "reload", "edgehub", check=False).returncode != 0
    assert "mqtt.clients_max: a number belongs here" in journal(machine)
    machine.run("systemctl", "kill", "--signal=HUP", "--kill-who=main", "edgehub")
    settings(machine)
    assert machine.run("edgehub", "status", "--quiet").returncode == 0
    assert machine.show("edgehub", "MainPID") == before


def test_wrong_settings_are_not_tried_again(machine: Machine) -> None:
    """Exit code 78 ends it: a person must act."""
    settings(machine, "[mqtt]\nport = 'x'\n")
    assert machine.run("systemctl", "start", "edgehub", check=False).returncode != 0
    shown = machine.show("edgehub", "ActiveState", "ExecMainStatus", "NRestarts")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}


def test_a_hub_that_hangs_is_restarted(machine: Machine) -> None:
    """The watchdog ends it, the log says where it hung, and what was acknowledged is there."""
    settings(machine)
    drop_in(machine, "edgehub", "WatchdogSec=2", "RestartSec=100ms")
    machine.run("systemctl", "start", "edgehub")
    publish(machine, 3)
    before = machine.show("edgehub", "MainPID")
    machine.run("systemctl", "kill", "--signal=STOP", "--kill-who=main", "edgehub")
    wait_logged(machine, "hub.started", 2)
    assert machine.show("edgehub", "NRestarts") == {"NRestarts": "1"}
    assert machine.show("edgehub", "MainPID") != before
    assert "Fatal Python error: Aborted" in journal(machine)
    assert status(machine)["summary"] == "collecting, not sending, 3 waiting"


def test_a_drain_gets_the_time_it_asks_for(machine: Machine) -> None:
    """It asks for what drain_timeout_s needs, so that a shorter TimeoutStopSec= kills nobody."""
    machine.run("systemd-run", "--unit=peer", "/usr/bin/python3", "/var/tmp/peer.py")
    settings(machine, WITH_SILENT_PEER)
    drop_in(machine, "edgehub", "TimeoutStopSec=2")
    machine.run("systemctl", "start", "edgehub")
    wait_logged(machine, "endpoint.link_up")
    publish(machine, 1)
    machine.run("systemctl", "stop", "edgehub")
    assert machine.show("edgehub", "Result") == {"Result": "success"}
    assert "hub.drain_cut_short" in journal(machine)
    machine.run("systemctl", "start", "edgehub")
    assert status(machine)["queues"][0]["depth"] == 1


def test_an_identity_made_by_root_is_readable_by_the_hub(machine: Machine) -> None:
    """The file belongs to the service's user, wherever it comes from."""
    settings(machine, WITH_ALL + '[mqtt]\nidentities_file = "/var/lib/edgehub/identities"\n')
    machine.write("/root/password", "secret", mode=0o600)
    # Without the file it cannot start, but its folder is there from then on.
    assert machine.run("systemctl", "start", "edgehub", check=False).returncode != 0
    machine.run("edgehub", "identity", "add", "pump-8", "--password-file", "/root/password")
    machine.run("systemctl", "start", "edgehub")
    assert '"identities": 1' in journal(machine)


def test_an_export_reaches_the_hub_and_leaves_its_socket(machine: Machine) -> None:
    """Another unit of the same user, shut in more, exports from the running hub; then it ends."""
    settings(machine, WITH_ALL + '[clock]\ntrust = "always"\n')
    machine.run("systemctl", "start", "edgehub")
    publish(machine, 5)
    export = "/opt/edgehub/bin/edgehub journal export /var/lib/edgehub-export"
    drop_in(machine, "edgehub-export", "ExecStart=", f"ExecStart={export} --close")
    machine.run("systemctl", "start", "edgehub-export")
    assert machine.show("edgehub-export", "Result") == {"Result": "success"}
    segments = list((machine.root / "var/lib/private/edgehub-export").glob("date=*/hub=*/*.gz"))
    assert segments
    assert {segment.stat().st_uid for segment in segments} != {0}
    assert machine.run("edgehub", "status", "--quiet").returncode == 0
