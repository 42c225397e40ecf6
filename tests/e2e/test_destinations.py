"""Where messages go: several endpoints, modules, devices behind the hub, a peer that is slow."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.devices import Collector, Device
from tests.support.link_thread import LinkThread
from tests.support.mqtt_peer import mqtt_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Daemon
    from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.e2e


def _manifest(daemon: Daemon, routes: dict[str, object], ttl_s: int = 7200) -> None:
    document = {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": ttl_s},
    }
    (daemon.folder / "m.json").write_text(json.dumps(document), "utf-8")


def _client(kind: str, port: int, topic: str, qos: str = "1") -> list[str]:
    return [f"mosquitto_{kind}", "-p", str(port), "-q", qos, "-t", topic]


def _depths(daemon: Daemon) -> dict[str, int]:
    return {queue["id"]: queue["depth"] for queue in daemon.call("queue list")["queues"]}


def test_one_copy_per_endpoint_at_the_best_priority(make_daemon: Callable[..., Daemon]) -> None:
    """P-02: two routes to one endpoint make one row at the better one; another endpoint its own."""
    daemon = make_daemon(
        top='manifest = "m.json"', extra='[endpoints.lab]\ntype = "file"\npath = "lab.jsonl"\n'
    )
    _manifest(
        daemon,
        {
            "a": {"route": "FROM /messages/* INTO $upstream", "priority": 3, "timeToLiveSecs": 100},
            "b": {"route": "FROM /messages/* INTO $upstream", "priority": 0, "timeToLiveSecs": 50},
            "c": {"route": 'FROM /messages/* INTO Endpoint("lab")', "priority": 5},
        },
    )
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    device.publish("x", 1)
    assert device.wait_in_flight_below(1, 10)
    daemon.wait_until(lambda: _depths(daemon) == {"upstream_Pri0": 1, "lab_Pri5": 0}, 10)
    assert [
        queue["sent"] for queue in daemon.call("queue list")["queues"] if queue["depth"] == 0
    ] == [1]
    (row,) = daemon.call("queue peek", queue="upstream_Pri0")["rows"]
    assert (row["ttl_s"], row["routes"][0]) == (50, "b")
    record = json.loads((daemon.folder / "lab.jsonl").read_text("utf-8"))
    assert record["device"] == "press-1"
    assert record["properties"] == {"kind": "x"}
    assert record["body"].startswith("press-1|x|1|")
    device.close()
    assert daemon.stop() == 0


def test_two_endpoints_share_one_broker(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Neither ends the other's session: each has a client id of its own by default."""
    site = (
        f'[endpoints.site]\ntype = "mqtt"\nhost = "127.0.0.1"\nport = {broker.port}\n'
        'topic = "site/{device}"\n'
    )
    daemon = make_daemon(upstream=broker.port, top='manifest = "m.json"', extra=site)
    _manifest(
        daemon,
        {
            "up": "FROM /messages/* INTO $upstream",
            "site": 'FROM /messages/* INTO Endpoint("site")',
        },
    )
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(200):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    daemon.wait_until(lambda: set(_depths(daemon).values()) == {0}, 10)
    device.close()
    assert daemon.stop() == 0
    events = [line["event"] for line in daemon.log]
    assert events.count("endpoint.link_up") == 2
    assert "endpoint.link_down" not in events


def test_a_module_gets_its_input_and_the_row_leaves_after_its_puback(
    make_daemon: Callable[..., Daemon],
) -> None:
    """Rows for a module wait until it connects and subscribes; then they are its."""
    daemon = make_daemon(top='hub_id = "gw"\nmanifest = "m.json"')
    _manifest(
        daemon,
        {"m": 'FROM /messages/* INTO BrokeredEndpoint("/modules/filter/inputs/raw")'},
    )
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(20):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    assert _depths(daemon) == {"modules/filter/inputs/raw": 20}
    topic = "devices/gw/modules/filter/inputs/raw/#"
    done = subprocess.run(
        [*_client("sub", daemon.mqtt_port, topic), "-i", "gw/filter", "-C", "20", "-W", "10"],
        capture_output=True,
        text=True,
        check=True,
        timeout=15,
    )
    numbers = [int(line.split("|")[2]) for line in done.stdout.splitlines()]
    assert numbers == list(range(20))
    device.close()
    assert daemon.stop() == 0


def test_a_device_gets_what_upstream_sends_to_it(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """Device-bound messages are relayed to the device while it listens."""
    daemon = make_daemon(upstream=broker.port).start()
    daemon.wait_until(lambda: daemon.call("status")["endpoints"][0]["state"] == "up", 10)
    bound = "devices/press-1/messages/devicebound/"
    listening = subprocess.Popen(
        [*_client("sub", daemon.mqtt_port, bound + "#"), "-i", "press-1", "-C", "1", "-W", "15"],
        stdout=subprocess.PIPE,
    )
    try:
        # The broker keeps nothing for a subscription that is not there yet: send until one arrives.
        deadline = time.monotonic() + 12
        while listening.poll() is None and time.monotonic() < deadline:
            subprocess.run(
                [*_client("pub", broker.port, bound + "a=1"), "-m", "stop"],
                check=True,
                timeout=5,
            )
        out, _ = listening.communicate(timeout=5)
    finally:
        listening.kill()
    assert out == b"stop\n"
    assert daemon.stop() == 0


def test_qos_0_is_stored_unless_it_is_switched_off(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """L-14: the default stores both; off drops QoS 0 while offline alone, and counts it."""
    events = "devices/press-1/messages/events/"
    off = "store_qos0 = false\n"
    for extra, upstream, stored, dropped in (
        ("", None, 20, 0),
        (off, None, 10, 10),
        (off, broker.port, 20, 0),
    ):
        daemon = make_daemon(upstream=upstream)
        text = daemon.config.read_text("utf-8")
        daemon.config.write_text(text.replace("[mqtt]\n", f"[mqtt]\n{extra}"), "utf-8")
        daemon.start()
        if upstream:
            daemon.wait_event("endpoint.link_up")
        for qos in ("0", "1"):
            subprocess.run(
                [*_client("pub", daemon.mqtt_port, events, qos), "-i", "press-1", "-l"],
                input=b"x\n" * 10,
                check=True,
                timeout=10,
            )
        daemon.wait_until(
            lambda d=daemon, n=stored: (
                sum(q["enqueued"] for q in d.call("queue list")["queues"]) == n
            ),
            10,
        )
        counted = daemon.call("status")["mqtt"]["dropped"]["qos0_offline"]
        assert counted == dropped
        assert daemon.stop() == 0


@pytest.mark.timeout(60)
def test_a_slow_link_never_makes_a_device_wait(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """L-11: with a round trip of 4 s each PUBACK still comes at once."""
    with LinkThread(broker.port, bit_s=64_000, delay_s=2.0) as link:
        daemon = make_daemon(upstream=link.port).start()
        device = Device("press-1", daemon.mqtt_port)
        waits = []
        for number in range(200):
            began = time.monotonic()
            device.publish("x", number)
            assert device.wait_in_flight_below(1, 10)
            waits.append(time.monotonic() - began)
        device.close()
        daemon.kill()
    assert sorted(waits)[190] < 0.05


@pytest.mark.timeout(60)
async def test_no_more_than_the_peer_allows_is_unconfirmed(
    make_daemon: Callable[..., Daemon],
) -> None:
    """L-07: a peer that takes 10 without confirming never has an 11th; one connection."""
    async with mqtt_peer() as peer:
        peer.acknowledge = False
        daemon = make_daemon(upstream=peer.port, extra="in_flight_max = 10\n")
        await asyncio.to_thread(_with_a_backlog, daemon, 200)
        while len(peer.published) < 200:
            await peer.until(lambda: bool(peer.unconfirmed))
            peer.confirm()
        peer.confirm()
        empty = partial(daemon.wait_until, lambda: set(_depths(daemon).values()) == {0}, 10)
        await asyncio.to_thread(empty)
        assert peer.unconfirmed_most == 10
        assert peer.connects == 1
        assert await asyncio.to_thread(daemon.stop) == 0


def _with_a_backlog(daemon: Daemon, rows: int) -> None:
    daemon.start()
    device = Device("press-1", daemon.mqtt_port)
    for number in range(rows):
        device.publish("x", number)
    assert device.wait_in_flight_below(1, 10)
    device.close()


def test_a_hub_with_one_route_keeps_what_it_cannot_send_and_says_by_what_rules(
    broker: Mosquitto, make_daemon: Callable[..., Daemon]
) -> None:
    """L-06: 25 messages wait for the link; one command shows store, caps and times to live."""
    with LinkThread(broker.port) as link:
        link.cut()
        daemon = make_daemon(upstream=link.port, top='manifest = "m.json"')
        _manifest(daemon, {"all": "FROM /messages/* INTO $upstream"})
        _with_a_backlog(daemon, 25)
        assert _depths(daemon) == {"upstream": 25}
        collector = Collector(broker.port)
        link.restore()
        assert collector.wait_for({("press-1", "x", number) for number in range(25)}, 20) == set()
        collector.close()
        shown = daemon.edgehub("config", "show", "--running", "--json")
        document = json.loads(shown.stdout)
        assert document["running"] is True
        derived, settings = document["derived"], document["settings"]
        assert (daemon.folder / derived["database"]).is_file()
        assert (derived["global_ttl_s"], derived["routes"]) == (7200, 1)
        assert derived["manifest"].endswith("m.json")
        assert settings["store.bytes_max"]["value"] == 1 << 30
        assert settings["manifest"]["origin"] == "file"
        assert daemon.stop() == 0
