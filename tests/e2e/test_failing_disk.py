"""The daemon on a disk that fails or has spoilt its file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.devices import Device

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

FAIL_SYNC = Path(__file__).parents[1] / "support" / "fail_sync.c"


def waiting(daemon: Daemon) -> int:
    """Return how many rows wait."""
    return sum(queue["depth"] for queue in daemon.call("queue list")["queues"])


@pytest.mark.timeout(60)
def test_a_sync_that_fails_acknowledges_nothing(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """While the disk refuses syncs PUBACKs wait and status says why; then they come, and hold."""
    shim, flag = tmp_path / "fail_sync.so", tmp_path / "fail"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", shim, FAIL_SYNC, "-ldl"], check=True)
    daemon = make_daemon()
    daemon.env |= {"LD_PRELOAD": str(shim), "FAIL_SYNC": str(flag)}
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    device.publish("status", 0)
    assert device.wait_in_flight_below(1, 10)
    flag.touch()
    for number in range(1, 21):
        device.publish("status", number)
    daemon.wait_until(lambda: daemon.call("status")["store"]["failing"] is not None, 10)
    status = daemon.call("status")
    assert "SQLITE_IOERR" in status["warnings"][0]
    assert status["degraded"]
    assert len(device.acked) == 1
    flag.unlink()
    assert device.wait_in_flight_below(1, 15)
    device.close()
    daemon.kill()
    daemon.start()
    assert waiting(daemon) >= 21
    assert not daemon.call("status")["degraded"]
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_damaged_file_is_survived(make_daemon: Callable[..., Daemon]) -> None:
    """The daemon starts with what can be read, and `edgehub status` says what is lost."""
    daemon = make_daemon().start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(500):
        device.publish("status", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    assert daemon.stop() == 0
    path = daemon.folder / "data" / "queue.db"
    content = bytearray(path.read_bytes())
    page = content.index(b"press-1|status|250|") // 4096
    content[page * 4096 : (page + 1) * 4096] = bytes(4096)
    path.write_bytes(content)
    daemon.start()
    status = daemon.call("status")
    damage = status["store"]["damage"]
    lost = sum(entry[2] for entry in damage["lost"])
    assert 0 < lost < 50
    assert waiting(daemon) == 500 - lost
    assert (path.parent / damage["file"]).exists()
    assert status["degraded"]
    assert json.dumps(f"{lost} lost")[1:-1] in status["warnings"][0]
    events = [line["event"] for line in daemon.log if line.get("level") == "error"]
    assert events == ["store.damage_found", "store.damage_set_aside"]
    assert daemon.stop() == 0


def test_a_folder_that_is_taken_away_ends_the_hub(make_daemon: Callable[..., Daemon]) -> None:
    """What is sent afterwards is not acknowledged; the hub says why and ends within seconds."""
    daemon = make_daemon().start()
    device = Device("press-1", daemon.mqtt_port)
    device.publish("status", 0)
    assert device.wait_in_flight_below(1, 10)
    shutil.rmtree(daemon.folder / "data")
    device.publish("status", 1)
    assert "queue.db was removed" in daemon.wait_event("store.file_removed", 10)["error"]
    assert daemon.wait() == 1
    assert len(device.acked) == 1
    device.close()
