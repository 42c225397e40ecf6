"""What a person does with `edgehub why` and `edgehub queue` against a running hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from edgehub.pump.refused_senders import closed_text
from tests.support.devices import Collector, Device
from tests.support.http_collector import HttpCollector
from tests.support.link_thread import LinkThread
from tests.support.mosquitto import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.command_line import CommandResult
    from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

MARKER = "SECRET-42"
MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        "alarm": {
            "route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream",
            "priority": 0,
            "timeToLiveSecs": 600,
        },
        "bulk": {"route": "FROM /messages/* WHERE kind = 'bulk' INTO $upstream", "priority": 7},
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


class Hub:
    """A daemon, and its command line."""

    def __init__(self, daemon: Daemon, manifest: dict[str, Any] = MANIFEST) -> None:
        self.daemon = daemon
        (daemon.folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
        daemon.start()

    def run(self, *arguments: str, code: int = 0) -> CommandResult:
        """Run a command off a terminal and check its exit code."""
        done = self.daemon.edgehub(*arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done

    def answer(self, answer: str, *arguments: str) -> int:
        """Run a command on a terminal, answer its question, and give its exit code."""
        person, terminal = os.openpty()
        try:
            os.write(person, f"{answer}\n".encode())
            return subprocess.run(
                [sys.executable, "-m", "edgehub", "--config", str(self.daemon.config), *arguments],
                cwd=self.daemon.folder,
                stdin=terminal,
                stdout=subprocess.DEVNULL,
                stderr=terminal,
                timeout=15,
                check=False,
            ).returncode
        finally:
            os.close(person)
            os.close(terminal)

    def ask(self, *arguments: str) -> Any:
        """Run a command with --json."""
        return json.loads(self.run(*arguments, "--json").stdout)

    def depths(self) -> dict[str, int]:
        """Return rows by queue."""
        return {each["id"]: each["depth"] for each in self.ask("queue", "list")["queues"]}


@pytest.fixture
def offline(make_daemon: Callable[..., Daemon]) -> Hub:
    """Return a hub whose upstream never answers, with 3 alarms and 20 bulk messages."""
    hub = Hub(make_daemon(upstream=1, top='manifest = "manifest.json"'))
    device = Device("press-1", hub.daemon.mqtt_port)
    for kind, count in (("bulk", 20), ("alarm", 3)):
        for number in range(count):
            body = f"{MARKER} {kind} {number}".encode()
            topic = f"devices/press-1/messages/events/%24.mid=own-{kind}-{number}&kind={kind}"
            device.publish_raw(topic, body).wait_for_publish(10)
    device.close()
    return hub


def _sent(hub: Hub) -> int:
    return sum(queue["sent"] for queue in hub.ask("queue", "list")["queues"])


def test_why_says_where_a_message_waits_and_what_stands_before_it(offline: Hub) -> None:
    """By the hub's id and by the sender's: queue, time to live, cause, what goes first."""
    row = offline.ask("queue", "peek", "upstream_Pri7", "--limit", "5")["rows"][4]
    by_hub = offline.ask("why", row["id"])
    (copy,) = by_hub["copies"]
    assert (by_hub["state"], by_hub["by"], copy["queue"]) == ("waiting", "hub", "upstream_Pri7")
    assert (copy["routes"], copy["ttl_s"], copy["ttl_from"]) == (["bulk"], 7200, "global")
    assert copy["before"]["rows"] == 4
    assert [(each["queue"], each["rows"]) for each in copy["before"]["better"]] == [
        ("upstream_Pri0", 3)
    ]
    assert copy["leaves"] == {"state": "offline", "seconds": None}
    assert copy["waited"]["offline_s"] == pytest.approx(copy["age_s"], abs=2)
    assert [event["event"] for event in by_hub["journal"]["events"]] == ["enqueued"]
    by_sender = offline.ask("why", "own-bulk-4")
    assert (by_sender["by"], by_sender["message"]) == ("sender", row["id"])
    (alarm,) = offline.ask("why", "own-alarm-1")["copies"]
    offline.daemon.wait_until(lambda: offline.ask("why", alarm["id"])["copies"][0]["age_s"] > 1, 5)
    text = offline.run("why", "own-alarm-1").stdout
    assert "in upstream_Pri0: waiting" in text
    assert "time to live: 600 s (route)" in text
    assert re.search(r"waiting for [\d.]+ s so far: [\d.]+ s without link", text)
    assert "leaves once its endpoint is connected again" in text
    assert MARKER not in text
    unknown = offline.run("why", "nobody-knows", code=1)
    assert "unknown" in unknown.stdout
    assert "a sender's own id is found only while it waits" in unknown.stderr
    assert by_hub["journal"]["events"][0]["ttl_from"] == "global"
    assert ", time to live 600 s (route)" in text


@pytest.mark.parametrize("command", [("status",), ("why", "absent"), ("queue", "list")])
def test_a_question_to_a_running_hub_imports_no_settings(
    offline: Hub, command: tuple[str, ...]
) -> None:
    """They take longer than the answer; the hub runs with the same file, so they have no faults."""
    arguments = ["-m", "edgehub", "--config", str(offline.daemon.config), *command, "--json"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert json.loads(done.stdout)
    assert "edgehub.cli.daemon" in imported
    assert imported.isdisjoint({"edgehub.settings", "pydantic"})


def test_a_hub_without_elections_says_why_it_lists_no_devices(offline: Hub) -> None:
    """A device has sent, and no list: the reason stands in its place, and in the JSON."""
    assert "there is no election" in offline.run("device", "list").stdout
    answer = offline.ask("device", "list")
    assert (answer["devices"], answer["coordinator"]) == ([], "off")


def test_peek_shows_no_payload_unless_asked_for(offline: Hub) -> None:
    """O-03: neither bodies nor values in the answer or the log; --payload shows them."""
    shown = offline.run("queue", "peek", "upstream_Pri0", "--json").stdout
    assert MARKER not in shown
    assert "'alarm'" not in shown
    row = json.loads(shown)["rows"][0]
    assert (row["properties"], row["body_bytes"]) == (["kind"], len(f"{MARKER} alarm 0"))
    assert "press-1" in offline.run("queue", "peek", "upstream_Pri0").stdout
    page = offline.ask("queue", "peek", "upstream_Pri7", "--after", str(row["offset"]))
    assert page["rows"] == []
    payload = offline.ask("queue", "peek", "upstream_Pri0", "--payload")["rows"][0]
    assert (payload["body"], payload["properties"]["kind"]) == (f"{MARKER} alarm 0", "alarm")
    assert f"{MARKER} alarm 2" in offline.run("queue", "peek", "upstream_Pri0", "--payload").stdout
    offline.daemon.stop()
    assert MARKER not in json.dumps(offline.daemon.log)


def test_peek_of_an_endpoint_shows_its_queues_best_priority_first(offline: Hub) -> None:
    """The endpoint's name stands for all its queues; an offset needs one of them."""
    page = offline.ask("queue", "peek", "upstream", "--limit", "5")
    assert [row["queue"] for row in page["rows"]] == ["upstream_Pri0"] * 3 + ["upstream_Pri7"] * 2
    assert (page["queue"], page["depth"]) == ("upstream", 23)
    table = offline.run("queue", "peek", "upstream", "--limit", "1000").stdout.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["upstream_Pri0"] * 3 + ["upstream_Pri7"] * 20
    last = str(page["rows"][-1]["offset"])
    refused = offline.run("queue", "peek", "upstream", "--after", last, code=1).stderr
    assert "upstream has upstream_Pri0, upstream_Pri7: name a `priority`" in refused
    on = offline.ask("queue", "peek", "upstream", "--priority", "7", "--after", last)
    assert on["rows"][0]["offset"] == int(last) + 1
    none = offline.run("queue", "peek", "upstream", "--priority", "default", code=1).stderr
    assert "upstream has no queue of that priority" in none
    unknown = offline.run("queue", "peek", "lab", code=1).stderr
    assert "there is no queue 'lab' (there are: upstream_Pri0, upstream_Pri7)" in unknown


def test_a_purge_of_the_default_queue_leaves_the_endpoint_s_others(offline: Hub) -> None:
    """`upstream` is one queue to what removes or moves rows, and what stays is named."""
    refused = offline.run("queue", "purge", "upstream", "--yes", code=1).stderr
    assert "there is no queue 'upstream' (there are: upstream_Pri0, upstream_Pri7)" in refused
    offline.run("queue", "move", "upstream_Pri0", "upstream", "--yes")
    done = offline.run("queue", "purge", "upstream", "--yes")
    assert done.stdout == "removed 3 messages from upstream\n"
    assert done.stderr == "not touched: 20 messages in upstream_Pri7\n"
    assert offline.depths() == {"upstream": 0, "upstream_Pri0": 0, "upstream_Pri7": 20}


def test_a_purge_asks_first_and_stands_in_the_journal(offline: Hub) -> None:
    """Off a terminal it needs --yes; --dry-run changes nothing; what is gone is `purged`."""
    row = offline.ask("queue", "peek", "upstream_Pri7")["rows"][0]
    started = offline.ask("status")["started"][:16].replace("T", " ")
    for command in (("status",), ("queue", "list")):
        last = offline.run(*command).stdout.splitlines()[-1]
        assert last == f"counts since {started} UTC, when the hub started"
    assert "--yes" in offline.run("queue", "purge", "upstream_Pri7", code=2).stderr
    assert offline.ask("queue", "purge", "upstream_Pri7", "--dry-run")["rows"] == 20
    assert offline.depths()["upstream_Pri7"] == 20
    assert offline.answer("n", "queue", "purge", "upstream_Pri7") == 1
    assert offline.depths()["upstream_Pri7"] == 20
    assert offline.run("queue", "purge", "upstream_Pri7", "--yes").stdout == (
        "removed 20 messages from upstream_Pri7\n"
    )
    assert offline.depths() == {"upstream_Pri0": 3, "upstream_Pri7": 0}
    assert offline.ask("why", row["id"])["state"] == "purged"
    assert "there is no queue 'upstream_Pri8'" in (
        offline.run("queue", "purge", "upstream_Pri8", "--yes", code=1).stderr
    )


def test_a_move_beyond_a_limit_is_said_before_and_after(offline: Hub) -> None:
    """Rows join a full queue by command; whoever gives it knows what the next message costs."""
    config = offline.daemon.config
    config.write_text(config.read_text("utf-8") + "[store]\nqueue_rows_max = 20\n", "utf-8")
    offline.run("config", "reload")
    move = ("queue", "move", "upstream_Pri0", "upstream_Pri7")
    assert "beyond its limit of queue rows?" in offline.run(*move, code=2).stderr
    assert offline.ask(*move, "--dry-run")["exceeds"] == ["queue rows"]
    assert offline.ask("queue", "move", "upstream_Pri0", "upstream_Pri1", "--yes")["exceeds"] == []
    told = offline.run("queue", "move", "upstream_Pri1", "upstream_Pri7", "--yes").stderr
    assert "beyond the limit of queue rows of upstream_Pri7" in told
    assert offline.depths()["upstream_Pri7"] == 23


def test_orphaned_rows_move_to_an_endpoint_that_is_served(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Rows of an endpoint that no settings name any more show as orphaned, and leave by command."""
    lab = {"route": 'FROM /messages/* INTO Endpoint("lab")', "priority": 3}
    away = '[endpoints.lab]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = 1\n'
    daemon = make_daemon(upstream=broker.port, top='manifest = "manifest.json"', extra=away)
    hub = Hub(daemon, {**MANIFEST, "routes": {"lab": lab}})
    device = Device("press-1", daemon.mqtt_port)
    for number in range(5):
        device.publish("bulk", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()
    daemon.stop()
    daemon.config.write_text(daemon.config.read_text("utf-8").replace(away, ""), "utf-8")
    hub = Hub(daemon)
    assert "orphaned" in hub.run("queue", "list").stdout
    row = hub.ask("queue", "peek", "lab_Pri3")["rows"][0]
    assert hub.ask("why", row["id"])["copies"][0]["orphaned"] is True
    assert "leaves by itself never: name its endpoint again" in hub.run("why", row["id"]).stdout
    refused = hub.run("queue", "move", "lab_Pri3", "away_Pri3", "--yes", code=1)
    assert "no pump serves endpoint 'away'" in refused.stderr
    collector = Collector(broker.port)
    assert hub.ask("queue", "move", "lab_Pri3", "upstream_Pri3", "--yes") == {
        "queue": "lab_Pri3",
        "to": "upstream_Pri3",
        "rows": 5,
        "bytes": row["bytes"] * 5,
        "in_flight": 0,
        "exceeds": [],
        "dry_run": False,
    }
    assert collector.wait_for({("press-1", "bulk", number) for number in range(5)}, 15) == set()
    assert [arrival.number for arrival in collector.arrivals] == list(range(5))
    assert collector.arrivals[0].message_id == row["id"]
    collector.close()
    daemon.wait_until(lambda: sum(hub.depths().values()) == 0, 10)
    known = hub.ask("why", row["id"])
    assert known["state"] == "delivered"
    assert [event["event"] for event in known["journal"]["events"]] == ["enqueued", "moved", "sent"]


def _shows_the_queue(hub: Hub, letter: dict[str, Any]) -> None:
    number = str(letter["dead_letter"])
    listing = hub.run("queue", "dead", "list", "--queue", "web_Pri2").stdout
    assert letter["id"] in listing
    assert listing.splitlines()[1].split()[:2] == [number, "web_Pri2"]
    shown = hub.run("queue", "dead", "show", number).stdout
    assert "queue: web_Pri2\n" in shown
    assert "priority" not in shown


def test_a_dead_letter_is_listed_shown_and_released_by_hand(
    make_daemon: Callable[..., Daemon],
) -> None:
    """P-11: after its attempts it stands in nobody's way; `requeue` gives it another try."""
    refused = {"id 9"}
    with HttpCollector(lambda arrival: 503 if arrival.body in refused else 200) as peer:
        url = f"http://127.0.0.1:{peer.port}/"
        extra = f'[endpoints.web]\ntype = "http"\nurl = "{url}"\nmax_attempts = 2\n'
        route = {"route": 'FROM /messages/* INTO Endpoint("web")', "priority": 2}
        daemon = make_daemon(top='manifest = "manifest.json"', extra=extra)
        hub = Hub(daemon, {**MANIFEST, "routes": {"web": route}})
        device = Device("press-1", daemon.mqtt_port)
        topic = "devices/press-1/messages/events/kind=bulk"
        for number in range(8, 12):
            device.publish_raw(topic, f"id {number}".encode()).wait_for_publish(10)
        device.close()
        daemon.wait_until(lambda: sum(hub.depths().values()) == 0, 20)
        assert {arrival.body for arrival in peer.accepted} == {"id 8", "id 10", "id 11"}
        listed = hub.ask("queue", "dead", "list")
        (letter,) = listed["dead_letters"]
        assert (listed["total"], listed["next"], letter["attempts"]) == (1, None, 2)
        number = str(letter["dead_letter"])
        _shows_the_queue(hub, letter)
        assert "no dead letters" in hub.run("queue", "dead", "list", "--queue", "other").stdout
        assert "body" not in hub.ask("queue", "dead", "show", number)
        assert hub.ask("queue", "dead", "show", number, "--payload")["body"] == "id 9"
        assert hub.ask("why", letter["id"])["state"] == "dead letter"
        assert "want numbers" in hub.run("queue", "dead", "requeue", "--yes", code=2).stderr
        assert (
            "requeue 1 dead letter?" in hub.run("queue", "dead", "requeue", number, code=2).stderr
        )
        refused.clear()
        dry = hub.ask("queue", "dead", "requeue", "--all", "--dry-run")
        assert dry == {"rows": 1, "missing": 0, "dry_run": True}
        assert hub.ask("queue", "dead", "requeue", number, "--yes")["rows"] == 1
        assert peer.wait_for(lambda: any(a.body == "id 9" for a in peer.accepted), 15)
        daemon.wait_until(lambda: sum(hub.depths().values()) == 0, 10)
        missing = hub.run("queue", "dead", "purge", number, "--yes", code=1)
        assert "1 of them was not there" in missing.stderr
        told = hub.ask("why", letter["id"])["journal"]["events"]
        events = [event["event"] for event in told]
        assert events == ["enqueued", "retried", "dead_lettered", "requeued", "sent"]
        sources = [event["ttl_from"] for event in told]
        assert sources == ["global"] * 3 + ["global, longer by its time as a dead letter"] * 2


def test_why_says_what_speaks_against_a_message_over_which_the_broker_closes(
    tmp_path: Path, make_daemon: Callable[..., Daemon]
) -> None:
    """Closes that were counted, over a crash; that it is kept out; and its end as a dead letter."""
    with Mosquitto(tmp_path / "small", "max_packet_size 1000") as broker:
        older = 'mqtt = "3.1.1"'  # a broker of version 5 says its limit before anything is sent
        top = 'manifest = "manifest.json"'
        hub = Hub(make_daemon(upstream=broker.port, top=top, extra=older, rate=4))
        device = Device("press-1", hub.daemon.mqtt_port)
        topic = "devices/press-1/messages/events/%24.mid=large&kind=bulk"
        device.publish_raw(topic, bytes(5000)).wait_for_publish(10)

        def suspected() -> dict[str, Any]:
            (copy,) = hub.daemon.call("why", id="large")["copies"]
            return copy["suspected"] or {"closes": 0, "next": None}

        hub.daemon.wait_until(lambda: suspected()["closes"] >= 1, 10)
        assert (suspected()["next"], suspected()["cleared"]) == ("in_company", False)
        text = hub.run("why", "large").stdout
        assert "suspected: the peer has refused it, or closed the connection" in text
        assert "next: sent again with others; after" in text
        device.close()
        hub.daemon.wait_until(lambda: suspected()["next"] == "kept_out", 15)
        found = suspected()
        assert (found["closes"], found["alone"], found["closes_left"]) == (3, 3, None)
        hub.daemon.kill()
        hub.daemon.start()
        # What was counted before the crash is there, and one close more is enough.
        hub.daemon.wait_until(lambda: suspected()["next"] == "kept_out", 15)
        assert suspected()["closes"] == 4
        assert hub.ask("queue", "peek", "upstream_Pri7")["rows"][0]["state"] == "kept_out"
        (queue,) = hub.ask("queue", "list")["queues"]
        assert (queue["state"], queue["in_flight"], queue["kept_out"]) == ("delayed", 1, 1)
        hub.daemon.wait_until(
            lambda: hub.daemon.call("status")["endpoints"][0]["mqtt_version"] == "3.1.1", 10
        )
        hub.daemon.wait_until(lambda: suspected()["quiet_left_s"] is not None, 10)
        assert 15 < suspected()["quiet_left_s"] <= 30
        text = hub.run("why", "large").stdout
        assert "in upstream_Pri7: kept_out" in text
        assert "with it first of those in flight, 4 times, 4 times with nothing else" in text
        assert "next: not sent for a minute, or until a connection without it confirms" in text
        device = Device("press-1", hub.daemon.mqtt_port)
        device.publish("bulk", 1)
        hub.daemon.wait_until(lambda: sum(hub.depths().values()) == 0, 15)
        device.close()
        (letter,) = hub.ask("why", "large")["dead_letters"]
        assert (letter["kind"], letter["reason"]) == ("rejected", closed_text("press-1", 5))
        assert hub.daemon.stop() == 0


def test_each_queue_says_when_it_was_served_and_when_it_will_be_empty(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Time since the last service, age against time to live, and the forecast of the drain."""
    with LinkThread(broker.port) as link:
        daemon = make_daemon(upstream=link.port, top='manifest = "manifest.json"')
        hub = Hub(daemon)
        device = Device("press-1", daemon.mqtt_port)
        device.publish("alarm", 0)
        daemon.wait_until(lambda: _sent(hub) == 1, 10)
        (queue,) = hub.ask("queue", "list")["queues"]
        assert queue["unserved_s"] < 10
        assert queue["drain"] == {"state": "empty", "seconds": 0.0}
        link.cut()
        # Until the hub has noticed, a row that it hands over counts as served.
        daemon.wait_until(lambda: daemon.call("status")["endpoints"][0]["state"] != "up", 10)
        device.publish("bulk", 1)
        assert device.wait_in_flight_below(1, 10)
        daemon.wait_until(
            lambda: hub.ask("queue", "list")["queues"][1]["oldest_ttl_s"] == 7200,
            15,
        )
        bulk = hub.ask("queue", "list")["queues"][1]
        assert bulk["unserved_s"] is None
        assert bulk["oldest_expires_in_s"] == pytest.approx(7200, abs=60)
        assert bulk["drain"]["state"] == "offline"
        assert "offline" in hub.run("queue", "list").stdout
        device.close()
