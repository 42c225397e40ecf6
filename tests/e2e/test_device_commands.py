"""`edgehub device` against a running hub."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest

from edgehub.cli.refusal import CommandError
from tests.support.daemon import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
CONFIG = (
    'hub_id = "hub-1"\ndata_dir = "data"\n[log]\nformat = "json"\n[mqtt]\nport = 0\n'
    '[affinity]\ncoordinator = "in-process"\n'
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A hub alone that elects, with three devices that were heard."""
    daemon = Daemon(tmp_path_factory.mktemp("hub"), CONFIG).start()
    for name in ("dev-a", "dev-b", "dev-c"):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name)
        client.connect("127.0.0.1", daemon.mqtt_port)
        client.loop_start()
        for sequence in (1, 2, 2):
            topic = f"devices/{name}/messages/events/sequence={sequence}"
            client.publish(topic, b"x", qos=1).wait_for_publish(10)
        client.disconnect()
        client.loop_stop()
    depths = [queue["depth"] for queue in daemon.call("status")["queues"]]
    assert sum(depths) == 6, "repetitions are not stored"
    yield daemon
    daemon.close()


def run(hub: Daemon, *arguments: str, code: int = 0) -> str:
    """Run a command of `edgehub device`; returns what it printed."""
    done = hub.edgehub("device", *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.mark.scaled
@pytest.mark.timeout(120)
def test_repetitions_and_late_copies_make_no_second_row(tmp_path: Path) -> None:
    """A-05, A-07: one number three times a second apart, another again after 48 s; no error."""
    repetition_s, late_s = (1, 48) if SOAK else (0, 0)
    daemon = Daemon(tmp_path, CONFIG).start()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="d")
    client.connect("127.0.0.1", daemon.mqtt_port)
    client.loop_start()
    try:
        for sequence, pause_s in ((10, repetition_s), (10, repetition_s), (10, 0), (104, late_s)):
            topic = f"devices/d/messages/events/sequence={sequence}"
            client.publish(topic, b"x", qos=1).wait_for_publish(10)
            time.sleep(pause_s)
        client.publish("devices/d/messages/events/sequence=104", b"x", qos=1).wait_for_publish(10)
        status = daemon.call("status")
        assert status["affinity"]["frames"] == {"processed": 5}
        assert daemon.call("device show", device_id="d")["session"]["f_cnt_up"] == 104
        assert sum(queue["depth"] for queue in status["queues"]) == 2
        assert not [line for line in daemon.log if line.get("level") in {"warning", "error"}]
    finally:
        client.disconnect()
        client.loop_stop()
        daemon.close()


def test_devices_are_listed_shown_and_changed(hub: Daemon) -> None:
    """In pages, for people and for programs; a profile counts at once and outlives the hub."""
    page = json.loads(run(hub, "list", "--limit", "2", "--json"))
    assert [row["device_id"] for row in page["devices"]] == ["dev-a", "dev-b"]
    assert page["next"] == "dev-b"
    assert {row["ownership"] for row in page["devices"]} == {"owner"}
    rest = run(hub, "list", "--after", "dev-b")
    assert "dev-c" in rest
    assert "dev-a" not in rest

    shown = json.loads(run(hub, "show", "dev-a", "--json"))
    assert shown["session"]["f_cnt_up"] == 2
    assert shown["profile"]["deduplication"] == "drop"
    assert (shown["queue"]["done"], shown["queue"]["running"]) == (4, None)
    assert [entry["cause"] for entry in shown["ledger"]] == ["first"]

    run(hub, "set", "dev-a", "--gateway-id", "hub-9", "--keep-alive-s", "300")
    assert hub.call("device show", device_id="dev-a")["profile"]["gateway_id"] == "hub-9"
    with pytest.raises(CommandError, match="at least 60") as refused:
        hub.call("device set", device_id="dev-a", keep_alive_s=5)
    assert refused.value.problem["code"] == "bad_request"
    assert "want the `hub_id`" in run(hub, "set", "dev-a", "--gateway-id", "hub 9", code=1)
    status = hub.call("status")
    assert status["affinity"]["frames"] == {"processed": 9}

    assert hub.stop() == 0
    hub.start()
    profile = hub.call("device show", device_id="dev-a")["profile"]
    assert (profile["gateway_id"], profile["keep_alive_s"]) == ("hub-9", 300)

    assert "forgotten" in run(hub, "forget", "dev-a", "--yes")
    assert hub.call("device show", device_id="dev-a")["profile"]["gateway_id"] is None
    assert "has no device" in run(hub, "forget", "dev-a", "--yes", code=1)
    assert "--yes" in run(hub, "forget", "dev-a", code=2)


def test_the_ledger_says_who_owned_what(hub: Daemon) -> None:
    """A hub alone saw each of its devices once, and no ping-pong."""
    ledger = hub.call("device ledger")
    assert [entry["device_id"] for entry in ledger["entries"]] == ["dev-a", "dev-b", "dev-c"]
    assert ledger["last_hour"] == {
        "taken": 0,
        "lost": 0,
        "ping_pongs": 0,
        "sessions_taken_over": 0,
    }
    moment = datetime.fromisoformat(ledger["entries"][1]["time"])
    assert moment.utcoffset() == timedelta(0)
    assert moment.timestamp() * 1000 == pytest.approx(ledger["entries"][1]["time_ms"])
    text = run(hub, "ledger", "dev-b")
    assert re.search(r"\d-\d\dT[\d:.]+Z", text), "the zone is said"
    assert "last hour: 0 taken, 0 lost, 0 ping-pongs" in text
    assert "dev-b" in text
    assert "dev-a" not in text
    assert "profile.deduplication: drop" in run(hub, "show", "dev-b")


def test_messages_to_a_device_are_sent_listed_and_removed(hub: Daemon) -> None:
    """For people and for programs; what is wrong with a message is said before it is stored."""
    stored = run(
        *(hub, "send", "dev-a", "on", "--id", "open-1", "--priority", "0", "--ttl", "10min"),
        *("-p", "kind=cmd", "--ack", "full"),
    )
    assert stored.startswith("stored: open-1, until ")
    assert "1 message for it now" in stored
    run(hub, "send", "dev-a", "off", "--module", "m")
    [shown] = json.loads(run(hub, "messages", "dev-a", "--json"))["waiting"]
    assert (shown["priority"], shown["origin"], shown["in_flight"]) == (0, "api", False)
    table = run(hub, "messages", "dev-a")
    assert "open-1" in table
    assert "waits" in table
    assert "is not NAME=VALUE" in run(hub, "send", "dev-a", "x", "-p", "kind", code=2)
    assert "no length of time" in run(hub, "send", "dev-a", "x", "--ttl", "soon", code=2)
    assert "from 1 to 172800" in run(hub, "send", "dev-a", "x", "--ttl", "3d", code=1)
    assert "--yes" in run(hub, "purge", "dev-a", code=2)
    assert "removed: 1 message" in run(hub, "purge", "dev-a", "--yes")
    assert "removed: 1 message" in run(hub, "purge", "dev-a", "-m", "m", "--yes")
