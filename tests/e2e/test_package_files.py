"""A hub needs nothing of its package once it runs, and no descriptor to store a message."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import edgehub
from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

CONFIG = """data_dir = "data"
manifest = "m.json"
[mqtt]
port = {port}
[upstream]
type = "mqtt"
host = "127.0.0.1"
port = {nobody}
[endpoints.lab]
type = "file"
path = "lab.jsonl"
[log]
format = "json"
"""
WEB = """[endpoints.web]
type = "http"
url = "http://127.0.0.1:{nobody}/in"
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Daemon]:
    """Run a hub from a package of its own, without a route."""
    package = tmp_path / "package"
    shutil.copytree(
        Path(edgehub.__file__).parent,
        package / "edgehub",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    config = CONFIG.format(port=free_port(), nobody=free_port())
    daemon = Daemon(tmp_path, config, env={"PYTHONPATH": str(package)})
    add_routes(daemon)
    try:
        yield daemon.start()
    finally:
        daemon.close()


def add_routes(daemon: Daemon, **sinks: str) -> None:
    """Write a manifest with a route for messages of each kind."""
    routes = {
        kind: {"route": f"FROM /messages/* WHERE kind = '{kind}' INTO {sink}", "priority": 3}
        for kind, sink in sinks.items()
    }
    document = {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    (daemon.folder / "m.json").write_text(json.dumps(document), "utf-8")


def test_an_upgrade_in_place_does_not_disturb_the_hub_that_runs(hub: Daemon) -> None:
    """Its files may be gone: first routes, new queues, another kind of endpoint, a whole stop."""
    shutil.rmtree(hub.folder / "package")
    device = Device("press-1", hub.mqtt_port)
    config = hub.config.read_text("utf-8")
    hub.config.write_text(config + WEB.format(nobody=free_port()), "utf-8")
    add_routes(hub, a="$upstream", b='Endpoint("lab")', c='Endpoint("web")')
    outcome = hub.call("config reload")
    assert outcome["outcome"] == "applied", outcome
    for number, kind in enumerate("abc"):
        device.publish(kind, number)
    assert device.wait_in_flight_below(1, 10)
    assert {queue["id"] for queue in hub.call("queue list")["queues"]} >= {
        "upstream_Pri3",
        "lab_Pri3",
        "web_Pri3",
    }
    device.close()
    assert hub.stop() == 0
    assert [line for line in hub.log if line.get("level") in ("error", "critical", None)] == []


def test_a_message_for_a_new_queue_is_stored_without_a_free_descriptor(hub: Daemon) -> None:
    """Nothing is opened for it; what cannot be done without one is done later."""
    add_routes(hub, a="$upstream", b='Endpoint("lab")')
    assert hub.call("config reload")["outcome"] == "applied"
    device = Device("press-1", hub.mqtt_port)
    before = resource.prlimit(hub.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    device.publish("a", 1)
    assert device.wait_in_flight_below(1, 10)
    resource.prlimit(hub.pid, resource.RLIMIT_NOFILE, before)
    assert hub.call("queue list")["queues"][0]["depth"] == 1
    device.close()
    assert hub.stop() == 0
