"""Real clients of both protocol versions talk to each other through the local topic space."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import paho.mqtt.client as paho
import pytest
import uvloop

from tests.support.mqtt_listener import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration

COUNT = 2000


class Local:
    """A connected paho client with its own thread, and what it was sent."""

    def __init__(self, client_id: str, protocol: paho.MQTTProtocolVersion) -> None:
        self.loop = asyncio.get_running_loop()
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol
        )
        self.got: asyncio.Queue[tuple[str, bytes, bool]] = asyncio.Queue()
        self.connected = asyncio.Event()
        self.subscribed = asyncio.Event()
        self.paho.on_connect = lambda *_: self._call(self.connected.set)
        self.paho.on_subscribe = lambda *_: self._call(self.subscribed.set)
        self.paho.on_message = lambda _c, _d, m: self._call(
            self.got.put_nowait, (m.topic, m.payload, m.retain)
        )

    def _call(self, function, *arguments) -> None:
        self.loop.call_soon_threadsafe(function, *arguments)


@contextlib.asynccontextmanager
async def local(
    port: int, client_id: str, protocol: paho.MQTTProtocolVersion
) -> AsyncIterator[Local]:
    """Connect for the length of a block."""
    client = Local(client_id, protocol)
    client.paho.connect_async("127.0.0.1", port)
    client.paho.loop_start()
    try:
        await client.connected.wait()
        yield client
    finally:
        client.paho.disconnect()
        await asyncio.to_thread(client.paho.loop_stop)


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [(paho.MQTTv311, paho.MQTTv5), (paho.MQTTv5, paho.MQTTv311)],
)
def test_paho_to_paho(sender: paho.MQTTProtocolVersion, receiver: paho.MQTTProtocolVersion) -> None:
    """Thousands of messages arrive once, in order, across protocol versions; the last stays."""

    async def scenario() -> None:
        async with (
            running() as bench,
            local(bench.port, "receiver", receiver) as there,
            local(bench.port, "sender", sender) as here,
        ):
            there.paho.subscribe("te/+/m", qos=1)
            await there.subscribed.wait()
            for number in range(COUNT):
                here.paho.publish("te/d/m", str(number), qos=1, retain=number == COUNT - 1)
            bodies = [(await there.got.get())[1] for _ in range(COUNT)]
            assert bodies == [str(number).encode() for number in range(COUNT)]
            here.paho.subscribe("te/#", qos=1)
            assert await here.got.get() == ("te/d/m", str(COUNT - 1).encode(), True)

    uvloop.run(scenario())
