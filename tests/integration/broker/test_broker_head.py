"""The broker head: a hub joins a real Mosquitto."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from structlog.testing import capture_logs

from edgehub.mqtt.batch import BATCH_TYPE
from edgehub.mqtt.client import Client
from tests.support.broker_hub import (
    bodies_of,
    broker_hub,
    publish_all,
    route,
    sender,
    write_manifest,
)
from tests.support.certificates import Authority
from tests.support.mosquitto import Mosquitto
from tests.support.subscriber import subscriber

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto that keeps nothing over a restart."""
    with Mosquitto(tmp_path / "broker") as running:
        yield running


async def test_messages_of_routes_are_stored_with_what_was_said_of_them(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """Source, sender by the topic, user properties, content type, the retain flag."""
    devices = ["site/{device}/+/#", "line/+/{device}/{module}"]
    async with (
        broker_hub(tmp_path / "hub", broker.port, broker={"devices": devices}) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        said = Properties(PacketTypes.PUBLISH)
        said.UserProperty = [("kind", "alarm"), ("$.mid", "m-1")]
        said.ContentType = "application/json"
        await client.publish("site/press-1/x/y", b"{}", qos=1, retain=True, properties=said)
        await client.publish("line/4/oven/fan", b"b", qos=1)
        await client.publish("site/no blank/x", b"c", qos=1)
        await hub.until(lambda: hub.broker["acknowledged_total"] == 3)
        first, second, third = await hub.rows()
    assert (first["source"], first["device"]) == ("/mqtt/site/press-1/x/y", "press-1")
    assert first["properties"] == {"kind": "alarm", "mqtt-retain": "true"}
    assert first["system_properties"]["messageId"] == "m-1"
    assert first["system_properties"]["contentType"] == "application/json"
    assert (second["device"], second["module"]) == ("oven", "fan")
    # No id that could stand for a device: the hub itself speaks for it.
    assert (third["device"], third["module"]) == ("gw", None)


async def test_a_topic_filter_includes_the_parent_level(tmp_path: Path, broker: Mosquitto) -> None:
    """M-04, M-05: `site/+/tele/#` takes `site/d1/tele` and what is below, no other word."""
    async with (
        broker_hub(tmp_path / "hub", broker.port, routes={"tele": route("site/+/tele/#")}) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("site/+/tele/#")
        for topic in ("site/d1/tele", "site/d1/tele/a/b", "site/d1/telemetry", "site/d1/tele/"):
            await client.publish(topic, topic, qos=1)
        await hub.until(lambda: hub.depth() == 3)
        rows = await hub.rows()
    assert bodies_of(rows) == ["site/d1/tele", "site/d1/tele/a/b", "site/d1/tele/"]


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_routes_one_of_which_covers_the_other_bring_one_copy(
    tmp_path: Path, broker: Mosquitto, version: str
) -> None:
    """M-03: only the wider filter is subscribed to, and both routes see the message."""
    routes = {"a": route("a/#", priority=1), "b": route("a/b", priority=2)}
    async with (
        broker_hub(
            tmp_path / "hub", broker.port, routes=routes, broker={"version": version}
        ) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("a/#")
        await client.publish("a/b", b"x", qos=1)
        await hub.until(lambda: hub.broker["acknowledged_total"] == 1)
        (row,) = await hub.rows("upstream_Pri1")
        assert row["routes"] == ["a", "b"]
        assert hub.broker["received_total"] == 1


async def test_overlapping_filters_route_a_message_once(tmp_path: Path, broker: Mosquitto) -> None:
    """M-03: Mosquitto sends a copy for each; all are acknowledged and one is stored."""
    routes = {"a": route("a/+/c"), "b": route("a/b/#")}
    async with (
        broker_hub(tmp_path / "hub", broker.port, routes=routes) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("a/+/c", "a/b/#")
        for topic in ("a/b/c", "a/x/c", "a/b/x"):
            await client.publish(topic, topic, qos=1)
        await hub.until(lambda: hub.broker["acknowledged_total"] == 4)
        assert bodies_of(await hub.rows()) == ["a/b/c", "a/x/c", "a/b/x"]
        assert hub.broker["overlapping_total"] == 1


async def test_an_unrouted_message_is_acknowledged_and_counted(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """What a condition leaves out does not stay at the broker."""
    routes = {"a": "FROM /mqtt/# WHERE kind = 'alarm' INTO $upstream"}
    async with (
        broker_hub(tmp_path / "hub", broker.port, routes=routes) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        await client.publish("x", b"", qos=1)
        await hub.until(lambda: hub.broker["acknowledged_total"] == 1)
        assert (hub.depth(), hub.hub.status()["unrouted"]) == (0, 1)


async def test_subscriptions_follow_the_routes(tmp_path: Path, broker: Mosquitto) -> None:
    """A reload subscribes and unsubscribes; what went while the hub was down goes too."""
    folder = tmp_path / "hub"
    async with broker_hub(
        folder, broker.port, routes={"a": route("a/#"), "b": route("b/#")}
    ) as hub:
        await hub.until_subscribed("a/#", "b/#")
        write_manifest(folder, {"b": route("b/#"), "c": route("c/+")})
        assert (await hub.call("config reload"))["outcome"] == "applied"
        await hub.until_subscribed("b/#", "c/+")
    async with (
        broker_hub(folder, broker.port, routes={"d": route("d")}) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("d")
        assert hub.broker["session_kept"]
        for topic in ("a/1", "b/1", "c/1", "d"):
            await client.publish(topic, topic, qos=1)
        await hub.until(lambda: hub.depth() == 1)
        assert bodies_of(await hub.rows()) == ["d"]
        assert hub.broker["received_total"] == 1


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_what_comes_while_the_hub_is_away_waits_at_the_broker(
    tmp_path: Path, broker: Mosquitto, version: str
) -> None:
    """M-14: the session outlives the hub, with its subscriptions; retained values come once."""
    folder = tmp_path / "hub"
    async with sender(broker.port) as client:
        await client.publish("state", b"kept", qos=1, retain=True)
        async with broker_hub(folder, broker.port, broker={"version": version}) as hub:
            await hub.until(lambda: hub.depth() == 1)
        await publish_all(client, "while/away", [b"%d" % number for number in range(50)])
        async with broker_hub(folder, broker.port, broker={"version": version}) as hub:
            await hub.until(lambda: hub.depth() == 51)
            assert hub.broker["session_kept"]
            found = bodies_of(await hub.rows())
    assert found == ["kept", *(str(number) for number in range(50))]


async def test_a_session_that_is_not_wanted_ends_with_the_connection(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """M-14: `session_expiry_s = 0` keeps nothing at the broker."""
    folder = tmp_path / "hub"
    settings = {"session_expiry_s": 0}
    async with broker_hub(folder, broker.port, broker=settings) as hub:
        await hub.until_subscribed("#")
    async with sender(broker.port) as client:
        await client.publish("x", b"", qos=1)
        async with broker_hub(folder, broker.port, broker=settings) as hub:
            await hub.until_subscribed("#")
            assert not hub.broker["session_kept"]
            await client.publish("x", b"now", qos=1)
            await hub.until(lambda: hub.depth() == 1)
            assert bodies_of(await hub.rows()) == ["now"]


@pytest.mark.parametrize("persistence", [True, False])
async def test_a_broker_that_restarts(tmp_path: Path, *, persistence: bool) -> None:
    """With its session kept or gone: the hub comes back and is subscribed; what it knew stays."""
    lines = [f"persistence_location {tmp_path}/", "autosave_interval 1", "autosave_on_changes true"]
    lines = [*lines, "persistence true"] if persistence else []
    broker = Mosquitto(tmp_path / "broker", *lines)
    try:
        await asyncio.to_thread(broker.start)
        async with broker_hub(tmp_path / "hub", broker.port) as hub:
            await hub.until_subscribed("#")
            async with sender(broker.port) as client:
                await publish_all(client, "a", [b"before"])
            await hub.until(lambda: hub.depth() == 1)
            await asyncio.to_thread(broker.stop)
            await hub.until(lambda: hub.broker["state"] == "down")
            await asyncio.to_thread(broker.start)
            await hub.call("config reload")
            await hub.until_subscribed("#")
            assert hub.broker["session_kept"] is persistence
            async with sender(broker.port) as client:
                await publish_all(client, "a", [b"after"])
            await hub.until(lambda: hub.depth() == 2)
            assert bodies_of(await hub.rows()) == ["before", "after"]
    finally:
        broker.stop()


async def test_a_broker_that_lost_power_is_subscribed_to_again(tmp_path: Path) -> None:
    """It keeps the session as its last snapshot has it, without the subscription made since."""
    lines = ["persistence true", f"persistence_location {tmp_path}/", "autosave_interval 0"]
    broker = Mosquitto(tmp_path / "broker", *lines)
    snapshot = tmp_path / "mosquitto.db"
    try:
        await asyncio.to_thread(broker.start)
        async with broker_hub(tmp_path / "hub", broker.port, routes={"a": route("a")}) as hub:
            await hub.until_subscribed("a")
            broker.snapshot()
            await hub.until(snapshot.exists)
            write_manifest(tmp_path / "hub", {"a": route("a"), "b": route("b")})
            await hub.call("config reload")
            await hub.until_subscribed("a", "b")
            await asyncio.to_thread(broker.stop)
            await hub.until(lambda: hub.broker["state"] == "down")
            await asyncio.to_thread(broker.start)
            await hub.call("config reload")
            await hub.until_subscribed("a", "b")
            assert hub.broker["session_kept"]
            async with sender(broker.port) as client:
                await client.publish("b", b"after", qos=1)
            await hub.until(lambda: hub.depth() == 1)
    finally:
        broker.stop()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return another Mosquitto, which is not started yet."""
    peer = Mosquitto(tmp_path / "cloud")
    try:
        yield peer
    finally:
        peer.stop()


def to_cloud(cloud: Mosquitto) -> dict[str, Any]:
    """Make the settings of an upstream."""
    return {"type": "mqtt", "host": "127.0.0.1", "port": cloud.port, "topic": "up"}


async def test_a_limit_holds_messages_back_and_none_is_lost(
    tmp_path: Path, broker: Mosquitto, cloud: Mosquitto
) -> None:
    """Refused: nothing is acknowledged, and what is held goes on in order once there is room."""
    async with (
        broker_hub(
            tmp_path / "hub",
            broker.port,
            broker={"receive_maximum": 20},
            store={"rows_max": 30, "overflow": "reject_new"},
            upstream=to_cloud(cloud),
        ) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        await publish_all(client, "a", [b"%d" % number for number in range(200)])
        # Mosquitto 2.0.11 hands out more than the Receive Maximum after a PUBACK.
        await hub.until(lambda: hub.broker["waiting"] >= 20)
        assert hub.broker["holding"]
        assert (hub.depth(), hub.broker["acknowledged_total"]) == (30, 30)
        assert any("limit" in text for text in hub.hub.status()["warnings"])
        await asyncio.to_thread(cloud.start)
        async with subscriber(cloud.port) as taker:
            await hub.call("config reload")
            await taker.wait(200)
            assert taker.bodies == [b"%d" % number for number in range(200)]
            await hub.until(lambda: not hub.broker["holding"])
            assert hub.broker["connects_total"] == 1


async def test_messages_beyond_the_bound_stay_at_the_broker(
    tmp_path: Path, broker: Mosquitto, cloud: Mosquitto
) -> None:
    """More bytes than may be held: left unacknowledged, and fetched again once there is room."""
    async with (
        broker_hub(
            tmp_path / "hub",
            broker.port,
            broker={"backlog_bytes_max": 2**20},
            store={"rows_max": 10, "overflow": "reject_new"},
            upstream=to_cloud(cloud),
        ) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        bodies = [b"%02d" % number + bytes(100_000) for number in range(40)]
        await publish_all(client, "a", bodies)
        await hub.until(lambda: hub.broker["put_off_total"] > 0)
        assert hub.broker["waiting_bytes"] <= 2**20
        await asyncio.to_thread(cloud.start)
        async with subscriber(cloud.port) as taker:
            await hub.call("config reload")
            await hub.until(lambda: hub.broker["acknowledged_total"] == 40)
            await hub.until(lambda: hub.depth() == 0)
            await taker.wait(40)
            assert list(dict.fromkeys(taker.bodies)) == bodies
        assert hub.broker["connects_total"] > 1


async def test_a_message_that_is_too_large_stops_no_other(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """Read, dropped, counted, told to the journal, acknowledged."""
    async with (
        broker_hub(tmp_path / "hub", broker.port, broker={"message_bytes_max": 1000}) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        await publish_all(client, "a", [b"1", bytes(1001), bytes(500_000), b"2" * 1000])
        await hub.until(lambda: hub.broker["acknowledged_total"] == 4)
        assert [len(body) for body in bodies_of(await hub.rows())] == [1, 1000]
        assert hub.broker["dropped"] == {"too_large": 2}
    segments = (tmp_path / "hub" / "data" / "journal").rglob("*.jsonl.gz*")
    refused = [line for line in _lines(segments) if line.get("event") == "refused"]
    assert {(line["device"], line["reason"]) for line in refused} == {("gw", "too_large")}


async def test_a_message_that_calls_itself_a_batch_is_dropped(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """A parent would take it apart and believe the senders in it; the journal has it once."""
    said = Properties(PacketTypes.PUBLISH)
    said.ContentType = BATCH_TYPE
    async with (
        broker_hub(tmp_path / "hub", broker.port) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        await client.publish("a", b"forged", qos=1, properties=said)
        await client.publish("a", b"plain", qos=1)
        await hub.until(lambda: hub.broker["acknowledged_total"] == 2)
        assert bodies_of(await hub.rows()) == ["plain"]
        assert hub.broker["dropped"] == {"reserved": 1}
    segments = (tmp_path / "hub" / "data" / "journal").rglob("*.jsonl.gz*")
    refused = [line for line in _lines(segments) if line.get("event") == "refused"]
    assert [(line["reason"], line["count"]) for line in refused] == [("reserved", 1)]


async def test_an_uplink_into_the_joined_broker_is_warned_of(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """At the start, in the status, and again as routes change."""
    upstream = {"type": "mqtt", "host": "localhost", "port": broker.port, "topic": "up/{device}"}
    with capture_logs() as logs:
        async with broker_hub(
            tmp_path, broker.port, upstream=upstream, routes={"all": route("#")}
        ) as hub:
            (warning,) = hub.hub.status()["warnings"]
            assert warning.startswith("upstream: publishes on up/{device} at the broker of ")
            write_manifest(tmp_path, {"all": route("site/#")})
            await hub.call("config reload")
            assert hub.hub.status()["warnings"] == []
    told = [line for line in logs if line["event"] == "hub.config_warning"]
    assert [line["warning"] for line in told] == [warning]


async def test_messages_of_the_hub_itself_are_dropped_when_they_come_back(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """Sessions of devices say in MQTT 5 which hub they are of, so there is no endless loop."""
    upstream = {"type": "mqtt", "host": "127.0.0.1", "port": broker.port, "identity": "device"}
    routes = {"all": route("#"), "up": "FROM /messages/* INTO $upstream"}
    async with (
        broker_hub(tmp_path, broker.port, upstream=upstream, routes=routes) as hub,
        aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="press-1") as device,
    ):
        await hub.until_subscribed("#")
        await publish_all(device, "devices/press-1/messages/events/", [b"1", b"2"])
        await hub.until(lambda: hub.broker["acknowledged_total"] == 2)
        assert hub.broker["dropped"] == {"own": 2}
        await hub.until(lambda: hub.depth() == 0)


def _lines(files: Any) -> list[dict[str, Any]]:
    found = []
    for file in files:
        if file.suffix == ".events":
            continue
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(file.read_bytes())
        found += [json.loads(line) for line in text.splitlines() if line]
    return [line for line in found if isinstance(line, dict)]


async def test_a_wrong_password_parks_until_it_is_mended(tmp_path: Path) -> None:
    """A person must act; a reload tries at once (C-05)."""
    secret = tmp_path / "password"
    secret.write_text("wrong\n")
    with Mosquitto(tmp_path / "broker", users={"hub": "right"}) as broker:
        settings = {"username": "hub", "password_file": str(secret)}
        async with broker_hub(tmp_path / "hub", broker.port, broker=settings) as hub:
            await hub.until(lambda: hub.broker["state"] == "parked")
            assert "refused" in hub.broker["reason"]
            secret.write_text("right\n")
            await hub.call("config reload")
            await hub.until_subscribed("#")


async def test_a_broker_that_is_away_at_the_start(tmp_path: Path) -> None:
    """O-06: the hub starts, says so, and joins as soon as the broker is there."""
    broker = Mosquitto(tmp_path / "broker")
    try:
        async with broker_hub(tmp_path / "hub", broker.port) as hub:
            await hub.until(lambda: hub.broker["state"] == "down")
            assert any("broker is down" in text for text in hub.hub.status()["warnings"])
            await asyncio.to_thread(broker.start)
            await hub.until_subscribed("#")
    finally:
        broker.stop()


async def test_hubs_of_one_group_share_the_messages(tmp_path: Path, broker: Mosquitto) -> None:
    """Each message is routed by one of them, also when one was away meanwhile."""
    settings = {"share_group": "hubs"}
    async with (
        broker_hub(tmp_path / "one", broker.port, broker={**settings, "client_id": "one"}) as one,
        broker_hub(tmp_path / "two", broker.port, broker={**settings, "client_id": "two"}) as two,
        sender(broker.port) as client,
    ):
        for hub in (one, two):
            await hub.until_subscribed("$share/hubs/#")
        await publish_all(client, "a", [b"%d" % number for number in range(200)])
        await one.until(lambda: one.depth() + two.depth() == 200)
        rows = [*await one.rows(limit=200), *await two.rows(limit=200)]
        assert sorted(map(int, bodies_of(rows))) == list(range(200))
        assert min(one.depth(), two.depth()) > 0
    # What is assigned to a hub that is away waits for it: nothing is lost, nothing doubled.
    async with sender(broker.port) as client:
        await publish_all(client, "a", [b"%d" % number for number in range(200, 260)])
        async with (
            broker_hub(
                tmp_path / "one", broker.port, broker={**settings, "client_id": "one"}
            ) as one,
            broker_hub(
                tmp_path / "two", broker.port, broker={**settings, "client_id": "two"}
            ) as two,
        ):
            await one.until(lambda: one.depth() + two.depth() == 260)
            rows = [*await one.rows(limit=300), *await two.rows(limit=300)]
    assert sorted(map(int, bodies_of(rows))) == list(range(260))


async def test_qos_0_is_taken_and_dropped_where_a_limit_refuses_it(
    tmp_path: Path, broker: Mosquitto
) -> None:
    """There is nobody to hold it back at."""
    store = {"rows_max": 1, "overflow": "reject_new"}
    async with (
        broker_hub(tmp_path / "hub", broker.port, store=store) as hub,
        sender(broker.port) as client,
    ):
        await hub.until_subscribed("#")
        await client.publish("a", b"1", qos=0)
        await hub.until(lambda: hub.depth() == 1)
        await client.publish("a", b"2", qos=0)
        await hub.until(lambda: hub.broker["dropped"] == {"limit": 1})


async def test_a_route_of_the_api_is_subscribed_to(tmp_path: Path, broker: Mosquitto) -> None:
    """A live route names a filter: subscribed to; it is removed: no more."""
    async with broker_hub(tmp_path / "hub", broker.port, routes={"a": route("a")}) as hub:
        await hub.until_subscribed("a")
        await hub.call("route add", body={"id": "b", **route("b/#")})
        await hub.until_subscribed("a", "b/#")
        await hub.call("route remove", id="b")
        await hub.until_subscribed("a")


async def test_no_copy_waits_for_one_of_a_subscription_that_just_ended(
    tmp_path: Path, broker: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message right behind UNSUBACK comes by the other filter alone, and is taken."""
    real = Client.unsubscribe
    routes = {"x": route("x")}
    async with (
        sender(broker.port) as client,
        broker_hub(tmp_path / "hub", broker.port, routes=routes) as hub,
    ):

        async def unsubscribe(self: Client, filters: Iterable[str]) -> None:
            await real(self, filters)
            await client.publish("a/b", b"x", qos=1)
            await hub.until(lambda: hub.broker["acknowledged_total"] == 1)

        await hub.call("route add", body={"id": "one", **route("a/+")})
        await hub.until_subscribed("x", "a/+")
        await hub.call("route add", body={"id": "two", **route("+/b")})
        await hub.until_subscribed("x", "a/+", "+/b")
        monkeypatch.setattr(Client, "unsubscribe", unsubscribe)
        await hub.call("route remove", id="one")
        await hub.until_subscribed("x", "+/b")
        assert hub.depth() == 1


async def test_a_broker_and_a_platform_with_certificates(tmp_path: Path) -> None:
    """TLS at both, signed in by a certificate; a server that nobody vouches for parks."""
    authority = await asyncio.to_thread(Authority, tmp_path)
    server, key = await asyncio.to_thread(authority.server)
    client, client_key = await asyncio.to_thread(authority.client, "gw")
    lines = [f"cafile {authority.certificate}", f"certfile {server}", f"keyfile {key}"]
    files = {"certificate_file": str(client), "key_file": str(client_key), "tls": True}
    trusted = {**files, "ca_file": str(authority.certificate)}
    with Mosquitto(tmp_path / "broker", *lines, "require_certificate true") as broker:
        upstream = {"type": "cumulocity", "host": "127.0.0.1", "port": broker.port, **trusted}
        folder = tmp_path / "hub"
        async with broker_hub(folder, broker.port, broker=trusted, upstream=upstream) as hub:
            await hub.until(lambda: hub.broker["state"] == hub.endpoint()["state"] == "up")
        async with broker_hub(tmp_path / "other", broker.port, broker=files) as hub:
            await hub.until(lambda: hub.broker["state"] == "parked")
            assert "certificate of the peer" in hub.broker["reason"]
