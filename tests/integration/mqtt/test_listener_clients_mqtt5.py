"""Real clients of MQTT 5 against the listener on uvloop: paho-mqtt, mosquitto_pub and _sub."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from edgehub.message import Message, Refusal
from tests.support.client_programs import command, on_uvloop
from tests.support.mqtt_listener import Results

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mqtt_listener import Bench

pytestmark = pytest.mark.integration

EVENTS = "devices/dev1/messages/events/"
INPUTS = "devices/hub/modules/cam/#"


def properties(kind: int, **values: object) -> Properties:
    """Build properties as paho has them."""
    built = Properties(kind)
    for name, value in values.items():
        setattr(built, name, value)
    return built


class Paho:
    """A paho client with its own thread; what it is told arrives in queues."""

    def __init__(self, port: int, client_id: str, will: tuple | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.port = port
        self.acks: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.messages: asyncio.Queue[paho.MQTTMessage] = asyncio.Queue()
        self.subacks: asyncio.Queue[list[int]] = asyncio.Queue()
        self.connacks: asyncio.Queue[tuple[bool, int, Properties]] = asyncio.Queue()
        self.goodbyes: asyncio.Queue[int] = asyncio.Queue()
        self.client = client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5
        )
        if will is not None:
            client.will_set(EVENTS, b"gone", qos=1, properties=will)
        client.on_connect = lambda _c, _d, flags, code, given: self._put(
            self.connacks, (flags.session_present, code.value, given)
        )
        client.on_publish = lambda _c, _d, mid, code, _p: self._put(self.acks, (mid, code.value))
        client.on_message = lambda _c, _d, message: self._put(self.messages, message)
        client.on_subscribe = lambda _c, _d, _m, codes, _p: self._put(
            self.subacks, [code.value for code in codes]
        )
        client.on_disconnect = lambda _c, _d, _f, code, _p: self._put(self.goodbyes, code.value)

    def _put(self, queue: asyncio.Queue, item: object) -> None:
        self._loop.call_soon_threadsafe(queue.put_nowait, item)

    @contextlib.asynccontextmanager
    async def connected(self, *, clean: bool = True, **options: object) -> AsyncIterator[tuple]:
        """Connect for the length of a block, which gets the CONNACK."""
        self.client.connect_async(
            "127.0.0.1",
            self.port,
            clean_start=clean,
            properties=properties(PacketTypes.CONNECT, **options),
        )
        self.client.loop_start()
        try:
            yield await self.connacks.get()
        finally:
            self.client.disconnect()
            await asyncio.to_thread(self.client.loop_stop)


def test_paho_publishes():
    """A thousand messages with properties of their own; each is acknowledged, in order."""

    async def scenario(bench: Bench) -> None:
        device = Paho(bench.port, "dev1")
        async with device.connected() as (_, code, given):
            assert (code, given.ReceiveMaximum, hasattr(given, "MaximumQoS")) == (0, 1024, False)
            for number in range(1000):
                device.client.publish(
                    EVENTS,
                    b"x" * 200,
                    qos=1,
                    properties=properties(
                        PacketTypes.PUBLISH,
                        UserProperty=("n", str(number)),
                        MessageExpiryInterval=number + 1,
                    ),
                )
            acks = [await device.acks.get() for _ in range(1000)]
        assert [mid for mid, _ in acks] == sorted(mid for mid, _ in acks)
        assert {code for _, code in acks} == {0}
        messages = bench.router.messages
        assert [m.properties["n"] for m in messages] == [str(n) for n in range(1000)]
        assert [m.expiry_ms for m in messages] == [1000 * (n + 1) for n in range(1000)]

    on_uvloop(scenario)


def test_paho_is_reported_what_was_refused():
    """The codes reach the application, and the connection goes on."""

    async def scenario(bench: Bench) -> None:
        device = Paho(bench.port, "dev1")
        async with device.connected():
            device.client.publish("elsewhere", b"x", qos=1)
            device.client.publish(EVENTS + "a=1&", b"x", qos=1)
            bench.router.refusal = Refusal.LIMIT
            device.client.publish(EVENTS, b"x", qos=1)
            codes = [(await device.acks.get())[1] for _ in range(3)]
            assert codes == [0x90, 0x99, 0x97]
            device.client.publish(EVENTS, b"x" * 400_000, qos=1)
            assert await device.goodbyes.get() == 0x95

    on_uvloop(scenario)


def test_paho_module_takes_inputs():
    """A module with a stored session and a small receive maximum gets all, with properties."""

    async def scenario(bench: Bench) -> None:
        results = Results()
        module = Paho(bench.port, "hub/cam")
        options = {"SessionExpiryInterval": 600, "ReceiveMaximum": 3}
        async with module.connected(**options) as (present, _, _):
            assert not present
            module.client.subscribe(INPUTS, options=SubscribeOptions(qos=1, noLocal=True))
            assert await module.subacks.get() == [1]
        again = Paho(bench.port, "hub/cam")
        async with again.connected(clean=False, **options) as (present, _, _):
            assert present
            for number in range(50):
                message = Message("d7", None, "/messages/", {"n": str(number)}, {}, b"body")
                bench.listener.deliver("cam", "i", message, results.settle, expires_in_ms=9_000)
            await results.count(50)
            seen = [await again.messages.get() for _ in range(50)]
        assert results.kinds == [None] * 50
        assert [m.properties.UserProperty for m in seen] == [[("n", str(n))] for n in range(50)]
        assert {m.properties.MessageExpiryInterval for m in seen} == {9}

    on_uvloop(scenario)


def test_paho_leaves_a_will():
    """A will with properties is sent when its client ends without a word."""

    async def scenario(bench: Bench) -> None:
        will = properties(PacketTypes.WILLMESSAGE, UserProperty=("why", "cut"))
        device = Paho(bench.port, "dev1", will)
        async with device.connected():
            taker = Paho(bench.port, "dev1")
            async with taker.connected():
                assert await device.goodbyes.get() == 0x8E
                # It would connect again by itself, and take over in its turn.
                device.client.disconnect()
        assert bench.router.messages[0].properties == {"why": "cut", "iothub-MessageType": "Will"}

    on_uvloop(scenario)


def test_mosquitto_pub():
    """mosquitto_pub sends lines with user properties, expiry, content type and an alias."""

    async def scenario(bench: Bench) -> None:
        lines = b"".join(b"line %d\n" % n for n in range(200))
        code, output = await command(
            *("mosquitto_pub", "-V", "5", "-p", str(bench.port), "-i", "dev1", "-q", "1", "-l"),
            *("-t", EVENTS + "k=v", "-D", "publish", "user-property", "kind", "alarm"),
            *("-D", "publish", "message-expiry-interval", "77"),
            *("-D", "publish", "content-type", "text/plain"),
            *("-D", "publish", "topic-alias", "5"),
            *("-D", "connect", "receive-maximum", "20"),
            data=lines,
        )
        assert (code, output) == (0, b"")
        messages = bench.router.messages
        assert [m.body for m in messages] == lines.splitlines()
        assert all(m.properties == {"kind": "alarm", "k": "v"} for m in messages)
        assert {m.expiry_ms for m in messages} == {77_000}
        assert {m.system["contentType"] for m in messages} == {"text/plain"}

    on_uvloop(scenario)


def test_mosquitto_pub_is_refused():
    """Its user reads why a message was not taken."""

    async def scenario(bench: Bench) -> None:
        base = ("mosquitto_pub", "-V", "5", "-p", str(bench.port), "-m", "x", "-q", "1")
        _, output = await command(*base, "-i", "dev1", "-t", "elsewhere")
        assert b"not a topic to publish to" in output
        code, output = await command(*base, "-i", "dev1", "-u", "dev2", "-t", EVENTS)
        assert code != 0
        assert b"identifier not valid" in output.lower()

    on_uvloop(scenario)


def test_mosquitto_sub():
    """mosquitto_sub takes inputs with a small receive maximum; a foreign filter is refused."""

    async def scenario(bench: Bench) -> None:
        results = Results()

        def there(is_there: bool) -> None:
            for number in range(20 if is_there else 0):
                message = Message("d7", None, "/messages/", {"n": str(number)}, {}, b"body")
                bench.listener.deliver("cam", "i", message, results.settle, expires_in_ms=60_000)

        bench.listener.watch("cam", "i", there)
        base = ["mosquitto_sub", "-V", "5", "-p", str(bench.port), "-q", "1", "-W", "10"]
        code, output = await command(
            *(*base, "-i", "hub/cam", "-t", INPUTS, "-C", "20", "-F", "%P %E %p"),
            *("-D", "connect", "receive-maximum", "2"),
        )
        assert code == 0
        assert output.splitlines() == [b"n:%d 60 body" % n for n in range(20)]
        await results.count(20)
        _, output = await command(*base, "-i", "dev1", "-t", "a/b")
        assert b"Topic filter invalid" in output or b"denied" in output.lower()

    on_uvloop(scenario)
