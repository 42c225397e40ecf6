"""MQTT over TLS on the daemon: both ports, a certificate renewed by SIGHUP, wrong files."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import Authority
from tests.support.mosquitto import find

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

EVENTS = "devices/press-1/messages/events/"
FILES = 'certificate_file = "server.pem"\nkey_file = "server.key"\n'


def install(daemon: Daemon, files: tuple[Path, Path]) -> None:
    """Put certificate and key where the settings name them."""
    for source, name in zip(files, ("server.pem", "server.key"), strict=True):
        shutil.copy(source, daemon.folder / name)


def publish(port: int, ca_file: Path | None, version: str = "5") -> subprocess.CompletedProcess:
    """Publish one message with mosquitto_pub."""
    tls = () if ca_file is None else ("--cafile", str(ca_file))
    return subprocess.run(
        [
            *(find("mosquitto_pub"), "-V", version, "-h", "127.0.0.1", "-p", str(port)),
            *("-i", "press-1", "-t", EVENTS, "-q", "1", "-m", "x", *tls),
        ],
        capture_output=True,
        timeout=15,
        check=False,
    )


def with_tls(daemon: Daemon) -> Daemon:
    """Add TLS on any free port to the settings."""
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(text.replace("[mqtt]\n", f"[mqtt]\ntls_port = 0\n{FILES}"), "utf-8")
    return daemon


@pytest.mark.timeout(60)
def test_tls_and_a_renewed_certificate(make_daemon: Callable[..., Daemon], tmp_path: Path):
    """Both ports serve; SIGHUP has the new certificate shown, and a wrong one changes nothing."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    daemon = with_tls(make_daemon())
    install(daemon, old.server("old-server"))
    port = daemon.start().log[-1]["mqtt_tls_port"]
    assert publish(port, old.certificate).returncode == 0
    assert publish(port, old.certificate, "311").returncode == 0
    assert publish(daemon.mqtt_port, None).returncode == 0

    (daemon.folder / "server.key").write_text("no key")
    daemon.signal(signal.SIGHUP)
    refused = daemon.wait_event("hub.reload_refused")
    assert "mqtt.key_file" in refused["faults"][0]
    assert publish(port, old.certificate).returncode == 0

    install(daemon, new.server("new-server"))
    daemon.signal(signal.SIGHUP)
    assert daemon.wait_event("hub.reloaded")["certificate_changed"] is True
    assert publish(port, new.certificate).returncode == 0
    assert publish(port, old.certificate).returncode != 0

    daemon.signal(signal.SIGHUP)
    assert daemon.wait_event("hub.reloaded")["certificate_changed"] is False
    assert sum(queue["depth"] for queue in daemon.call("queue list")["queues"]) == 5
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("key", "place"), [("mqtt.certificate_file", "server.pem"), ("mqtt.key_file", "server.key")]
)
def test_wrong_files_at_the_start(
    make_daemon: Callable[..., Daemon], tmp_path: Path, key: str, place: str
):
    """The start fails with the code of wrong settings, the key, and what to do."""
    daemon = with_tls(make_daemon())
    install(daemon, Authority(tmp_path).server())
    (daemon.folder / place).unlink()
    done = subprocess.run(
        [sys.executable, "-m", "edgehub", "run", "--config", str(daemon.config)],
        cwd=daemon.folder,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 78
    assert f"{key}: {daemon.folder / place}: No such file" in done.stderr
    assert "check the path" in done.stderr
