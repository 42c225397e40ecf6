"""What a wrong file or a wrong message does to the daemon: a clear word, and life goes on."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.command_line import CommandResult, edgehub
from tests.support.devices import Collector, Device
from tests.support.forked_hub import ForkedHub

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

GOOD = {
    "schemaVersion": "1.1",
    "routes": {"all": {"route": "FROM /messages/* INTO $upstream", "priority": 3}},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


def _run(*arguments: str, cwd: Path) -> CommandResult:
    """Run a hub that cannot start, to its end."""
    log = cwd / "log"
    with log.open("wb") as written:
        hub = ForkedHub(["run", *arguments], cwd=cwd, env=os.environ, stderr=written.fileno())
    return CommandResult(hub.wait(15), "", log.read_text("utf-8"))


def test_wrong_settings_stop_the_start_with_78_and_name_the_key(tmp_path: Path) -> None:
    """L-05: the exit code is that of a bad configuration, the text names key and near miss."""
    (tmp_path / "edgehub.toml").write_text("[mqtt]\nprot = 1\n[store]\nengine = 'rocks'\n", "utf-8")
    done = _run(cwd=tmp_path)
    assert done.returncode == 78
    assert "mqtt.prot: unknown key (did you mean 'port'?)" in done.stderr
    assert "store.engine: unknown key" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_manifest_stops_the_start_with_every_fault(tmp_path: Path) -> None:
    """P-04 and compile errors: all at once, with route, line and column."""
    manifest = {
        **GOOD,
        "routes": {
            "r1": {"route": "FROM /messages/* INTO $upstream", "priority": 10},
            "r2": "FROM /messages/* WHERE level > 5 INTO $upstream",
        },
    }
    (tmp_path / "m.json").write_text(json.dumps(manifest), "utf-8")
    (tmp_path / "edgehub.toml").write_text('manifest = "m.json"\n[mqtt]\nport = 0\n', "utf-8")
    done = _run(cwd=tmp_path)
    assert done.returncode == 78
    assert "routes.r1.priority" in done.stderr
    assert "routes.r2: column 30 of its text" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_a_start_up_failure(make_daemon: Callable[..., Daemon]) -> None:
    """Exit code 3 and a text that says what to set."""
    first = make_daemon().start()
    second = make_daemon(extra="").config
    text = second.read_text("utf-8")
    second.write_text(
        "\n".join(
            f"port = {first.mqtt_port}" if line.startswith("port = ") else line
            for line in text.splitlines()
        ),
        "utf-8",
    )
    done = _run("--config", str(second), cwd=second.parent)
    assert done.returncode == 3
    assert "mqtt.port" in done.stderr or str(first.mqtt_port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_daemon_on_the_same_folder_is_refused(make_daemon: Callable[..., Daemon]) -> None:
    """One process owns the database."""
    daemon = make_daemon().start()
    config = daemon.folder / "other.toml"
    config.write_text('data_dir = "data"\n[mqtt]\nport = 0\n', "utf-8")
    done = _run("--config", str(config), cwd=daemon.folder)
    assert done.returncode == 3
    assert "queue.db is in use by another process; stop the other hub" in done.stderr
    assert "Traceback" not in done.stderr
    assert daemon.call("status")["phase"] == "running"


def test_no_daemon_is_exit_code_4(tmp_path: Path) -> None:
    """The command line says so, with a hint."""
    done = edgehub("status", cwd=tmp_path)
    assert done.returncode == 4
    assert "is it running" in done.stderr


@pytest.mark.timeout(60)
def test_bad_messages_are_dropped_and_good_ones_behind_them_flow(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Oversized, foreign topic, malformed bag: acknowledged, dropped, counted; the rest arrives."""
    daemon = make_daemon(upstream=broker.port).start()
    collector = Collector(broker.port)
    device = Device("press-1", daemon.mqtt_port)
    events = "devices/press-1/messages/events/"
    device.publish("a", 0)
    bad = [
        device.publish_raw(events, b"x" * 300_000),
        device.publish_raw("some/other/topic", b"x"),
        device.publish_raw(events + "a=1&&b", b"x"),
    ]
    for info in bad:
        info.wait_for_publish(10)
        assert info.is_published(), "3.1.1 has no other word than PUBACK"
    device.publish("a", 1)
    assert collector.wait_for({("press-1", "a", 0), ("press-1", "a", 1)}, 15) == set()
    assert len(collector.arrivals) == 2
    dropped = daemon.call("status")["mqtt"]["dropped"]
    assert sum(dropped.values()) == 3, dropped
    device.close()
    collector.close()


@pytest.mark.timeout(60)
def test_anothers_identity_in_the_topic_ends_the_connection(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """A device cannot speak as another one; its neighbours go on."""
    daemon = make_daemon(upstream=broker.port).start()
    collector = Collector(broker.port)
    good = Device("press-1", daemon.mqtt_port)
    spoofer = Device("press-2", daemon.mqtt_port)
    spoofer.publish_raw("devices/press-1/messages/events/", b"x")
    assert spoofer.disconnected.wait(10)
    spoofer.close()
    good.publish("a", 0)
    assert collector.wait_for({("press-1", "a", 0)}, 15) == set()
    assert len(collector.arrivals) == 1
    good.close()
    collector.close()


@pytest.mark.timeout(60)
def test_a_wrong_manifest_at_reload_changes_nothing(make_daemon: Callable[..., Daemon]) -> None:
    """Whole or not at all: the old routes stay, the daemon lives, a right one is taken later."""
    daemon = make_daemon(top='manifest = "m.json"')
    file = daemon.folder / "m.json"
    file.write_text(json.dumps(GOOD), "utf-8")
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    device.publish("a", 0)
    assert device.wait_in_flight_below(1, 10)

    wrong = {**GOOD, "routes": {**GOOD["routes"], "bad": "FROM /messages/* WHERE INTO $upstream"}}
    file.write_text(json.dumps(wrong), "utf-8")
    daemon.signal(signal.SIGHUP)
    fault = daemon.wait_event("hub.reload_refused")
    assert "bad" in str(fault["faults"])
    device.publish("a", 1)
    assert device.wait_in_flight_below(1, 10)
    assert {q["id"]: q["depth"] for q in daemon.call("queue list")["queues"]} == {
        "upstream_Pri3": 2
    }

    # C-06: the class changes; stored rows keep theirs.
    right = {**GOOD, "routes": {"all": {**GOOD["routes"]["all"], "priority": 1}}}
    file.write_text(json.dumps(right), "utf-8")
    daemon.signal(signal.SIGHUP)
    daemon.wait_event("hub.reloaded")
    device.publish("a", 2)
    assert device.wait_in_flight_below(1, 10)
    depths = {q["id"]: q["depth"] for q in daemon.call("queue list")["queues"]}
    assert depths == {"upstream_Pri1": 1, "upstream_Pri3": 2}
    device.close()
    assert daemon.stop() == 0


def test_a_priority_out_of_range_leaves_the_running_manifest(
    make_daemon: Callable[..., Daemon],
) -> None:
    """P-04: each is refused with the path of the value; what is in range is taken."""
    daemon = make_daemon(top='manifest = "m.json"')

    def reloaded(**priority: object) -> dict[str, object]:
        route = {"route": "FROM /messages/* INTO $upstream", **priority}
        (daemon.folder / "m.json").write_text(json.dumps({**GOOD, "routes": {"r1": route}}))
        return daemon.call("config reload")

    (daemon.folder / "m.json").write_text(json.dumps(GOOD), "utf-8")
    daemon.start()
    for wrong in (10, -1, 1.5, "1", True, None, 2_000_000_001):
        answer = reloaded(priority=wrong)
        assert answer["outcome"] == "refused"
        (fault,) = answer["faults"]
        assert fault["key"].endswith("routes.r1.priority")
    device = Device("press-1", daemon.mqtt_port)
    device.publish("a", 0)
    assert device.wait_in_flight_below(1, 10)
    for right in ({"priority": 0}, {"priority": 9}, {}):
        assert reloaded(**right)["outcome"] == "applied"
        device.publish("a", 1)
        assert device.wait_in_flight_below(1, 10)
    depths = {q["id"]: q["depth"] for q in daemon.call("queue list")["queues"]}
    assert depths == {"upstream_Pri0": 1, "upstream_Pri3": 1, "upstream_Pri9": 1, "upstream": 1}
    device.close()
    assert daemon.stop() == 0


def test_payloads_are_never_logged(make_daemon: Callable[..., Daemon]) -> None:
    """O-03: no line of the log holds what a device sent."""
    daemon = make_daemon(extra="").start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(100):
        device.publish("SECRET-42", number)
    info = device.publish_raw("foreign/SECRET-42", b"SECRET-42")
    info.wait_for_publish(10)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    assert daemon.stop() == 0
    assert "SECRET-42|" not in json.dumps(daemon.log)


def test_a_second_signal_aborts(make_daemon: Callable[..., Daemon]) -> None:
    """Two SIGTERMs in a row end the daemon at once, in order."""
    daemon = make_daemon().start()
    daemon.signal(signal.SIGTERM)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() in {0, 1}
