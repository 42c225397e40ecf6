"""Local clients of the daemon: what it has acknowledged outlives it, and routes take part."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.mosquitto import find

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon

pytestmark = pytest.mark.e2e

MANIFEST = {
    "schemaVersion": "1.1",
    "routes": {"tele": 'FROM /mqtt/site/+/tele/# INTO Endpoint("archive")'},
    "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
}


def publish(daemon: Daemon, topic: str, body: str, *options: str) -> None:
    """Publish with QoS 1 and wait for the PUBACK."""
    command = [find("mosquitto_pub"), "-p", str(daemon.mqtt_port), "-q", "1", "-i", "sender"]
    subprocess.run([*command, "-t", topic, "-m", body, *options], check=True, timeout=10)


def receive(daemon: Daemon, client_id: str, topic: str, count: int, *options: str) -> list[str]:
    """Subscribe with QoS 1 and a stored session until so many messages are there."""
    command = [find("mosquitto_sub"), "-p", str(daemon.mqtt_port), "-q", "1", "-c", "-W", "5"]
    command += ["-i", client_id, "-t", topic, "-F", "%t %p", *options]
    command += ["-C", str(count)] if count else ["-E"]
    done = subprocess.run(command, check=False, timeout=10, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def space(daemon: Daemon) -> dict[str, int]:
    """Return the figures of the space as `edgehub status --json` shows them."""
    figures: dict[str, int] = daemon.call("status")["mqtt"]["local"]
    return figures


@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_queued_and_retained_messages_outlive_the_daemon(
    end: str, make_daemon: Callable[..., Daemon]
) -> None:
    """M-14: what waits for a client that is away, and the last values, are there after the end."""
    daemon = make_daemon().start()
    assert receive(daemon, "c1", "te/cmd/#", 0) == []
    for number in range(5):
        publish(daemon, "te/cmd/1", str(number))
    publish(daemon, "te/state", "old", "-r")
    publish(daemon, "te/state", "new", "-r", "-V", "5", "-D", "publish", "content-type", "t")
    publish(daemon, "te/other", "x", "-r")
    assert space(daemon)["queued"] == 5
    if end == "stop":
        assert daemon.stop() == 0
    else:
        daemon.kill()
    daemon.start()
    figures = space(daemon)
    assert (figures["queued"], figures["retained"], figures["queues"]) == (5, 2, 1)
    assert receive(daemon, "c1", "te/cmd/#", 5) == [f"te/cmd/1 {number}" for number in range(5)]
    assert receive(daemon, "late", "te/state", 1, "-V", "5") == ["te/state new"]


def test_a_clear_is_stored(make_daemon: Callable[..., Daemon]) -> None:
    """M-12, at home: a topic that was cleared stays so after a crash."""
    daemon = make_daemon().start()
    publish(daemon, "te/door", "open", "-r")
    command = [find("mosquitto_pub"), "-p", str(daemon.mqtt_port), "-q", "1", "-i", "sender"]
    subprocess.run([*command, "-t", "te/door", "-n", "-r"], check=True, timeout=10)
    daemon.kill()
    daemon.start()
    assert space(daemon)["retained"] == 0


def test_a_route_takes_local_topics(make_daemon: Callable[..., Daemon]) -> None:
    """M-05: `#` includes the parent level in a route too; a reload takes other filters over."""
    daemon = make_daemon(
        top='manifest = "manifest.json"',
        extra='local_topics = ["site/#"]\n[endpoints.archive]\ntype = "file"\npath = "out.jsonl"\n',
    )
    manifest = daemon.folder / "manifest.json"
    manifest.write_text(json.dumps(MANIFEST), "utf-8")
    daemon.start()
    for topic in ("site/d1/tele", "site/d1/tele/a/b", "site/d1/telemetry", "te/x"):
        publish(daemon, topic, topic)
    out = daemon.folder / "out.jsonl"
    daemon.wait_until(lambda: out.is_file() and len(out.read_text().splitlines()) == 2, 10)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(record["device"], record["body"]) for record in records] == [
        ("sender", "site/d1/tele"),
        ("sender", "site/d1/tele/a/b"),
    ]
    changed = json.dumps(MANIFEST).replace("site/+/tele/#", "te/#")
    manifest.write_text(changed, "utf-8")
    assert daemon.call("config reload")["outcome"] == "applied"
    publish(daemon, "site/d1/tele", "no more")
    publish(daemon, "te/x", "yes")
    daemon.wait_until(lambda: len(out.read_text().splitlines()) == 3, 10)
    assert json.loads(out.read_text().splitlines()[-1])["body"] == "yes"
