"""The journal of a daemon: traffic, kills, exports, and what the command line says."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from paho.mqtt import client as mqtt

from tests.support.daemon import Daemon
from tests.support.devices import Device
from tests.support.journal_format import check_copies, check_equation, read_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

CONFIG = """
data_dir = "data"
[mqtt]
port = 0
[upstream]
type = "file"
path = "out.jsonl"
[log]
format = "json"
[clock]
trust = "always"
"""


@pytest.fixture(name="daemon")
def fixture_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Run a hub that writes what it gets into a file."""
    daemon = Daemon(tmp_path, CONFIG)
    daemon.start()
    yield daemon
    daemon.close()


def publish(daemon: Daemon, numbers: range) -> None:
    """Publish messages and wait for their PUBACKs."""
    device = Device("dev1", daemon.mqtt_port)
    try:
        for number in numbers:
            device.publish("bulk", number)
        assert device.wait_in_flight_below(1, 10)
    finally:
        device.close()


def test_an_export_gives_each_segment_once(daemon: Daemon, tmp_path: Path) -> None:
    """Twice, with a kill between: every message is in it from its arrival to its end."""
    publish(daemon, range(50))
    # Writes the lines that are due later.
    assert daemon.edgehub("journal", "show").returncode == 0
    assert daemon.call("journal status")["growing"] is not None
    early = daemon.edgehub("journal", "export", "exported")
    growing = "1 segment is growing, and --close exports it too"
    assert early.returncode == 0
    assert early.stdout == f"nothing new for {tmp_path / 'exported'}: {growing}\n"
    first = daemon.edgehub("journal", "export", "exported", "--close", "--json")
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)
    assert (document["target"], len(document["segments"])) == (str(tmp_path / "exported"), 1)
    for spelling in ("exported", "data/../exported/"):
        again = daemon.edgehub("journal", "export", spelling)
        assert (again.returncode, again.stdout) == (
            0,
            f"nothing new for {tmp_path / 'exported'}\n",
        )
    shown = daemon.edgehub(
        "journal", "show", "--event", "enqueued", "--since", "1h", "--limit", "2"
    )
    assert shown.returncode == 0, shown.stderr
    head, *rows = shown.stdout.splitlines()
    assert head.split() == [
        "time",
        "event",
        "queue",
        "messages",
        "waited",
        "device",
        "reason",
        "id",
    ]
    assert [row.split()[1:4] for row in rows] == [["enqueued", "upstream", "1"]] * 2
    assert shown.stderr == "the newest 2 of 50 lines\n"
    document = json.loads(daemon.edgehub("journal", "show", "--event", "expired", "--json").stdout)
    assert document == {"lines": [], "found": 0, "complete": True, "unread_segments": 0}
    publish(daemon, range(50, 80))
    daemon.kill()
    daemon.start()
    publish(daemon, range(80, 90))
    daemon.wait_until(
        lambda: sum(queue["depth"] for queue in daemon.call("queue list")["queues"]) == 0, 10
    )
    assert daemon.stop() == 0
    daemon.start()
    # Events without rows are committed a little later.
    daemon.wait_until(lambda: daemon.call("journal show", event="link")["found"] == 7, 10)
    last = daemon.edgehub("journal", "export", "exported", "--close")
    assert last.returncode == 0, last.stderr
    assert re.search(r"\d segments?, ", last.stdout)
    lines = read_folder(tmp_path / "exported")
    told = check_copies(lines)
    assert len(told) == 90
    assert all(events[-1] == "sent" for events in told.values())
    assert check_equation(lines) == {}
    # Down and up at each start, and down once more where the hub ended in order.
    assert Counter(line["event"] for line in lines)["link"] == 7
    assert len(list((tmp_path / "exported" / "_exports").rglob("*.json"))) == 2


def test_what_heads_drop_is_reported(daemon: Daemon, tmp_path: Path) -> None:
    """A wrong topic, a malformed bag, a body that is too large: by device, reason and bytes."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="dev1")
    client.connect("127.0.0.1", daemon.mqtt_port)
    client.loop_start()
    bad = {
        "site/temperature": b"x",
        "devices/dev1/messages/events/a=1&": b"xy",
        "devices/dev1/messages/events/": b"x" * 300_000,
    }
    try:
        for topic, body in bad.items():
            client.publish(topic, body, qos=1).wait_for_publish(10)
    finally:
        client.disconnect()
        client.loop_stop()
    daemon.wait_until(lambda: daemon.call("status")["journal"]["waiting_bytes"] > 0, 10)
    daemon.edgehub("journal", "export", "exported", "--close")
    refused = [line for line in read_folder(tmp_path / "exported") if line["event"] == "refused"]
    found = {(line["device"], line["reason"], line["bytes"]) for line in refused}
    assert found == {
        ("dev1", "topic_not_allowed", 1),
        ("dev1", "bag_malformed", 2),
        ("dev1", "too_large", 300_000),
    }


def test_every_refusal_leaves_one_line(tmp_path: Path) -> None:
    """Packets and bodies that are refused unread, over MQTT 5 and before an HTTP sign-in, too."""
    daemon = Daemon(tmp_path, f"{CONFIG}[http]\nport = 0\n")
    try:
        daemon.start()
        listening = next(line for line in daemon.log if line["event"] == "http.listening")
        (address,) = listening["addresses"]
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id="dev1", protocol=mqtt.MQTTv5
        )
        ended = threading.Event()
        client.on_disconnect = lambda *_: ended.set()
        client.connect("127.0.0.1", daemon.mqtt_port)
        client.loop_start()
        client.publish("devices/dev1/messages/events/", b"x" * 1_000_000, qos=0)
        assert ended.wait(10)
        client.disconnect()
        client.loop_stop()
        connection = HTTPConnection(address)
        connection.putrequest("POST", "/devices/dev2/messages/events?api-version=2020-03-13")
        connection.putheader("Content-Length", "400000")
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()
        connection.request(
            "POST",
            "/devices/dev3/messages/events?api-version=2020-03-13",
            b"abc",
            {"Authorization": "Basic eDp5"},
        )
        assert connection.getresponse().status == 401
        connection.close()
        daemon.wait_until(lambda: daemon.call("status")["journal"]["waiting_bytes"] > 0, 10)
        daemon.edgehub("journal", "export", "exported", "--close")
    finally:
        daemon.close()
    refused = [line for line in read_folder(tmp_path / "exported") if line["event"] == "refused"]
    found = {(line.get("device"), line["reason"], line["count"]): line["bytes"] for line in refused}
    assert found.pop(("dev1", "too_large", 1)) >= 1_000_000
    assert found == {("dev2", "too_large", 1): 400_000, (None, "not_authorized", 1): 3}


def test_lines_wait_for_the_clock(tmp_path: Path) -> None:
    """Nothing is exported while it is not trusted; exit code 75, and what it waits for."""
    daemon = Daemon(tmp_path, CONFIG.replace("always", "never"))
    try:
        daemon.start()
        publish(daemon, range(3))
        held = daemon.edgehub("journal", "export", "exported", "--close")
        assert held.returncode == 75
        assert held.stdout == f"nothing new for {tmp_path / 'exported'}\n"
        assert "1 segment is held until the clock is trusted (" in held.stderr
        again = daemon.edgehub("journal", "export", "exported", "--json")
        assert again.returncode == 75
        assert json.loads(again.stdout)["held_segments"] == 1
        assert "clock.trust" in again.stderr
        text = daemon.edgehub("journal", "status").stdout
        assert "held until the clock is trusted: 1 segment, " in text
        assert "\nnot exported: the clock is not trusted, " in text
        assert "let NTP set it" in text
        assert "exported to: " not in text
        assert not (tmp_path / "exported").exists()
        assert daemon.stop() == 0
        daemon.config.write_text(CONFIG, "utf-8")
        daemon.start()
        daemon.wait_until(lambda: daemon.call("status")["store"]["clock"]["trusted"], 10)
        # The export itself has held lines told again, it does not wait for their time.
        daemon.wait_until(lambda: daemon.edgehub("journal", "export", "none").returncode == 0, 5)
        assert daemon.call("journal status")["held_segments"] == 0
        publish(daemon, range(3, 4))
        told = daemon.edgehub("journal", "export", "exported", "--close")
        assert (told.returncode, told.stderr) == (0, "")
        assert daemon.stop() == 0
    finally:
        daemon.close()
    lines = read_folder(tmp_path / "exported")
    assert Counter(line["event"] for line in lines)["enqueued"] == 4
    assert not list((tmp_path / "exported").glob("date=unknown"))


def test_status_says_how_far_it_is(daemon: Daemon) -> None:
    """As text, as JSON, and within the status of the hub."""
    publish(daemon, range(3))
    document = json.loads(daemon.edgehub("journal", "status", "--json").stdout)
    assert document["enabled"]
    assert document["waiting_bytes"] > 0
    assert daemon.call("status")["journal"]["journal_lag_seconds"] >= 0
    daemon.edgehub("journal", "export", "exported", "--close")
    text = daemon.edgehub("journal", "status").stdout
    assert "segments: 1, " in text
    assert "0 not exported" in text
    assert f"exported to: {daemon.folder / 'exported'}" in text


def test_an_export_that_cannot_be_is_reported(daemon: Daemon, tmp_path: Path) -> None:
    """A target in the way: 1; none: 2; no daemon: 4; the segments go the next time."""
    publish(daemon, range(3))
    (tmp_path / "exported").write_text("in the way")
    failed = daemon.edgehub("journal", "export", "exported", "--close")
    assert failed.returncode == 1
    assert "exported/date=" in failed.stderr
    own = daemon.edgehub("journal", "export", "data/../data/journal/x")
    assert own.returncode == 1
    assert "the journal's own folder" in own.stderr
    assert daemon.edgehub("journal", "export", "").returncode == 2
    (tmp_path / "exported").unlink()
    assert daemon.edgehub("journal", "export", "exported").stdout.startswith("1 segment, ")
    assert daemon.stop() == 0
    gone = daemon.edgehub("journal", "export", "exported")
    assert gone.returncode == 4


def test_a_damaged_segment_holds_up_no_other(daemon: Daemon, tmp_path: Path) -> None:
    """Exit code 1 and its name each time, until it is moved away; the others are exported."""
    publish(daemon, range(3))
    assert daemon.edgehub("journal", "export", "first", "--close").returncode == 0
    (bad,) = (daemon.folder / "data" / "journal").glob("date=*/hub=*/*.gz")
    bad.write_bytes(bad.read_bytes()[:-9])
    publish(daemon, range(3, 5))
    for others in (1, 0):
        told = daemon.edgehub("journal", "export", "exported", "--close", "--json")
        assert told.returncode == 1
        assert f"{bad.name} is damaged" in told.stderr
        document = json.loads(told.stdout)
        assert len(document["segments"]) == others
        assert [bad.name in path for path in document["problems"]] == [True]
    bad.unlink()
    assert daemon.edgehub("journal", "export", "exported").returncode == 0
    (segment,) = (tmp_path / "exported").glob("date=*/hub=*/*.gz")
    assert segment.name != bad.name


def test_a_hub_without_a_journal_says_so(tmp_path: Path) -> None:
    """Nothing is written, and the command tells how to change that."""
    daemon = Daemon(tmp_path, CONFIG + "[journal]\nenabled = false\n")
    daemon.start()
    try:
        publish(daemon, range(3))
        assert not (tmp_path / "data" / "journal").exists()
        assert daemon.call("status")["journal"] == {"enabled": False}
        failed = daemon.edgehub("journal", "export", "exported")
        assert failed.returncode == 1
        assert "journal.enabled = true" in failed.stderr
        assert "keeps no journal" in daemon.edgehub("journal", "status").stdout
        assert daemon.stop() == 0
    finally:
        daemon.close()
