"""The routing table of daemons: one with its manifest's file, and several that share a Redis."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
import pytest

from edgehub.cli.refusal import CommandError
from tests.support.devices import Device
from tests.support.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Daemon

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

ALARM = {"route": "FROM /messages/* WHERE kind = 'alarm' INTO $upstream", "priority": 0}
STATUS = {"route": "FROM /messages/* WHERE kind = 'status' INTO $upstream", "priority": 4}


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """Run a Redis that keeps its data over a restart."""
    with RedisServer(tmp_path, persistent=True) as server:
        yield server


def shared(server: RedisServer) -> str:
    """Return the settings of a hub that shares its table."""
    return f'[redis]\nurl = "{server.url}"\n[routing_table]\nstorage = "redis"\n'


def manifest(daemon: Daemon, **routes: Any) -> None:
    """Write the manifest of a hub."""
    document = {
        "schemaVersion": "1.1",
        "routes": routes,
        "storeAndForwardConfiguration": {"timeToLiveSecs": 7200},
    }
    (daemon.folder / "manifest.json").write_text(json.dumps(document), "utf-8")


def ids(daemon: Daemon) -> dict[str, str]:
    """Return id and state of every route."""
    return {route["id"]: route["state"] for route in daemon.call("route list")["routes"]}


def refusal(hub: Daemon, command: str, **arguments: Any) -> dict[str, Any]:
    """Ask for what is refused; gives what is wrong."""
    with pytest.raises(CommandError) as refused:
        hub.call(command, **arguments)
    return refused.value.problem


def waiting(daemon: Daemon) -> dict[str, int]:
    """Return the depth of each queue that is not empty."""
    return {each["id"]: each["depth"] for each in daemon.call("status")["queues"] if each["depth"]}


def send(daemon: Daemon, *kinds: str) -> None:
    """Have a device send a message of each kind, and wait until all are acknowledged."""
    device = Device("d1", daemon.mqtt_port)
    for number, kind in enumerate(kinds):
        device.publish(kind, number)
    assert device.wait_in_flight_below(1, 10)
    device.close()


def test_routes_in_memory_run_until_the_hub_stops(make_daemon: Callable[..., Daemon]) -> None:
    """In addition to those of the manifest, which come back with its file."""
    daemon = make_daemon(
        extra='[routing_table]\nstorage = "memory"\n', top='manifest = "manifest.json"'
    )
    manifest(daemon, m1=ALARM["route"])
    daemon.start()
    daemon.call("route put", body=ALARM, id="r1")
    assert ids(daemon) == {"m1": "running", "r1": "running"}
    assert table(daemon)["storage"] == "memory"
    assert daemon.call("route drift")["total"] == 0
    assert daemon.stop() == 0
    daemon.start()
    assert ids(daemon) == {"m1": "running"}
    assert daemon.stop() == 0


def test_routes_of_api_and_manifest_live_side_by_side(make_daemon: Callable[..., Daemon]) -> None:
    """A route of the API routes at once, outlives restarts, and is no matter of a reload."""
    hub = make_daemon(top='manifest = "manifest.json"')
    manifest(hub, status=STATUS)
    hub.start()
    try:
        assert ids(hub) == {"status": "running"}
        assert refusal(hub, "route put", body=ALARM, id="status")["code"] == "owned_by_manifest"
        assert refusal(hub, "route remove", id="status")["code"] == "owned_by_manifest"
        added = hub.call("route put", body=ALARM, id="alarm")
        assert (added["created"], added["route"]["state"]) == (True, "running")
        send(hub, "alarm", "status")
        assert waiting(hub) == {"upstream_Pri0": 1, "upstream_Pri4": 1}
        manifest(hub, status=STATUS, other=STATUS)
        assert hub.call("config reload")["outcome"] == "applied"
        assert set(ids(hub)) == {"alarm", "status", "other"}
        manifest(hub, alarm=STATUS)
        refused = hub.call("config reload")
        assert refused["outcome"] == "refused"
        assert refused["faults"][0]["route"] == "alarm"
        assert set(ids(hub)) == {"alarm", "status", "other"}
        manifest(hub)
        assert hub.call("config reload")["outcome"] == "applied"
        assert hub.stop() == 0
        hub.start()
        assert ids(hub) == {"alarm": "running"}
        shown = hub.call("route show", id="alarm")
        other = shown["revision"] + 1
        stale = refusal(hub, "route put", body=STATUS, id="alarm", if_match=[other])
        assert stale["code"] == "other_revision"
        assert hub.call("route disable", id="alarm")["route"]["state"] == "disabled"
        send(hub, "alarm")
        assert hub.call("status")["unrouted"] == 1
        bad = refusal(hub, "route add", body="FROM /messages/* WHERE kind == 1 INTO $upstream")
        assert bad["code"] == "invalid_route"
        assert (bad["faults"][0]["line"], bad["faults"][0]["column"]) == (1, 30)
    finally:
        hub.close()


def test_endpoint_of_a_module_comes_and_goes_with_its_route(
    make_daemon: Callable[..., Daemon],
) -> None:
    """A module's input is served while a route sends there, and let go of when nothing waits."""
    hub = make_daemon().start()
    body = 'FROM /messages/* INTO BrokeredEndpoint("/modules/filter/inputs/raw")'
    hub.call("route put", body=body, id="to-module")
    served = {each["id"] for each in hub.call("status")["endpoints"]}
    assert "modules/filter/inputs/raw" in served
    assert hub.call("status")["routing_table"]["endpoints"] == 2
    hub.call("route remove", id="to-module")

    def gone() -> bool:
        return all(
            each["id"] != "modules/filter/inputs/raw" for each in hub.call("status")["endpoints"]
        )

    hub.wait_until(gone, 10)
    assert hub.stop() == 0


def test_hubs_share_one_table(make_daemon: Callable[..., Daemon], redis: RedisServer) -> None:
    """What one hub stores runs on all before its answer; who was away catches up."""
    top = 'manifest = "manifest.json"'
    hubs = [make_daemon(extra=shared(redis), top=top, rate=4) for _ in range(3)]
    for hub in hubs:
        manifest(hub, status=STATUS)
        hub.start()
    one, two, three = hubs
    assert all(ids(hub) == {"status": "running"} for hub in hubs)
    written = one.call("route put", body=ALARM, id="alarm", wait=True)
    assert written["applied"]["result"] == "complete"
    assert len(written["applied"]["by"]) == 3
    assert all(ids(hub) == {"alarm": "running", "status": "running"} for hub in hubs)
    send(two, "alarm")
    assert waiting(two) == {"upstream_Pri0": 1}
    assert statistics.median(change(two, number) for number in range(20)) < 0.1
    three.kill()
    one.call("route remove", id="alarm")
    two.call("route put", body=STATUS, id="second")
    three.start()
    assert ids(three) == {"second": "running", "status": "running"}
    outage(redis, one, three)
    for hub in hubs:
        hub.wait_until(lambda hub=hub: not table(hub)["stale"], 10)
    assert two.call("route put", body=ALARM, id="third", wait=True)["applied"]["result"] == (
        "complete"
    )
    assert all("third" in ids(hub) for hub in hubs)
    assert two.call("route drift")["total"] == 0
    file_counts_when_applied(one, two)
    assert [hub.stop() for hub in hubs] == [0, 0, 0]


def table(daemon: Daemon) -> dict[str, Any]:
    """Return the figures of a hub's table."""
    figures: dict[str, Any] = daemon.call("status")["routing_table"]
    return figures


def change(daemon: Daemon, number: int) -> float:
    """Change a route, and give the seconds until all hubs have applied it."""
    start = time.monotonic()
    body = {**ALARM, "timeToLiveSecs": number + 1}
    answer = daemon.call("route put", body=body, id="alarm", wait=True)
    assert answer["applied"]["result"] == "complete"
    return time.monotonic() - start


def outage(redis: RedisServer, goes_on: Daemon, restarts: Daemon) -> None:
    """Without the storage hubs go on with the last table, also after a restart."""
    redis.stop()
    before = ids(goes_on)
    refused = refusal(goes_on, "route put", body=ALARM, id="third")
    assert refused["code"] == "storage_unavailable"
    assert ids(goes_on) == before
    assert restarts.stop() == 0
    restarts.start()
    assert ids(restarts) == before
    assert table(restarts)["stale"] is True
    redis.start()


def file_counts_when_applied(one: Daemon, two: Daemon) -> None:
    """A manifest's file says nothing to a shared table until somebody applies it."""
    manifest(one, status=ALARM)
    assert one.call("config reload")["outcome"] == "applied"
    assert table(one)["manifest_difference"] is True
    assert two.call("route show", id="status")["priority"] == 4
    text, revision = (one.folder / "manifest.json").read_text("utf-8"), table(one)["revision"]
    late = refusal(one, "manifest apply", text=text, file="m", expected_revision=revision - 1)
    assert late["code"] == "conflict"
    applied = one.call("manifest apply", text=text, file="m", expected_revision=revision, wait=True)
    assert (applied["updated"], applied["added"], applied["removed"]) == (["status"], [], [])
    assert two.call("route show", id="status")["priority"] == 0
    assert table(one)["manifest_difference"] is False


def test_no_message_is_lost_or_doubled_by_changes_of_the_table(
    make_daemon: Callable[..., Daemon],
) -> None:
    """While routes change all the time, each acknowledged message goes to the endpoint once."""
    hub = make_daemon(
        top='manifest = "manifest.json"', extra='[endpoints.out]\ntype = "file"\npath = "out"\n'
    )
    manifest(hub)
    hub.start()
    body = 'FROM /messages/* INTO Endpoint("out")'
    hub.call("route put", body=body, id="all")
    device = Device("d1", hub.mqtt_port)
    for number in range(3000):
        device.publish("load", number)
        if number % 50 == 0:
            hub.call("route put", body={"route": body, "priority": number // 50 % 3}, id="all")
            other = {"route": "FROM /messages/* WHERE x = 'y' INTO $upstream", "priority": 1}
            hub.call("route put", body={**other, "timeToLiveSecs": number + 1}, id=f"r{number % 7}")
    assert device.wait_in_flight_below(1, 20)
    device.close()
    hub.wait_until(lambda: not waiting(hub), 20)
    assert hub.stop() == 0
    lines = [
        json.loads(line)
        for file in (hub.folder / "out").parent.glob("out*")
        for line in (file.read_text("utf-8").splitlines() if file.is_file() else ())
    ]
    lines += [
        json.loads(line)
        for file in (hub.folder / "out").glob("*.jsonl")
        for line in file.read_text("utf-8").splitlines()
    ]
    numbers = [int(line["body"].split("|")[2]) for line in lines]
    assert sorted(numbers) == list(range(3000))


def test_tenants_share_a_hub_without_seeing_one_another(
    make_daemon: Callable[..., Daemon],
) -> None:
    """A route takes the messages of its tenant's identities, up to their allowance."""
    hub = make_daemon(
        top='manifest = "manifest.json"',
        extra='[tenants."acme/one"]\nroutes_max = 1\n[tenants."acme/two"]\nevent_rate_max = 1\n',
    )
    text = hub.config.read_text("utf-8")
    rights = '[mqtt]\nanonymous = false\nidentities_file = "identities"'
    hub.config.write_text(text.replace("[mqtt]", rights), "utf-8")
    (hub.folder / "password").write_text("secret")
    for name, tenant in (("d1", "acme/one"), ("d2", "acme/two"), ("d3", "")):
        options = ["--file", "identities", "--password-file", "password", "--tenant", tenant]
        assert hub.edgehub("identity", "add", name, *options).returncode == 0
    manifest(hub)
    hub.start()
    for priority, tenant in enumerate(("acme/one", "acme/two", None)):
        body = {"route": "FROM /messages/* INTO $upstream", "priority": priority}
        assert hub.call("route put", body=body, id="r", tenant=tenant)["created"]
    assert (
        refusal(hub, "route put", body=ALARM, id="s", tenant="acme/one")["code"] == "quota_exceeded"
    )
    assert refusal(hub, "route list", tenant="acme/three")["code"] == "tenant_not_found"
    for name in ("d1", "d2", "d3"):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        client.username_pw_set(name, "secret")
        client.connect("127.0.0.1", hub.mqtt_port)
        client.loop_start()
        topic = f"devices/{name}/messages/events/"
        for _ in range(3):
            client.publish(topic, b"x", qos=1).wait_for_publish(10)
        client.disconnect()
        client.loop_stop()
    # The second tenant may send one at once and one more each second.
    depths = waiting(hub)
    assert (depths["upstream_Pri0"], depths["upstream_Pri2"]) == (3, 3)
    assert 1 <= depths["upstream_Pri1"] < 3
    refused = table(hub)["tenants"]["acme/two"]["refused_total"]
    assert refused == 3 - depths["upstream_Pri1"]
    assert hub.stop() == 0
