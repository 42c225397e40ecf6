"""Messages to devices in whole hubs: from the API, over restarts, from a parent hub."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiomqtt
import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.errors import EdgeHubError
from edgehub.operations.problem import ProblemError, problem_of
from tests.support import mqtt_wire as wire
from tests.support.broker_hub import BrokerHub, running_hub
from tests.support.mqtt_wire import RawClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration

PUBLISH_1 = 0x32
ROUTES = {"all": {"route": "FROM /messages/* INTO $upstream"}}
BOUND = "devices/dev-1/messages/devicebound/#"
EXPIRY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@asynccontextmanager
async def a_device(hub: BrokerHub, device_id: str = "dev-1", *, qos: int = 1):
    """Connect a device that listens and acknowledges by hand."""
    client = await RawClient.signed_in(hub.mqtt_port, device_id)
    client.send(wire.subscribe((f"devices/{device_id}/messages/devicebound/#", qos)))
    assert (await client.read())[0] == wire.SUBACK
    try:
        yield client
    finally:
        await client.close()


def waiting(hub: BrokerHub) -> int:
    """Return the messages that wait."""
    return int(hub.hub.status()["device_bound"]["waiting"])


async def send(hub: BrokerHub, body: str, device_id: str = "dev-1", **options: Any) -> Any:
    """Send a message to a device."""
    return await hub.call("device send", device_id=device_id, body=body, **options)


async def test_a_message_waits_for_its_device_over_a_restart(tmp_path):
    """It leaves with what its sender gave, and is gone once the device has acknowledged it."""
    async with running_hub(tmp_path) as hub:
        await send(hub, "late")
        sent = await send(
            hub,
            "now",
            priority=0,
            ttl_s=600,
            correlation_id="c-1",
            content_type="text/plain",
            properties={"kind": "cmd"},
        )
        assert (sent["waiting"], EXPIRY.fullmatch(sent["expires"]) is None) == (2, False)
    async with running_hub(tmp_path) as hub:
        assert waiting(hub) == 2
        async with a_device(hub) as device:
            topic, body, packet_id = await device.read_publish()
            assert body == b"now"
            items = dict(item.split("=") for item in topic.rpartition("/")[2].split("&"))
            found = {unquote(name): unquote(value) for name, value in items.items()}
            assert found.pop("$.exp", None) in {None, sent["expires"]}
            assert found == {
                "kind": "cmd",
                "edgehub-priority": "0",
                "$.cid": "c-1",
                "$.ct": "text/plain",
                "$.mid": sent["message_id"],
                "$.to": "/devices/dev-1/messages/devicebound",
            }
            listed = await hub.call("device messages", device_id="dev-1")
            assert [each["in_flight"] for each in listed["waiting"]] == [True, True]
            device.send(wire.puback(packet_id))
            _, body, packet_id = await device.read_publish()
            device.send(wire.puback(packet_id))
            assert body == b"late"
            await hub.until(lambda: waiting(hub) == 0)
    async with running_hub(tmp_path) as hub:
        assert (await hub.call("device messages", device_id="dev-1"))["waiting"] == []


async def test_what_was_not_acknowledged_comes_again_marked(tmp_path):
    """After the session, and after a restart of the hub."""
    async with running_hub(tmp_path) as hub:
        await send(hub, "x")
        for dup in (0x00, 0x08):
            async with a_device(hub) as device:
                kind, _ = await device.read()
                assert kind == PUBLISH_1 | dup
            await hub.until(
                lambda: hub.hub.status()["device_bound"]["in_flight"] == 0,
            )
    async with running_hub(tmp_path) as hub, a_device(hub) as device:
        assert (await device.read())[0] == PUBLISH_1 | 0x08
        [message] = (await hub.call("device messages", device_id="dev-1"))["waiting"]
        assert message["deliveries"] == 3


async def test_with_qos_0_a_message_is_delivered_when_it_is_written(tmp_path):
    """There is no acknowledgement to wait for."""
    async with running_hub(tmp_path) as hub, a_device(hub, qos=0) as device:
        await send(hub, "x")
        assert (await device.read_publish())[1] == b"x"
        await hub.until(lambda: waiting(hub) == 0)


async def test_modules_get_messages_of_their_own(tmp_path):
    """On their own topic, whether or not they listen to all of their topics; devices do not."""
    topic = "devices/dev-1/modules/m/messages/devicebound/"
    async with running_hub(tmp_path) as hub:
        await send(hub, "x", module_id="m")
        async with a_device(hub) as device:
            for topic_filter in (topic + "#", "devices/dev-1/modules/m/#"):
                module = await RawClient.signed_in(hub.mqtt_port, "dev-1/m")
                module.send(wire.subscribe((topic_filter, 1)))
                assert (await module.read())[0] == wire.SUBACK
                received, body, packet_id = await module.read_publish()
                assert (received.startswith(topic), body) == (True, b"x")
                module.send(wire.puback(packet_id))
                await hub.until(lambda: waiting(hub) == 0)
                await send(hub, "x", module_id="m")
                await module.close()
            await device.pong()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ({"device_id": "dev 1"}, 422, "want 1 to 128"),
        ({"device_id": "d", "module_id": "a/b"}, 422, "`module_id`"),
        ({"device_id": "d", "body": "a", "body_base64": "YQ=="}, 422, "not both"),
        ({"device_id": "d", "body_base64": "?"}, 422, "the body"),
        ({"device_id": "d", "body_base64": "\u00d5"}, 422, "the body"),
        ({"device_id": "d", "body": "x" * 262_145}, 422, "at most 262144"),
        ({"device_id": "d", "properties": ["a"]}, 422, "an object"),
        ({"device_id": "d", "properties": {"a": 1}}, 422, "want a text"),
        ({"device_id": "d", "properties": {"$.to": "x"}}, 422, "only hubs write"),
        ({"device_id": "d", "properties": {"a": "\ud800"}}, 422, "surrogates"),
        ({"device_id": "d", "message_id": "x" * 129}, 422, "at most 128"),
        ({"device_id": "d", "ttl_s": 0}, 422, "from 1 to 172800"),
        ({"device_id": "d", "priority": 10}, 422, "from 0 to 9"),
        ({"device_id": "d", "ack": "maybe"}, 422, "one of none"),
        ({"device_id": "full"}, 507, "messages wait for full"),
    ],
)
async def test_what_cannot_be_sent_is_refused_with_a_reason(tmp_path, arguments, status, text):
    """Wrong arguments name what is wrong; without room the answer is 507."""
    async with running_hub(tmp_path, device_bound={"waiting_max": 1}) as hub:
        operation = hub.hub.operations["device send"]
        await operation({"device_id": "full"})
        with pytest.raises(EdgeHubError, match=re.escape(text)) as refused:
            await operation(arguments)
        problem = problem_of(refused.value)
        assert isinstance(problem, ProblemError)
        assert problem.status == status
        assert waiting(hub) == 1


async def test_messages_are_purged(tmp_path):
    """One by its id, or all."""
    async with running_hub(tmp_path) as hub:
        for name in ("a", "b", "c"):
            await send(hub, name, message_id=name)
        assert await hub.call("device purge", device_id="dev-1", message_id="b") == {"purged": 1}
        listed = await hub.call("device messages", device_id="dev-1")
        assert [each["message_id"] for each in listed["waiting"]] == ["a", "c"]
        assert await hub.call("device purge", device_id="dev-1") == {"purged": 2}


async def test_the_sender_is_informed(tmp_path):
    """By a message of the hub that routes send on, in the form of IoT Hub."""
    async with running_hub(tmp_path, routes=ROUTES, device_bound={"waiting_max": 1}) as hub:
        await send(hub, "x", message_id="first", ack="positive")
        with pytest.raises(EdgeHubError, match="messages wait"):
            await hub.hub.operations["device send"](
                {"device_id": "dev-1", "message_id": "second", "ack": "negative"}
            )
        async with a_device(hub) as device:
            _, _, packet_id = await device.read_publish()
            device.send(wire.puback(packet_id))
            await hub.until(lambda: hub.depth() == 2)
        rows = await hub.rows()
        feedback = [json.loads(row["body"])[0] for row in rows]
        assert [(each["originalMessageId"], each["statusCode"]) for each in feedback] == [
            ("second", "QueueDepthExceeded"),
            ("first", "Success"),
        ]
        assert (
            rows[0]["system_properties"]["contentType"]
            == "application/vnd.microsoft.iothub.feedback.json"
        )


@pytest.mark.parametrize("level", [4, 5])
async def test_a_client_with_the_right_sends_to_devices(tmp_path, level):
    """Acknowledged once stored, with priority and expiry; without the right it is dropped."""
    identities = tmp_path / "identities.jsonl"
    with changing(identities) as entries:
        for name, publish in (
            ("operator", ("devices/+/messages/devicebound/#",)),
            ("other", ("#",)),
        ):
            entries[name] = Identity(id=name, password=PasswordHash.of(b"secret"), publish=publish)
    topic = "devices/dev-1/messages/devicebound/a=b&edgehub-priority=2"
    async with running_hub(
        tmp_path,
        mqtt={"port": 0, "identities_file": identities},
        device_bound={"waiting_max": 1},
    ) as hub:
        for name in ("operator", "other", None):
            async with aiomqtt.Client(
                "127.0.0.1",
                hub.mqtt_port,
                identifier=name or "anonymous",
                username=name,
                password=None if name is None else "secret",
                protocol=aiomqtt.ProtocolVersion(level),
            ) as client:
                for _ in range(2):
                    await client.publish(topic, b"x", qos=1)
        dropped = hub.hub.status()["mqtt"]["dropped"]
        assert (dropped["queue_depth"], dropped["not_authorized"]) == (1, 4)
        [message] = (await hub.call("device messages", device_id="dev-1"))["waiting"]
        assert (message["origin"], message["priority"]) == ("client", 2)
        async with a_device(hub) as device:
            received, _, _ = await device.read_publish()
            assert "/a=b&edgehub-priority=2&" in received


@asynccontextmanager
async def two_hubs(folder) -> AsyncIterator[tuple[BrokerHub, BrokerHub]]:
    """Run a parent hub and its child."""
    identities, password = folder / "identities.jsonl", folder / "password"
    password.write_text("secret\n")
    with changing(identities) as entries:
        entries["child"] = Identity(
            id="child", password=PasswordHash.of(b"secret"), on_behalf=("*",)
        )
    for name in ("parent", "child"):
        (folder / name).mkdir(exist_ok=True)
    async with running_hub(
        folder / "parent",
        routes=ROUTES,
        hub_id="parent",
        mqtt={"port": 0, "identities_file": identities},
        device_bound={"waiting_max": 100},
    ) as parent:
        upstream = {
            "type": "mqtt",
            "host": "127.0.0.1",
            "port": parent.mqtt_port,
            "username": "child",
            "password_file": password,
        }
        async with running_hub(
            folder / "child", routes=ROUTES, hub_id="child", upstream=upstream
        ) as child:
            yield parent, child


async def test_a_parent_hub_sends_to_a_device_of_its_child(tmp_path):
    """It waits above until the device listens, is stored below, and keeps id, expiry and bag."""
    async with two_hubs(tmp_path) as (parent, child):
        sent = await send(parent, "x", properties={"a": "b"}, ttl_s=600, priority=3)
        await child.until(lambda: child.endpoint()["state"] == "up")
        assert (waiting(parent), waiting(child)) == (1, 0)
        async with a_device(child) as device:
            topic, body, _ = await device.read_publish()
            assert (body, waiting(child)) == (b"x", 1)
            await parent.until(lambda: waiting(parent) == 0)
            assert topic.startswith("devices/dev-1/messages/devicebound/a=b&")
            [message] = (await child.call("device messages", device_id="dev-1"))["waiting"]
            assert message["message_id"] == sent["message_id"]
            assert (message["origin"], message["priority"]) == ("upstream", 3)
            ends = [datetime.fromisoformat(each["expires"]) for each in (message, sent)]
            assert abs((ends[0] - ends[1]).total_seconds()) < 5
        async with a_device(child) as device:
            kind, _ = await device.read()
            assert kind == PUBLISH_1 | 0x08


async def test_a_full_queue_below_does_not_hold_up_other_devices(tmp_path):
    """The child acknowledges and drops what is too much, and reports it."""
    async with (
        two_hubs(tmp_path) as (parent, child),
        a_device(child),
        a_device(child, "dev-2") as other,
    ):
        for number in range(51):
            await send(parent, str(number), ack="negative")
        await parent.until(lambda: waiting(parent) == 0)
        await parent.until(lambda: waiting(child) + lost(child) == 51)
        assert lost(child) == 1
        await send(parent, "x", "dev-2")
        assert (await other.read_publish())[1] == b"x"
        await parent.until(lambda: parent.depth() == 1)
        [row] = await parent.rows()
        assert json.loads(row["body"])[0]["statusCode"] == "QueueDepthExceeded"


def lost(hub: BrokerHub) -> int:
    """Count the messages for which there was no room."""
    return int(hub.hub.status()["device_bound"]["ended_total"]["QueueDepthExceeded"])


async def test_a_client_of_an_sdk_gets_messages(tmp_path):
    """A stored session gets what came while it was away, in order, from many."""
    async with running_hub(tmp_path) as hub:
        for number in range(40):
            await send(hub, str(number))
        async with aiomqtt.Client("127.0.0.1", hub.mqtt_port, identifier="dev-1") as client:
            await client.subscribe(BOUND, qos=1)
            async with asyncio.timeout(10):
                bodies = [int((await anext(client.messages)).payload) for _ in range(40)]
        assert bodies == list(range(40))
        await hub.until(lambda: waiting(hub) == 0)
