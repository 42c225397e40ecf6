"""The simulated world around the hubs: devices that publish, a module that collects.

Owns MQTT clients as a user would write them, with QoS 1 over real sockets; knows nothing of the
hubs but their ports. Invariant: an id is noted as acknowledged only after its PUBACK.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import aiomqtt

from edgehub.lab.demo.scenario import COLLECTOR, COLLECTOR_INPUT, Kind

if TYPE_CHECKING:
    from random import Random

    from edgehub.clock import Clock
    from edgehub.lab.demo.ledger import Ledger
    from edgehub.lab.demo.scenario import Traffic

HOST: Final = "127.0.0.1"
PUBLISH_TIMEOUT_S: Final = 10.0
RECONNECT_S: Final = 1.0


class Device:
    """One simulated device: a message now and then, each waited for until its PUBACK.

    It pauses while its kind is not among those that are `sent`.
    """

    def __init__(
        self,
        device_id: str,
        traffic: Traffic,
        *,
        port: int,
        sent: set[Kind],
        ledger: Ledger,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.device_id = device_id
        self._traffic = traffic
        self._port = port
        self._sent = sent
        self._account = ledger.accounts[traffic.kind]
        self._clock = clock
        self._rng = rng
        self._number = 0

    async def run(self) -> None:
        """Send until cancelled; a lost connection is made again."""
        while True:
            try:
                async with aiomqtt.Client(HOST, self._port, identifier=self.device_id) as client:
                    _end_if_cancelled()
                    await self._send(client)
            except aiomqtt.MqttError:
                _end_if_cancelled()
                await self._clock.sleep(RECONNECT_S)

    async def _send(self, client: aiomqtt.Client) -> None:
        topic = f"devices/{self.device_id}/messages/events/kind={self._traffic.kind}"
        while True:
            # Between half and one and a half periods: devices do not march in step.
            await self._clock.sleep(self._traffic.period_s * self._rng.uniform(0.5, 1.5))
            if self._traffic.kind in self._sent:
                await self._publish(client, topic)
                _end_if_cancelled()

    async def _publish(self, client: aiomqtt.Client, topic: str) -> None:
        self._number += 1
        message_id = f"{self.device_id}-{self._number}"
        body = build_body(self._traffic.kind, message_id, self._traffic.body_bytes)
        self._account.publish(message_id, self._clock.monotonic())
        try:
            await client.publish(topic, body, qos=1, timeout=PUBLISH_TIMEOUT_S)
        except BaseException:
            self._account.abandon(message_id)
            raise
        self._account.acknowledge(message_id)


class Collector:
    """The parent's module that everything is routed to; counts each id once."""

    def __init__(self, hub_id: str, *, port: int, ledger: Ledger, clock: Clock) -> None:
        self._hub_id = hub_id
        self._port = port
        self._ledger = ledger
        self._clock = clock
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        """Receive until cancelled; a lost connection is made again."""
        name = f"{self._hub_id}/{COLLECTOR}"
        topic = f"devices/{self._hub_id}/modules/{COLLECTOR}/inputs/{COLLECTOR_INPUT}/#"
        while True:
            try:
                async with aiomqtt.Client(HOST, self._port, identifier=name) as client:
                    await client.subscribe(topic, qos=1)
                    _end_if_cancelled()
                    self.subscribed.set()
                    async for message in client.messages:
                        self._receive(message)
            except aiomqtt.MqttError:
                _end_if_cancelled()
                await self._clock.sleep(RECONNECT_S)

    def _receive(self, message: aiomqtt.Message) -> None:
        assert isinstance(message.payload, bytes)
        kind, message_id = parse_body(message.payload)
        self._ledger.deliver(kind, message_id, self._clock.monotonic())


def _end_if_cancelled() -> None:
    """Raise CancelledError if this task is to end.

    aiomqtt waits by `asyncio.wait_for`, and that of Python 3.11 forgets a cancel where what it
    waits for comes in the same turn of the loop.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def build_body(kind: Kind, message_id: str, size: int) -> bytes:
    """Write a body of `size` bytes that says which message it is."""
    body = json.dumps({"kind": kind, "id": message_id, "data": ""}).encode()
    return body[:-2] + b"x" * (size - len(body)) + body[-2:]


def parse_body(body: bytes) -> tuple[Kind, str]:
    """Read back what `build_body` wrote."""
    document = json.loads(body)
    return Kind(document["kind"]), document["id"]
