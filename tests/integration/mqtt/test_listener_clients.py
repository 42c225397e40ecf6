"""Real clients against the listener on uvloop: paho-mqtt, aiomqtt, mosquitto_pub and _sub."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import aiomqtt
import paho.mqtt.client as paho
import pytest

from edgehub.devices.identity_file import Identity, changing
from edgehub.devices.passwords import PasswordHash
from edgehub.message import Message
from tests.support.client_programs import command, on_uvloop
from tests.support.mqtt_listener import Results

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"
INPUTS = "devices/hub/modules/cam/#"


@contextlib.asynccontextmanager
async def paho_client(port: int, client_id: str, **options: object) -> AsyncIterator[paho.Client]:
    """A connected paho client with its own thread."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, **options)
    client.on_connect = lambda *_: loop.call_soon_threadsafe(connected.set)
    client.connect_async("127.0.0.1", port)
    client.loop_start()
    try:
        await connected.wait()
        yield client
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)


def test_paho_publishes():
    """paho-mqtt publishes a thousand messages with QoS 1; each is acknowledged, in order."""

    async def scenario(bench: Bench) -> None:
        acked: list[int] = []
        done = threading.Event()

        def on_publish(_client: object, _data: object, mid: int, *_rest: object) -> None:
            acked.append(mid)
            if len(acked) == 1000:
                done.set()

        async with paho_client(bench.port, "dev1") as client:
            client.on_publish = on_publish
            for number in range(1000):
                client.publish(EVENTS + f"n={number}", b"x" * 200, qos=1)
            assert await asyncio.to_thread(done.wait, 10)
        assert acked == sorted(acked)
        assert [m.properties["n"] for m in bench.router.messages] == [str(n) for n in range(1000)]

    on_uvloop(scenario)


def test_paho_module_takes_inputs():
    """A paho module with a stored session takes its input and confirms it."""

    async def scenario(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        seen: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        subscribed = asyncio.Event()
        results = Results()
        async with paho_client(bench.port, "hub/cam", clean_session=False) as module:
            module.on_subscribe = lambda *_: loop.call_soon_threadsafe(subscribed.set)
            module.on_message = lambda _c, _d, m: loop.call_soon_threadsafe(
                seen.put_nowait, (m.topic, m.payload)
            )
            module.subscribe(INPUTS, qos=1)
            await subscribed.wait()
            for number in range(50):
                body = str(number).encode()
                message = Message("d7", None, "/messages/", {"n": str(number)}, {}, body)
                bench.listener.deliver("cam", "i", message, results.settle)
            await results.count(50)
            assert [(await seen.get())[1] for _ in range(50)] == [b"%d" % n for n in range(50)]
        assert results.kinds == [None] * 50
        assert bench.sessions.table == {"hub/cam": {INPUTS: 1}}

    on_uvloop(scenario)


def test_aiomqtt():
    """An aiomqtt device publishes, is sent a message, and leaves a will when it fails."""

    async def scenario(bench: Bench) -> None:
        results = Results()
        will = aiomqtt.Will(EVENTS, b"gone", qos=1)
        async with aiomqtt.Client(
            "127.0.0.1", bench.port, identifier="dev1", will=will, keepalive=5
        ) as client:
            await client.publish(EVENTS + "kind=alarm", b"hot", qos=1)
            await client.subscribe("devices/dev1/messages/devicebound/#", qos=1)
            bench.send(
                "dev1", Message("cloud", None, "/messages/", {"a": "b"}, {}, b"go"), results.settle
            )
            async for message in client.messages:
                assert message.payload == b"go"
                assert "a=b" in str(message.topic)
                break
            await results.count(1)
        assert [(m.body, m.properties) for m in bench.router.messages] == [
            (b"hot", {"kind": "alarm"})
        ]

    on_uvloop(scenario)


def test_mosquitto_pub(tmp_path):
    """mosquitto_pub sends a line per message, with a password, in one go."""
    path = tmp_path / "identities.jsonl"
    with changing(path) as identities:
        identities["dev1"] = Identity(id="dev1", password=PasswordHash.of(b"secret"))

    async def scenario(bench: Bench) -> None:
        base = ["mosquitto_pub", "-p", str(bench.port), "-t", EVENTS + "k=v", "-q", "1", "-l"]
        lines = b"".join(b"line %d\n" % n for n in range(200))
        # An empty client id stands for the id of the user name.
        code, output = await command(*base, "-u", "dev1", "-P", "secret", data=lines)
        assert (code, output) == (0, b"")
        assert [m.body for m in bench.router.messages] == lines.splitlines()
        code, output = await command(*base, "-i", "dev1", "-u", "dev1", "-P", "no", data=lines)
        assert code == 4
        assert b"bad user name or password" in output
        assert len(bench.router.messages) == 200

    on_uvloop(scenario, identities_file=path)


def test_mosquitto_sub():
    """mosquitto_sub takes an input of a module; a filter of no use is refused to it."""

    async def scenario(bench: Bench) -> None:
        results = Results()
        message = Message("d7", None, "/messages/", {}, {}, b"body")
        bench.listener.watch(
            "cam",
            "i",
            lambda there: (
                bench.listener.deliver("cam", "i", message, results.settle) if there else None
            ),
        )
        base = ["mosquitto_sub", "-p", str(bench.port), "-q", "1", "-W", "10"]
        code, output = await command(*base, "-i", "hub/cam", "-t", INPUTS, "-C", "1")
        assert (code, output) == (0, b"body\n")
        await results.count(1)
        assert results.kinds == [None]
        code, output = await command(*base, "-i", "dev1", "-t", "a/b")
        assert b"denied" in output

    on_uvloop(scenario)
