"""The nightly report as its unit runs it: Java and Spark, shut in, under a real systemd.

As root, with a Debian and its Java, some minutes: `make soak`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.debian_root import install_hub, make_root
from tests.support.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="a root folder and namespaces need root"),
]

UNITS = Path(__file__).parents[2] / "systemd"
LIBRARIES = "opt/edgehub/lib/python3.11/site-packages"
REPORT_TIMEOUT_S = 600.0
SETTINGS = """
hub_id = "gateway-7"
[clock]
trust = "always"
"""
PUBLISH = """
import paho.mqtt.client as paho
client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="pump-7")
client.connect("127.0.0.1", 1883)
client.loop_start()
for number in range(50):
    client.publish("devices/pump-7/messages/events/", str(number), qos=1).wait_for_publish(10)
client.disconnect()
"""


@pytest.fixture(scope="module")
def machine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Return a booted machine with hub, Java and Spark, installed as the guide says."""
    packages = ("systemd", "dbus", "python3", "python3-venv", "ca-certificates")
    java = ("default-jre-headless", "libnss-systemd")
    root = make_root(tmp_path_factory.mktemp("java") / "root", *packages, *java)
    install_hub(root, wheels)
    # As every installer leaves it; the machine's own name has no address, as on many gateways.
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n", "utf-8")
    # Half a gigabyte, of Python and Java alone: a copy is what pip would install.
    for name in ("pyspark", "py4j"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, root / LIBRARIES / name, symlinks=True)
    for unit in UNITS.iterdir():
        target = "usr/local/bin" if unit.name == "edgehub" else "etc/systemd/system"
        shutil.copy(unit, root / target / unit.name)
    (root / "var" / "tmp" / "publish.py").write_text(PUBLISH, "utf-8")
    with Machine(root) as booted:
        yield booted


def ended(machine: Machine, unit: str) -> dict[str, str]:
    """Wait until a unit that was started has ended; each look paces the next."""
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    names = ("ActiveState", "Result", "ExecMainStatus")
    while (shown := machine.show(unit, *names))["ActiveState"] in {"activating", "deactivating"}:
        assert time.monotonic() < deadline, shown
        machine.run("sleep", "1")
    return shown


def test_the_report_unit_reports(machine: Machine) -> None:
    """From the export of a running hub, within the unit's bounds; results belong to its user."""
    machine.write("/etc/edgehub/edgehub.toml", SETTINGS)
    machine.run("systemctl", "start", "edgehub")
    machine.run("/opt/edgehub/bin/python", "/var/tmp/publish.py")
    date = datetime.now(UTC).date()
    changes = {
        "edgehub-export": ("/var/lib/edgehub-export", "/var/lib/edgehub-export --close"),
        # Yesterday this hub did not run yet.
        "edgehub-analytics": ("report yesterday", f"report {date}"),
    }
    for unit, (said, instead) in changes.items():
        text = (UNITS / f"{unit}.service").read_text("utf-8")
        start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        lines = ["[Service]", "ExecStart=", start.replace(said, instead), ""]
        machine.write(f"/etc/systemd/system/{unit}.service.d/override.conf", "\n".join(lines))
    machine.run("systemctl", "daemon-reload")
    for unit in changes:
        machine.run("systemctl", "start", "--no-block", f"{unit}.service")
        machine.run("systemctl", "show", unit)
        log = ["journalctl", "--unit", unit, "--output=cat", "--no-pager"]
        shown = ended(machine, unit)
        expected = {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
        assert shown == expected, machine.run(*log).stdout
    told = machine.run(*log).stdout
    assert f"report date={date} outcome=done" in told
    assert "UnknownHostException" not in told
    folder = machine.root / "var/lib/private/edgehub-reports/report" / f"date={date}"
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    assert metrics["enqueued_rows"] == 50
    assert metrics["quarantined"] == 0
    page = folder / "report.html"
    assert page.stat().st_uid != 0
    assert "<svg" in page.read_text("utf-8")
    assert not list((machine.root / "var/lib/private/edgehub-reports").rglob("*.crc.draft"))


def test_a_report_that_fails_fails_its_unit(machine: Machine) -> None:
    """A damaged segment: the unit says so by its state, and the log which segment."""
    export = machine.root / "var/lib/private/edgehub-export"
    if not export.exists():
        export.parent.mkdir(mode=0o700, exist_ok=True)
        export.mkdir(mode=0o700)
    day = export / "date=2026-01-01" / "hub=gateway-7"
    day.mkdir(parents=True)
    (day / "000000000001-00112233.jsonl.gz").write_bytes(b"no gzip at all")
    # systemd hands a folder of another user over whole, one that is right already not.
    owner = export.stat().st_uid
    subprocess.run(["chown", "--recursive", str(owner), str(day.parent)], check=True)
    text = (UNITS / "edgehub-analytics.service").read_text("utf-8")
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    lines = ["[Service]", "ExecStart=", start.replace("report yesterday", "report 2026-01-01"), ""]
    path = "/etc/systemd/system/edgehub-analytics.service.d/override.conf"
    machine.write(path, "\n".join(lines))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "--no-block", "edgehub-analytics")
    shown = ended(machine, "edgehub-analytics")
    assert (shown["ActiveState"], shown["ExecMainStatus"]) == ("failed", "1")
    told = machine.run("journalctl", "--unit", "edgehub-analytics", "--output=cat").stdout
    assert "000000000001-00112233.jsonl.gz" in told
