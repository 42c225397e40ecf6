"""Entities and mapper in the daemon: what is acknowledged on te/ topics goes to the cloud."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
import pytest

from edgehub.cli.main import main
from tests.support.local_load import publish_all
from tests.support.mosquitto import find
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {
        name: {
            "route": f'FROM /messages/modules/c8y-mapper/outputs/{name} INTO Endpoint("cloud")',
            "priority": priority,
        }
        for name, priority in {
            "inventory": 5,
            "measurements": 7,
            "alarms": 0,
            "events": 6,
            "twin": 4,
            "operations": 1,
            "health": 3,
        }.items()
    },
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}
SETTINGS = """
[mapper]
enabled = true
external_id = "gw"
alarm_sync_ms = 0
[endpoints.cloud]
type = "file"
path = "cloud.jsonl"
"""


@pytest.fixture
def make_gateway(make_daemon: Callable[..., Daemon]) -> Callable[..., Daemon]:
    """Return a function that makes a daemon whose cloud is a file."""

    def make(entities: str = "", settings: str = SETTINGS) -> Daemon:
        daemon = make_daemon(top='manifest = "manifest.json"', extra=settings + entities)
        (daemon.folder / "manifest.json").write_text(json.dumps(MANIFEST), "utf-8")
        return daemon

    return make


def publish(daemon: Daemon, topic: str, payload: Any, *, retain: bool = False) -> None:
    """Publish with QoS 1 and wait for the PUBACK."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    publish_all(daemon.mqtt_port, [(topic, body)], client_id="sender", retain=retain)


def received(daemon: Daemon) -> list[tuple[str, str]]:
    """Return topics and payloads that the cloud has, in their order."""
    path = daemon.folder / "cloud.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return [(record["properties"]["topic"], _text(record["body"])) for record in records]


def _text(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def wait_for(daemon: Daemon, count: int) -> list[tuple[str, str]]:
    """Wait until the cloud has so many rows; give the last ones first come."""
    daemon.wait_until(lambda: daemon.call("status") and len(received(daemon)) >= count, 15)
    return received(daemon)


def values(rows: list[tuple[str, str]]) -> list[Any]:
    """Return the values of the measurements among some rows."""
    found = [json.loads(text) for topic, text in rows if topic.startswith("c8y/measurement")]
    return [document["t"]["t"]["value"] for document in found]


def test_early_data_waits_for_its_registration(make_gateway: Callable[..., Daemon]) -> None:
    """E-01: seven measurements, then the registration with an id: all under it, in order."""
    daemon = make_gateway().start()
    start = wait_for(daemon, 2)
    for value in range(7):
        publish(daemon, "te/device/p9///m/temp", {"t": value})
    assert daemon.call("entity pending")["messages"] == 7
    publish(daemon, "te/device/p9//", {"@type": "child-device", "@id": "plc-9"}, retain=True)
    rows = wait_for(daemon, len(start) + 8)[len(start) :]
    assert rows[0] == ("c8y/s/us", "101,plc-9,plc-9,thin-edge.io-child,false")
    assert values(rows) == list(range(7))
    assert all('"plc-9"' in text for _, text in rows[1:])
    assert daemon.call("entity pending")["messages"] == 0


def test_a_registered_child_is_known_at_once_after_a_restart(
    make_gateway: Callable[..., Daemon],
) -> None:
    """E-03: registered without the retain flag; data right after the start goes under its id."""
    daemon = make_gateway().start()
    publish(daemon, "te/device/c//", {"@type": "child-device", "@id": "C"})
    wait_for(daemon, 3)
    # What is confirmed and not deleted yet would come a second time.
    daemon.wait_until(lambda: daemon.call("status")["store"]["rows"] == 0, 10)
    daemon.kill()
    (daemon.folder / "cloud.jsonl").unlink()
    daemon.start()
    acknowledged, _ = publish_all(daemon.mqtt_port, [("te/device/c///m/", b'{"t":1}')])
    assert acknowledged == 1
    rows = wait_for(daemon, 3)
    assert values(rows) == [1]
    assert not [text for _, text in rows if text.startswith("101")]


@pytest.mark.alone
def test_500_retained_registrations_and_twins_come_again_within_5_s(
    make_gateway: Callable[..., Daemon],
) -> None:
    """E-05: in any order, again live, and handed in at a restart: one creation, nothing is lost."""
    daemon = make_gateway().start()
    messages = [
        message
        for number in range(250)
        for message in (
            (f"te/device/d{number}//", b'{"@type":"child-device"}'),
            (f"te/device/d{number}///twin/n", b"%d" % number),
        )
    ]
    random.Random(5).shuffle(messages)
    publish_all(daemon.mqtt_port, messages, retain=True)
    wait_for(daemon, 502)
    assert daemon.stop() == 0
    began = time.monotonic()
    daemon.start()
    publish_all(daemon.mqtt_port, messages[:20], retain=True)
    publish(daemon, "te/device/d7///m/", {"t": 7})
    rows = wait_for(daemon, 505)
    assert time.monotonic() - began < 5
    assert len(rows) == 505
    assert len({text for _, text in rows if text.startswith("101")}) == 250
    assert len({topic for topic, _ in rows if "inventory" in topic}) == 250


def test_an_operation_becomes_a_command_and_its_states_go_back(
    make_gateway: Callable[..., Daemon],
) -> None:
    """Delivered twice it is carried out once, also over a kill; its end clears the command."""
    daemon = make_gateway().start()
    publish(daemon, "te/device/c//", {"@type": "child-device", "@id": "C"}, retain=True)
    operation = {"id": "17", "externalSource": {"externalId": "C"}, "c8y_Restart": {}}
    publish(daemon, "c8y/devicecontrol/notifications", operation)
    command = "te/device/c///cmd/restart/c8y-mapper-17"
    assert retained(daemon, command, 1) == ['{"status":"init"}']
    daemon.kill()
    daemon.start()
    publish(daemon, "c8y/devicecontrol/notifications", operation)
    publish(daemon, command, {"status": "executing"}, retain=True)
    publish(daemon, "c8y/devicecontrol/notifications", operation)
    assert retained(daemon, command, 1) == ['{"status": "executing"}']
    publish(daemon, command, {"status": "successful"}, retain=True)
    rows = wait_for(daemon, 7)
    assert [row for row in rows if row[0] == "c8y/s/us/C"] == [
        ("c8y/s/us/C", "504,17"),
        ("c8y/s/us/C", "506,17"),
    ]
    assert retained(daemon, command, 0) == []


def retained(daemon: Daemon, topic: str, count: int) -> list[str]:
    """Return the retained message of a topic; `count` are expected."""
    command = [find("mosquitto_sub"), "-p", str(daemon.mqtt_port), "-q", "1", "-i", "looker"]
    done = subprocess.run(
        [*command, "-t", topic, "--retained-only", "-W", "5" if count else "1", "-C", "1"],
        check=False,
        timeout=10,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def test_advice_where_automatic_and_explicit_registration_contradict(
    make_gateway: Callable[..., Daemon],
) -> None:
    """Told on te/errors and in the status, with what to do about it."""
    daemon = make_gateway("[entities]\nauto_register = true\n").start()
    with subprocess.Popen(
        [find("mosquitto_sub"), "-p", str(daemon.mqtt_port), "-t", "te/errors", "-C", "1"],
        stdout=subprocess.PIPE,
        text=True,
    ) as errors:
        daemon.wait_until(lambda: daemon.call("status")["mqtt"]["local"]["subscriptions"] == 1, 5)
        publish(daemon, "te/device/p///m/", {"t": 1})
        publish(daemon, "te/device/p//", {"@type": "child-device", "@id": "mine"}, retain=True)
        told = errors.communicate(timeout=10)[0]
    assert "auto_register = false" in told
    assert any("auto_register = false" in text for text in daemon.call("status")["warnings"])


def test_the_command_line_registers_shows_and_removes(
    make_gateway: Callable[..., Daemon],
) -> None:
    """What a person does without a client of their own."""
    daemon = make_gateway().start()

    def run(*arguments: str, code: int = 0) -> str:
        done = daemon.edgehub("entity", *arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    publish(daemon, "te/device/y///m/", {"t": 1})
    assert "x//: pending, waits for device/p//" in run(
        "register", "device/x", "--parent", "device/p"
    )
    debt = json.loads(run("pending", "--json"))
    debts = {each["@topic-id"]: each for each in debt["entities"]}
    assert debts["device/x//"]["waits_for"] == "device/p//"
    assert debts["device/y//"]["clients"] == ["sender"]
    assert "2 messages held for 2 entities" in run("pending")
    assert "device/p//: registered, P at the cloud" in run("register", "device/p", "--id", "P")
    assert "unchanged" in run("register", "device/p", "--id", "P")
    assert "stays one" in run("register", "device/p", "--type", "service", code=1)
    listed = json.loads(run("list", "--root", "device/p", "--json"))
    assert [each["@topic-id"] for each in listed["entities"]] == ["device/p//", "device/x//"]
    assert "below: device/x//" in run("show", "device/p")
    assert run("remove", "device/p", "--yes").splitlines() == [
        "removed device/p//",
        "removed device/x//",
    ]
    assert "is not registered" in run("show", "device/p", code=1)
    assert "nope/// is not registered" in run("list", "--parent", "nope", code=1)
    assert "more than four segments" in run("register", "a/b/c/d/e", code=1)
    assert "a device is device/pump3//" in run("register", "pump3", code=1)
    assert "1 message held for 1 entity, " in run("pending")
    assert "cannot be deregistered" in run("remove", "device/main", "--yes", code=1)
    daemon.kill()
    daemon.start()
    assert [each["@topic-id"] for each in daemon.call("entity list")["entities"]] == [
        "device/main//"
    ]


def test_without_mapper_topics_are_local_only(make_daemon: Callable[..., Daemon]) -> None:
    """A hub that names no Cumulocity endpoint keeps no entities and says how to have them."""
    daemon = make_daemon().start()
    publish(daemon, "te/device/c//", {"@type": "child-device"}, retain=True)
    assert daemon.call("status")["entities"] == {"enabled": False}
    assert daemon.call("queue list")["queues"] == []
    with pytest.raises(Exception, match=r"enabled = true in \[mapper\]"):
        daemon.call("entity list")


@pytest.mark.scaled
@pytest.mark.timeout(300 if SOAK else 60)
def test_a_rogue_client_takes_bounded_memory_and_disk(make_gateway: Callable[..., Daemon]) -> None:
    """Ever new entities at 2 000 messages a second: bounds hold, and others lose nothing."""
    seconds = 60 if SOAK else 8
    daemon = make_gateway().start()
    publish(daemon, "te/device/quiet///m/", {"t": 1})
    body = b'{"v":1,"note":"' + b"x" * 200 + b'"}'

    def rogue(count: int, start: int, rate: float | None) -> None:
        messages = ((f"te/device/r{start + n}///m/", body) for n in range(count))
        publish_all(daemon.mqtt_port, messages, client_id="rogue", rate=rate)

    rogue(10_000, 0, None)
    daemon.call("status")
    before = rss_mb(daemon), disk_mb(daemon)
    rogue(2_000 * seconds, 10_000, 2_000 if SOAK else None)
    debt = daemon.call("entity pending")
    assert debt["bytes"] <= 2**20 + 1000
    assert debt["evicted_total"] >= 2_000 * seconds
    assert rss_mb(daemon) - before[0] < 10
    assert disk_mb(daemon) - before[1] < 20
    publish(daemon, "te/device/quiet//", {"@type": "child-device"}, retain=True)
    assert values(wait_for(daemon, 4)) == [1]


def rss_mb(daemon: Daemon) -> float:
    """Return the resident memory."""
    lines = Path(f"/proc/{daemon.call('status')['pid']}/status").read_text("ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def disk_mb(daemon: Daemon) -> float:
    """Return the size of the database with its log."""
    files = (daemon.folder / "data").glob("queue.db*")
    return sum(file.stat().st_size for file in files) / 2**20


def test_entities_over_http(make_gateway: Callable[..., Daemon]) -> None:
    """The directory over the API: registration, change, removal, held messages, refusals."""
    port = free_port()
    web = f'[web]\nport = {port}\ntoken_file = "tokens"\n'
    daemon = make_gateway(web)
    token = daemon.folder / "tokens"
    made = daemon.edgehub("token", "add", "me", "--role", "write", "--file", str(token))
    assert made.returncode == 0
    daemon.start()
    daemon.wait_event("web.listening")

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        link.request(method, f"/api/v1/{path}", json.dumps(body) if body else None, headers)
        answer = link.getresponse()
        document = json.loads(answer.read())
        link.close()
        return answer.status, document

    child = {"@type": "child-device", "@id": "P"}
    assert ask("PUT", "entities/device/p", child)[1]["outcome"] == "registered"
    assert ask("PUT", "entities/device/p//", child)[1]["outcome"] == "unchanged"
    status, refused = ask("PUT", "entities/device/p//", {"@type": "service"})
    assert (status, refused["code"]) == (409, "refused")
    status, waiting = ask("PUT", "entities/device/q//", {**child, "@id": "Q", "@parent": "z"})
    assert (status, waiting["outcome"], waiting["waits_for"]) == (200, "pending", "z///")
    assert ask("GET", "entity/pending")[1]["messages"] == 1
    assert ask("PATCH", "entities/device/p//", {"@health": "device/p/service/s"})[0] == 200
    assert ask("PATCH", "entities/device/p//", {"name": "x"})[0] == 422
    assert ask("GET", "entities/device/p//")[1]["@health"] == "device/p/service/s"
    assert ask("GET", "entities/device/none")[0] == 404
    assert ask("GET", "entities?parent=device/none")[0] == 404
    for method, body in (
        ("GET", None),
        ("PUT", child),
        ("PATCH", {"@parent": "x"}),
        ("DELETE", None),
    ):
        assert ask(method, "entities/a/b/c/d/e", body)[0] == 422
    listed = ask("GET", "entities?parent=device/main//")[1]["entities"]
    assert [each["@id"] for each in listed] == ["P"]
    assert ask("DELETE", "entities/device/p")[1] == {"removed": ["device/p//"]}
    assert ask("DELETE", "entities/device/p")[0] == 404
    assert ask("DELETE", "entities/device/main//")[0] == 409


def test_the_platform_is_spoken_to_both_ways(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """An endpoint of type cumulocity brings the mapper along; an operation is answered."""
    cloud = (
        f'[upstream]\ntype = "cumulocity"\nhost = "127.0.0.1"\nport = {broker.port}\ntls = false\n'
    )
    daemon = make_daemon(extra=f'{cloud}username = "t1/gw"\npassword_file = "secret"\n')
    (daemon.folder / "secret").write_text("x", "utf-8")
    with heard(broker.port) as seen:
        daemon.start()
        daemon.wait_until(lambda: _is_up(daemon), 10)
        publish(daemon, "te/device/c///m/", {"t": 1})
        publish(daemon, "te/device/c//", {"@type": "child-device", "@id": "C"}, retain=True)
        daemon.wait_until(lambda: not daemon.call("status")["entities"]["creations_under_way"], 10)
        operation = {"id": "5", "externalSource": {"externalId": "C"}, "c8y_Restart": {}}
        subprocess.run(
            [
                find("mosquitto_pub"),
                "-p",
                str(broker.port),
                "-q",
                "1",
                "-t",
                "devicecontrol/notifications",
                "-m",
                json.dumps(operation),
            ],
            check=True,
            timeout=10,
        )
        command = "te/device/c///cmd/restart/c8y-mapper-5"
        daemon.wait_until(lambda: retained(daemon, command, 1) == ['{"status":"init"}'], 15)
        publish(daemon, command, {"status": "executing"}, retain=True)
        daemon.wait_until(lambda: len(seen) >= 6, 15)
    seen.remove(f"devicecontrol/notifications {json.dumps(operation)}")
    # The connection asks for pending operations, as each later one does.
    assert seen.count("s/us 500") == 1
    rows = [line for line in seen if line != "s/us 500"]
    assert rows[:2] == ["s/us 114", "s/us 101,C,C,thin-edge.io-child,false"]
    assert rows[2].startswith("measurement/measurements/create {")
    assert rows[3] == "s/us/C 504,5"


@contextlib.contextmanager
def heard(port: int) -> Iterator[list[str]]:
    """Collect topic and payload of all that a broker gets from now on."""
    lines: list[str] = []
    subscribed = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_message = lambda _client, _data, message: lines.append(
        f"{message.topic} {message.payload.decode()}"
    )
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        client.subscribe("#", 1)
        assert subscribed.wait(10)
        yield lines
    finally:
        client.disconnect()
        client.loop_stop()


def _is_up(daemon: Daemon) -> bool:
    return all(each["state"] == "up" for each in daemon.call("status")["endpoints"])


HOSTILE = "a\x1b[31mred\x07\u202etxt\x9b2J\nnew line"


def test_nothing_that_clients_wrote_steers_the_terminal(
    make_gateway: Callable[..., Daemon], capsys: pytest.CaptureFixture[str]
) -> None:
    """Names, types and twin values of registrations are escaped in all that people read."""
    daemon = make_gateway().start()
    entity = {"@type": "child-device", "name": HOSTILE, "type": HOSTILE}
    publish(daemon, "te/device/a//", entity, retain=True)
    publish(daemon, "te/device/a///twin/x", {HOSTILE: HOSTILE}, retain=True)
    publish(daemon, "te/device/b//", {"@type": "child-device", "@parent": "device/c//"})
    publish(daemon, "te/device/d///a/x", {"text": HOSTILE})
    shown = ""
    for command in (
        ["entity", "list"],
        ["entity", "show", "device/a//"],
        ["entity", "register", "device/a//", "--name", HOSTILE],
        ["entity", "pending"],
        ["entity", "show", f"device/{HOSTILE}//"],
        ["route", "explain", json.dumps({"id": HOSTILE, "properties": {HOSTILE: HOSTILE}})],
        ["queue", "peek", "--payload", "cloud_Pri5"],
        ["status"],
        ["session", "list"],
        ["device", "show", HOSTILE],
        ["why", HOSTILE],
        ["entity", "remove", "device/a//", "--yes"],
    ):
        with pytest.raises(SystemExit):
            main(["--config", str(daemon.config), *command])
        captured = capsys.readouterr()
        shown += captured.out + captured.err
    assert "a\\x1b[31mred\\x07\\u202etxt" in shown
    assert [each for each in shown if not each.isprintable() and each != "\n"] == []
    assert [line for line in shown.splitlines() if line.startswith("new line")] == []
