"""Messages to devices at two hubs that share their devices over a real Redis."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.hub.hub import Hub
from edgehub.methods.methods import MethodNotConnectedError
from edgehub.operations.operation import ArgumentError
from edgehub.settings import Settings
from edgehub.twins.document import TwinElsewhereError
from tests.support.redis import RedisServer
from tests.support.serving import serving

pytestmark = pytest.mark.integration

SUBSCRIPTION = "devices/d/messages/devicebound/#"


@pytest.fixture
def redis(tmp_path):
    """Return a running Redis."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


def a_hub(folder, redis, name, **settings):
    """Return a hub that shares its devices."""
    return Hub(
        Settings(
            data_dir=folder / name,
            hub_id=name,
            mqtt={"port": 0, **settings},
            redis={"url": redis.url, "prefix": "fleet"},
            affinity={"coordinator": "redis", "registry": "redis", "processing_delay_ms": 50},
        )
    )


def client_of(hub, name="d", **more):
    """Return a client of a hub."""
    return aiomqtt.Client(
        "127.0.0.1",
        hub.mqtt_port,
        identifier=name,
        protocol=aiomqtt.ProtocolVersion.V5,
        **more,
    )


async def say(client, number):
    """Send a numbered message of the device `d`, so that its hub owns it."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("sequence", str(number))]
    await client.publish("devices/d/messages/events/", b"x", qos=1, properties=properties)


async def send(hub, body, **more):
    """Send a message to the device at a hub."""
    return await hub.operations["device send"]({"device_id": "d", "body": body, **more})


async def waiting(hub):
    """Return the ids that wait for the device at a hub."""
    answer = await hub.operations["device messages"]({"device_id": "d"})
    return [each["message_id"] for each in answer["waiting"]]


async def until(condition):
    """Wait until a coroutine function returns something true."""
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - what other hubs do has no event here
            await asyncio.sleep(0.02)


async def received(client):
    """Return the next message of a client."""
    async with asyncio.timeout(10):
        message = await anext(client.messages)
    return bytes(message.payload)


async def test_a_message_goes_to_the_hub_that_owns_the_device(tmp_path, redis):
    """Sent at any hub, by an operator or a client; the answer names the owner."""
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(serving(a_hub(tmp_path, redis, "a")))
        file = tmp_path / "identities"
        with changing(file) as entries:
            rights = ("devices/+/messages/devicebound/#",)
            password = PasswordHash.of(b"secret")
            entries["panel"] = Identity(id="panel", password=password, publish=rights)
        other = a_hub(tmp_path, redis, "b", identities_file=file)
        b = await stack.enter_async_context(serving(other))
        device = await stack.enter_async_context(client_of(a))
        await say(device, 1)
        await device.subscribe(SUBSCRIPTION, qos=1)
        answer = await send(b, "open", message_id="one")
        assert (answer["message_id"], answer["owner"]) == ("one", "a")
        assert await received(device) == b"open"
        assert (await send(a, "here"))["owner"] is None
        assert await received(device) == b"here"
        panel = client_of(b, "panel", username="panel", password="secret")
        async with panel as client:
            await client.publish("devices/d/messages/devicebound/", b"by a panel", qos=1)
        assert await received(device) == b"by a panel"
        await until(lambda: ended(b, "Moved", 2))
        await until(lambda: ended(a, "Success", 3))
        assert await waiting(b) == []
        shown = [await hub.operations["device messages"]({"device_id": "d"}) for hub in (a, b)]
        assert [each["owner"] for each in shown] == [None, "a"]
        patch = {"properties": {"desired": {"x": 1}}}
        for name, arguments in (("show", {}), ("set", {"patch": patch})):
            with pytest.raises(TwinElsewhereError, match="d is with the hub a"):
                await b.operations[f"twin {name}"]({"device_id": "d", **arguments})
            twin = await a.operations[f"twin {name}"]({"device_id": "d", **arguments})
            assert twin["owner"] is None
        with pytest.raises(MethodNotConnectedError, match="hub a; call its methods there"):
            await b.operations["method invoke"]({"device_id": "d", "call": {"methodName": "m"}})


async def test_messages_wait_for_a_stopped_owner_and_follow_the_device(tmp_path, redis):
    """They are shown as held up, and go to the hub that hears the device next."""
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(serving(a_hub(tmp_path, redis, "b")))
        async with serving(a_hub(tmp_path, redis, "a")) as a, client_of(a) as device:
            await say(device, 1)
        await send(b, "1", message_id="one")
        await until(lambda: held_up(b))
        assert "hub a is stopped" in b.status()["device_bound"]["held_up"]["a"]
        assert any("hub a is stopped" in each for each in b.status()["warnings"])
        assert await waiting(b) == ["one"]
        a = await stack.enter_async_context(serving(a_hub(tmp_path, redis, "a")))
        await send(b, "2", message_id="two")
        await until(lambda: ended(b, "Moved", 2))
        assert await waiting(a) == ["one", "two"]
        while await waiting(b):  # It is counted before its removal is committed.
            pass
        # The device moves to the other hub, and its messages with it.
        assert await a.operations["device release"]({"device_id": "d"}) == {"released": True}
        assert await a.operations["device release"]({"device_id": "d"}) == {"released": False}
        device = await stack.enter_async_context(client_of(b))
        await say(device, 2)
        await device.subscribe(SUBSCRIPTION, qos=1)
        assert [await received(device), await received(device)] == [b"1", b"2"]
        ledger = await a.operations["device ledger"]({"device_id": "d", "limit": 10})
        assert [each["cause"] for each in ledger["entries"]][-1] == "closed"


async def test_a_hub_without_others_releases_nothing(tmp_path):
    """There is none that could speak for the device."""
    async with serving(Hub(Settings(data_dir=tmp_path, mqtt={"port": 0}))) as hub:
        with pytest.raises(ArgumentError, match="no other hub could speak for d"):
            await hub.operations["device release"]({"device_id": "d"})


async def held_up(hub):
    """Return what holds messages up."""
    return hub.status()["device_bound"]["held_up"]


async def ended(hub, fate, count):
    """Return whether so many messages ended like that."""
    return hub.status()["device_bound"]["ended_total"][fate] == count
