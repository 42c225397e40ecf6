"""The `cumulocity` endpoint in a whole hub: Mosquitto is the platform, a script answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiomqtt
import pytest

from tests.support.broker_hub import BrokerHub, running_hub
from tests.support.mosquitto import Mosquitto
from tests.support.quick_clock import QuickClock
from tests.support.subscriber import Subscriber

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

MAPPED = {
    "mapper": "FROM /messages/modules/c8y-mapper/* INTO $upstream",
    "lines": "FROM /mqtt/c8y/s/us/# INTO $upstream",
    "token": "FROM /mqtt/c8y/s/uat INTO $upstream",
}
EXECUTING, SUCCESSFUL = b'{"status":"executing"}', b'{"status":"successful"}'


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Mosquitto]:
    """Return a running Mosquitto that stands for the platform."""
    with Mosquitto(tmp_path / "tenant") as running:
        yield running


class Platform:
    """What the platform sees, and what it answers by script.

    Attributes:
        seen: Topics and bodies that devices published.
        answers: By topic, what is sent back on which topic.
    """

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client
        self.seen = Subscriber()
        self.answers: dict[str, tuple[str, bytes]] = {}

    async def run(self) -> None:
        """Record and answer until cancelled."""
        async for message in self._client.messages:
            topic = message.topic.value
            self.seen.note(topic, bytes(message.payload))
            if topic in self.answers:
                await self.send(*self.answers[topic])

    async def send(self, topic: str, body: bytes) -> None:
        """Send to the device."""
        await self._client.publish(topic, body, qos=1)

    async def until(self, condition: Callable[[list[tuple[str, bytes]]], bool]) -> None:
        """Wait until what was seen is so."""
        async with asyncio.timeout(10):
            while not condition(self.seen.arrivals):
                await self.seen.wait(len(self.seen.arrivals) + 1)


@contextlib.asynccontextmanager
async def platform(port: int) -> AsyncIterator[Platform]:
    """Listen to all that devices publish."""
    async with aiomqtt.Client("127.0.0.1", port, identifier="platform") as client:
        for topic in ("s/us/#", "s/uat", "measurement/#", "event/#", "alarm/#", "inventory/#"):
            await client.subscribe(topic, qos=1)
        peer = Platform(client)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(peer.run())
            yield peer
            task.cancel()


@contextlib.asynccontextmanager
async def gateway(
    folder: Path, port: int, *, routes: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[BrokerHub]:
    """Run a hub whose upstream is the platform."""
    upstream = {"type": "cumulocity", "host": "127.0.0.1", "port": port, "tls": False, **more}
    parts = {"routes": routes or MAPPED, "upstream": upstream}
    # The mapper waits for what else is said of an entity.
    async with running_hub(folder, clock=QuickClock(), **parts) as hub:
        await hub.until(lambda: hub.endpoint()["state"] == "up")
        yield hub


@contextlib.asynccontextmanager
async def local(hub: BrokerHub, *filters: str) -> AsyncIterator[aiomqtt.Client]:
    """Connect a client of the gateway's local topics."""
    async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="panel") as client:
        for topic in filters:
            await client.subscribe(topic, qos=1)
        yield client


async def test_registration_data_and_twin_reach_the_platforms_topics(
    tmp_path: Path, tenant: Mosquitto
) -> None:
    """Without the local prefix, creation before data, each kind on its topic."""
    async with (
        platform(tenant.port) as cloud,
        gateway(tmp_path / "hub", tenant.port) as hub,
        local(hub) as panel,
    ):
        await panel.publish("te/device/p1///m/", b'{"t": 1}', qos=1)
        await panel.publish("te/device/p1//", b'{"@type":"child-device","@id":"press"}', qos=1)
        await panel.publish("te/device/p1///twin/place", b'"hall"', qos=1)
        await panel.publish("te/device/p1///a/hot", b'{"severity":"major","text":"hot"}', qos=1)
        await panel.publish("te/device/p1///e/door", b'{"text":"open"}', qos=1)
        topics = {
            "s/us",
            "measurement/measurements/create",
            "inventory/managedObjects/update/press",
            "s/us/press",
            "event/events/create",
        }
        await cloud.until(lambda seen: {topic for topic, _ in seen} >= topics)
        order = [topic for topic, body in cloud.seen.arrivals if b"press" in body]
        lines = [body for topic, body in cloud.seen.arrivals if topic == "s/us"]
        assert order[0] == "s/us"
        assert any(line.startswith(b"101,press,") for line in lines)
        assert any(line.startswith(b"114") for line in lines)


async def test_an_operation_goes_down_and_its_end_comes_up(
    tmp_path: Path, tenant: Mosquitto
) -> None:
    """Notification, retained command, executing, successful, command cleared."""
    async with (
        platform(tenant.port) as cloud,
        gateway(tmp_path / "hub", tenant.port) as hub,
        local(hub, "te/+/+/+/+/cmd/+/+") as panel,
    ):
        await hub.until(lambda: hub.endpoint()["platform"]["received"] == 0)
        await panel.publish("te/device/main///cmd/restart", b"{}", qos=1, retain=True)
        await cloud.until(lambda seen: ("s/us", b"114,c8y_Restart") in seen)
        operation = {"id": "77", "externalSource": {"externalId": "gw"}, "c8y_Restart": {}}
        await cloud.send("devicecontrol/notifications", json.dumps(operation).encode())
        command = await anext(panel.messages)
        assert command.topic.value == "te/device/main///cmd/restart/c8y-mapper-77"
        assert json.loads(command.payload)["status"] == "init"
        await panel.publish(command.topic.value, EXECUTING, qos=1, retain=True)
        await cloud.until(lambda seen: ("s/us", b"504,77") in seen)
        await panel.publish(command.topic.value, SUCCESSFUL, qos=1, retain=True)
        await cloud.until(lambda seen: ("s/us", b"506,77") in seen)
        async with asyncio.timeout(5):
            async for message in panel.messages:
                if not message.payload:
                    break


async def test_pending_operations_are_asked_for_at_each_connection(
    tmp_path: Path, tenant: Mosquitto
) -> None:
    """What the platform did not deliver to a session that ended comes again on request only."""
    pending = {"id": "78", "externalSource": {"externalId": "gw"}, "c8y_Restart": {}}
    async with (
        platform(tenant.port) as cloud,
        gateway(tmp_path / "hub", tenant.port) as hub,
        local(hub, "te/+/+/+/+/cmd/+/+") as panel,
    ):
        await cloud.until(lambda seen: {("s/us", b"114"), ("s/us", b"500")} <= set(seen))
        await hub.until(lambda: hub.depth() == 0)
        assert cloud.seen.arrivals.count(("s/us", b"500")) == 1
        cloud.answers = {"s/us": ("devicecontrol/notifications", json.dumps(pending).encode())}
        async with aiomqtt.Client("127.0.0.1", tenant.port, identifier="gw"):
            pass  # ends the hub's session, which connects again
        await cloud.until(lambda seen: seen.count(("s/us", b"500")) == 2)
        async with asyncio.timeout(5):
            command = await anext(panel.messages)
        assert command.topic.value == "te/device/main///cmd/restart/c8y-mapper-78"


async def test_lines_of_local_clients_are_answered(tmp_path: Path, tenant: Mosquitto) -> None:
    """SmartREST of one's own and the token: up by a route, the answer comes down as `c8y/...`."""
    async with (
        platform(tenant.port) as cloud,
        gateway(tmp_path / "hub", tenant.port, templates=["mine"]) as hub,
        local(hub, "c8y/s/ds", "c8y/s/dat", "c8y/s/dc/mine", "c8y/s/e") as panel,
    ):
        cloud.answers = {
            "s/uat": ("s/dat", b"71,token"),
            "s/us": ("s/ds", b"510,gw"),
            "s/us/press": ("s/dc/mine", b"1,2"),
        }
        await hub.until(lambda: hub.endpoint()["platform"] is not None)
        for topic, body, answer in (
            ("c8y/s/uat", b"", ("c8y/s/dat", b"71,token")),
            ("c8y/s/us", b"400,x,y", ("c8y/s/ds", b"510,gw")),
            ("c8y/s/us/press", b"400,x,y", ("c8y/s/dc/mine", b"1,2")),
        ):
            await panel.publish(topic, body, qos=1)
            async with asyncio.timeout(5):
                message = await anext(panel.messages)
                while (message.topic.value, message.payload) != answer:
                    message = await anext(panel.messages)


async def test_errors_of_the_platform_are_counted(tmp_path: Path, tenant: Mosquitto) -> None:
    """`s/e` reaches local clients too, and shows in the status."""
    async with (
        platform(tenant.port) as cloud,
        gateway(tmp_path / "hub", tenant.port) as hub,
        local(hub, "c8y/s/e") as panel,
    ):
        while not hub.endpoint()["platform"]["errors"]:
            await cloud.send("s/e", b"40,511,no such operation")
            await asyncio.sleep(0.02)
        message = await anext(panel.messages)
        assert message.payload == b"40,511,no such operation"


async def test_what_may_not_go_up_stops_no_other(tmp_path: Path, tenant: Mosquitto) -> None:
    """P-10: too large is refused at once; a topic that only comes down, or none: dead letters."""
    routes = {
        "all": "FROM /mqtt/c8y/# INTO $upstream",
        "devices": "FROM /messages/* WHERE kind = 'x' INTO $upstream",
    }
    async with (
        platform(tenant.port) as cloud,
        gateway(tmp_path / "hub", tenant.port, routes=routes) as hub,
        local(hub) as panel,
    ):
        await panel.publish("c8y/s/us", bytes(16_184), qos=1)
        await panel.publish("c8y/s/ds", b"510,gw", qos=1)
        await panel.publish("devices/panel/messages/events/kind=x", b"{}", qos=1)
        # Another child's topic, which only the mapper may name.
        topic = "devices/panel/messages/events/kind=x&topic=c8y%2Fs%2Fus%2Fother"
        await panel.publish(topic, b"100,stolen", qos=1)
        await panel.publish("c8y/s/us", b"400,last,one", qos=1)
        await cloud.until(lambda seen: ("s/us", b"400,last,one") in seen)
        await hub.until(lambda: hub.depth() == 0)
        listed = await hub.call("dead list")
        reasons = [letter["reason"] for letter in listed["dead_letters"]]
        assert len(reasons) == 3
        assert "no topic that the platform takes" in reasons[0]
        assert ["neither from the mapper" in reason for reason in reasons[1:]] == [True, True]
        assert not [topic for topic, _ in cloud.seen.arrivals if topic.endswith("/other")]
        assert hub.hub.status()["mqtt"]["dropped"]["invalid"] == 1


async def test_an_outage_keeps_order_and_loses_nothing(tmp_path: Path) -> None:
    """The platform is away: rows wait, then the creation comes first and all data in order."""
    tenant = Mosquitto(tmp_path / "tenant")
    upstream = {"type": "cumulocity", "host": "127.0.0.1", "port": tenant.port, "tls": False}
    try:
        async with (
            running_hub(tmp_path / "hub", routes=MAPPED, upstream=upstream) as hub,
            local(hub) as panel,
        ):
            await panel.publish("te/device/p1//", b'{"@type":"child-device","@id":"press"}', qos=1)
            for number in range(50):
                await panel.publish("te/device/p1///m/", b'{"t": %d}' % number, qos=1)
            await asyncio.to_thread(tenant.start)
            async with platform(tenant.port) as cloud:
                await hub.call("config reload")
                await cloud.until(lambda seen: sum(b'"press"' in body for _, body in seen) == 50)
                arrivals = cloud.seen.arrivals
                values = [json.loads(b)["t"]["t"]["value"] for _, b in arrivals if b'"press"' in b]
                assert values == list(range(50))
                first = next(i for i, (_, body) in enumerate(arrivals) if b'"press"' in body)
                assert any(body.startswith(b"101,press") for _, body in arrivals[:first])
    finally:
        tenant.stop()


async def test_the_gateways_external_id_is_its_client_id(tmp_path: Path) -> None:
    """Signs in with tenant and user; a wrong password parks it."""
    secret = tmp_path / "password"
    secret.write_text("right\n")
    user = "t1/device_gw"
    more = {"username": user, "password_file": str(secret)}
    with Mosquitto(tmp_path / "tenant", users={user: "right"}) as tenant:
        async with gateway(tmp_path / "hub", tenant.port, **more) as hub:
            assert hub.endpoint()["state"] == "up"
        secret.write_text("wrong\n")
        upstream = {"type": "cumulocity", "host": "127.0.0.1", "port": tenant.port, "tls": False}
        async with running_hub(tmp_path / "hub", upstream={**upstream, **more}) as hub:
            await hub.until(lambda: hub.endpoint()["state"] == "parked")
