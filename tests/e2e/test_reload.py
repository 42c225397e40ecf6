"""Changing a running daemon: settings and manifest by SIGHUP and by command, and what it says."""

from __future__ import annotations

import json
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import Daemon
from tests.support.devices import Collector, Device
from tests.support.ports import free_port
from tests.support.refusing_peer import RefusingPeer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.command_line import CommandResult
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e

TOP = 'manifest = "manifest.json"'
WARNING = "warning: edgehub.toml: upstream.typo: unknown key (edgehub config validate lists all)"


def _write_manifest(daemon: Daemon, status: int, *, file: str = "manifest.json") -> None:
    document = {
        "schemaVersion": "1.1",
        "routes": {
            "status": {
                "route": "FROM /messages/* WHERE kind = 'status' INTO $upstream",
                "priority": status,
                "timeToLiveSecs": 3600,
            },
            "rest": "FROM /messages/* INTO $upstream",
        },
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    (daemon.folder / file).write_text(json.dumps(document), "utf-8")


def _replace(daemon: Daemon, old: str, new: str) -> None:
    text = daemon.config.read_text("utf-8")
    assert old in text
    daemon.config.write_text(text.replace(old, new), "utf-8")


def _depths(daemon: Daemon) -> dict[str, int]:
    return {queue["id"]: queue["depth"] for queue in daemon.call("queue list")["queues"]}


def _publish(daemon: Daemon, kind: str, numbers: range, device_id: str = "press-1") -> None:
    device = Device(device_id, daemon.mqtt_port)
    for number in numbers:
        device.publish(kind, number)
    assert device.wait_in_flight_below(1, 15)
    device.close()


def _json(done: CommandResult) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.timeout(60)
def test_a_reload_with_a_correct_address_tries_at_once(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """C-05: a minute of back-off is not waited for, and the rows come in their order."""
    with RefusingPeer() as wrong:
        daemon = make_daemon(upstream=wrong.port).start()
        collector = Collector(broker.port)
        _publish(daemon, "a", range(50))
        daemon.wait_event("pump.endpoint_parked")
        _replace(daemon, f"port = {wrong.port}", f"port = {broker.port}")
        asked = time.monotonic()
        daemon.signal(signal.SIGHUP)
        daemon.wait_event("endpoint.link_up")
        assert time.monotonic() - asked < 2
    assert collector.wait_for({("press-1", "a", number) for number in range(50)}, 10) == set()
    assert [arrival.number for arrival in collector.arrivals] == list(range(50))
    collector.close()
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_changed_class_holds_for_new_rows_and_both_drain(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """C-06: 500 rows stay in class 2, new ones are class 1, both leave, without a restart."""
    daemon = make_daemon(top=TOP)
    _write_manifest(daemon, 2)
    daemon.start()
    collector = Collector(broker.port)
    _publish(daemon, "status", range(500))
    _write_manifest(daemon, 1)
    done = daemon.edgehub("config", "reload", "--json")
    assert done.returncode == 0, done.stderr
    outcome = _json(done)
    assert (outcome["outcome"], outcome["manifest_changed"]) == ("applied", True)
    _publish(daemon, "status", range(500, 600))
    assert _depths(daemon) == {"upstream_Pri1": 100, "upstream_Pri2": 500}
    daemon.config.write_text(
        daemon.config.read_text("utf-8")
        + f'[upstream]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {broker.port}\n',
        "utf-8",
    )
    daemon.signal(signal.SIGHUP)
    wanted = {("press-1", "status", number) for number in range(600)}
    assert collector.wait_for(wanted, 20) == set()
    order = [arrival.number for arrival in collector.arrivals]
    assert order == [*range(500, 600), *range(500)]
    daemon.wait_until(lambda: set(_depths(daemon).values()) == {0}, 10)
    collector.close()
    assert daemon.stop() == 0


def test_a_refused_reload_changes_nothing_and_names_every_fault(
    make_daemon: Callable[..., Daemon],
) -> None:
    """Settings and manifest are taken together or not at all; the command says 78."""
    daemon = make_daemon(top=TOP)
    _write_manifest(daemon, 2)
    daemon.start()
    before = daemon.call("config show")
    _write_manifest(daemon, 11)
    text = daemon.config.read_text("utf-8")
    daemon.config.write_text(
        f'drain_timeout_s = 5\n{text}[upstream]\ntype = "mqtt"\nhost = "a"\ntls = true\n'
        'ca_file = "absent.pem"\n',
        "utf-8",
    )
    done = daemon.edgehub("config", "reload")
    assert done.returncode == 78
    assert "routes.status.priority" in done.stderr
    assert re.search(
        r"^edgehub: \S*upstream\.ca_file: \S*absent\.pem: No such file", done.stderr, re.MULTILINE
    )
    assert all(line.startswith("edgehub: ") for line in done.stderr.splitlines())
    refused = daemon.wait_event("hub.reload_refused")
    assert len(refused["faults"]) == 2
    assert daemon.call("config show") == before
    # Wrong settings are found before the daemon is asked.
    daemon.config.write_text(text + "[store]\nengine = 'rocks'\n", "utf-8")
    done = daemon.edgehub("config", "reload")
    assert done.returncode == 78
    assert "store.engine: unknown key" in done.stderr
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_settings_file_made_after_the_start_is_read_by_a_reload(
    broker: Mosquitto, tmp_path: Path
) -> None:
    """A hub that started without edgehub.toml takes it over once it is there."""
    port = free_port()
    env = {
        "EDGEHUB_DATA_DIR": "data",
        "EDGEHUB_MQTT__PORT": str(port),
        "EDGEHUB_LOG__FORMAT": "json",
    }
    daemon = Daemon(tmp_path, None, env=env)
    try:
        daemon.start()
        assert daemon.edgehub("config", "reload").stdout == (
            "unchanged; links that are down were tried again\n"
        )
        collector = Collector(broker.port)
        _publish(daemon, "a", range(5))
        daemon.config.write_text('[upstream]\ntype = "mqtt"\nhost = 7\n', "utf-8")
        assert daemon.edgehub("config", "reload").returncode == 78
        daemon.config.write_text(
            'data_dir = "data"\n[upstream]\ntype = "mqtt"\n'
            f'host = "127.0.0.1"\nport = {broker.port}\n',
            "utf-8",
        )
        done = daemon.edgehub("config", "reload")
        assert done.stdout.startswith("applied\n"), done
        assert collector.wait_for({("press-1", "a", number) for number in range(5)}, 10) == set()
        collector.close()
        daemon.config.unlink()
        assert daemon.call("config reload")["outcome"] == "refused"
        assert daemon.call("status")["summary"].startswith("delivering")
        assert daemon.stop() == 0
    finally:
        daemon.close()


def test_wrong_settings_keep_no_command_from_a_running_hub(
    make_daemon: Callable[..., Daemon],
) -> None:
    """Commands that ask it warn in one line and answer; without a hub the fault is the error."""
    daemon = make_daemon().start()
    text = daemon.config.read_text("utf-8")
    upstream = '[upstream]\ntype = "mqtt"\nhost = "a"\ntypo = 1\n'
    daemon.config.write_text(f"{text}{upstream}", "utf-8")
    assert daemon.edgehub("config", "reload").returncode == 78
    for command, code in (
        ("status", 0),
        ("queue list", 0),
        ("queue dead list", 0),
        ("queue dead requeue --all", 0),
        ("why absent", 1),
        ("config show --running", 0),
    ):
        done = daemon.edgehub(*command.split(), "--json")
        assert done.returncode == code, (command, done.stderr)
        json.loads(done.stdout)
        assert re.findall("^warning: .*", done.stderr, re.MULTILINE) == [WARNING], command
    refused = daemon.edgehub("queue", "purge", "absent", "--yes")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{WARNING}\nedgehub: ")
    assert daemon.stop() == 0
    done = daemon.edgehub("status")
    assert done.returncode == 78
    assert "edgehub: edgehub.toml: upstream.typo: unknown key" in done.stderr


def test_what_needs_a_restart_is_listed_until_then(make_daemon: Callable[..., Daemon]) -> None:
    """A changed port is named in log, answer and status; the rest of the change is applied."""
    daemon = make_daemon().start()
    port = free_port()
    _replace(daemon, f"port = {daemon.mqtt_port}", f"port = {port}\nclients_max = 7")
    done = daemon.edgehub("config", "reload")
    assert done.returncode == 0, done.stderr
    assert "settings: mqtt.clients_max" in done.stdout
    assert f"needs a restart: mqtt.port = {port}" in done.stdout
    assert daemon.wait_event("hub.reload_needs_restart")["keys"] == ["mqtt.port"]
    status = daemon.call("status")
    assert status["needs_restart"] == ["mqtt.port"]
    assert any(f"mqtt.port = {port} takes effect" in line for line in status["warnings"])
    shown = _json(daemon.edgehub("config", "show", "--running", "--json"))["settings"]
    assert shown["mqtt.port"]["value"] == daemon.mqtt_port
    assert shown["mqtt.clients_max"]["value"] == 7
    assert daemon.stop() == 0
    daemon.start()
    assert daemon.mqtt_port == port
    assert daemon.call("status")["warnings"] == []
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_manifest_is_compared_before_it_is_applied(make_daemon: Callable[..., Daemon]) -> None:
    """Classes, rows that keep theirs, and honest words about what was not measured."""
    daemon = make_daemon(top=TOP)
    _write_manifest(daemon, 2)
    daemon.start()
    _publish(daemon, "status", range(20))
    _write_manifest(daemon, 1, file="new.json")
    done = daemon.edgehub("manifest", "diff", "new.json", "--json")
    assert done.returncode == 0, done.stderr
    document = _json(done)
    (change,) = document["class_changes"]
    assert (change["route"], change["before"], change["after"]) == ("status", 2, 1)
    assert change["rows_in_old_queue"] == 20
    fates = {queue["id"]: queue["fate"] for queue in document["queues"]}
    assert fates == {"upstream": "kept", "upstream_Pri1": "new", "upstream_Pri2": "drains"}
    assert document["disk"]["measured_s"] is None
    text = daemon.edgehub("manifest", "diff", "new.json").stdout
    assert "class of status: 2 -> 1; 20 rows stay in upstream_Pri2" in text
    assert "not measured yet" in text
    assert "the same routes" in daemon.edgehub("manifest", "diff", "manifest.json").stdout
    assert "status" in daemon.edgehub("manifest", "show").stdout
    _write_manifest(daemon, 12, file="new.json")
    done = daemon.edgehub("manifest", "diff", "new.json")
    assert done.returncode == 78
    assert "routes.status.priority" in done.stderr
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_diff_names_endpoints_that_only_the_file_has(
    make_daemon: Callable[..., Daemon],
) -> None:
    """A reload is what is missing, not a section; a fault of another kind stays alone."""
    daemon = make_daemon(top=TOP)
    _write_manifest(daemon, 2)
    daemon.start()
    document = json.loads((daemon.folder / "manifest.json").read_text("utf-8"))
    document["routes"]["archive"] = "FROM /messages/* INTO Endpoint('archive')"
    (daemon.folder / "new.json").write_text(json.dumps(document), "utf-8")
    hint = "has it: `edgehub config reload` first"
    done = daemon.edgehub("manifest", "diff", "new.json")
    assert (done.returncode, hint in done.stderr) == (78, False)
    text = daemon.config.read_text("utf-8")
    endpoint = '\n[endpoints.archive]\ntype = "file"\npath = "out.jsonl"\n'
    daemon.config.write_text(text + endpoint, "utf-8")
    done = daemon.edgehub("manifest", "diff", "new.json")
    assert (done.returncode, hint in done.stderr) == (78, True)
    done = daemon.edgehub("manifest", "diff", "new.json", "--json")
    assert hint in json.loads(done.stdout)["hint"]
    assert daemon.edgehub("config", "reload").returncode == 0
    assert daemon.edgehub("manifest", "diff", "new.json").returncode == 0
    assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_manifest_without_the_catch_all_is_warned_of(make_daemon: Callable[..., Daemon]) -> None:
    """By `manifest diff` before, by `config reload` and the log after; bare words as well."""
    daemon = make_daemon(top=TOP)
    _write_manifest(daemon, 2)
    daemon.start()
    document = {
        "schemaVersion": "1.1",
        "routes": {"alarm": "FROM /messages/* WHERE kind = alarm INTO $upstream"},
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    for file in ("new.json", "manifest.json"):
        (daemon.folder / file).write_text(json.dumps(document), "utf-8")
    bare = "`alarm` is the name of a property; for a text write 'alarm'"
    lost = "from now on messages that match no route are acknowledged and dropped; "
    words = (bare, lost + 'add `"rest": "FROM /messages/* INTO $upstream"` to keep them')
    shown = daemon.edgehub("manifest", "diff", "new.json").stdout
    assert all(each in shown for each in words)
    reloaded = daemon.edgehub("config", "reload").stdout
    assert all(each in reloaded for each in words)
    assert daemon.stop() == 0
    logged = [line for line in daemon.log if line["event"] == "hub.config_warning"]
    assert [words[place] in line["warning"] for place, line in enumerate(logged)] == [True, True]


@pytest.mark.timeout(60)
def test_an_unchanged_reload_drops_no_link(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Under load, reload upon reload: one upstream session, one device session, no duplicate."""
    daemon = make_daemon(upstream=broker.port).start()
    collector = Collector(broker.port)
    device = Device("press-1", daemon.mqtt_port)
    for number in range(300):
        device.publish("a", number)
        if number % 30 == 0:
            daemon.signal(signal.SIGHUP)
            assert daemon.wait_event("hub.reloaded")["outcome"] == "unchanged"
    assert collector.wait_for({("press-1", "a", number) for number in range(300)}, 15) == set()
    assert [arrival.number for arrival in collector.arrivals] == list(range(300))
    assert not device.disconnected.is_set()
    links = [line for line in daemon.log if line["event"] == "endpoint.link_up"]
    assert len(links) == 1
    device.close()
    collector.close()
    assert daemon.stop() == 0
