"""Devices on the air: each frame is heard by several hubs, by one later than by the other."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgehub.clock import SystemClock
from edgehub.endpoints.mqtt_link import LinkOptions, open_client
from edgehub.mqtt.packets import publish

if TYPE_CHECKING:
    from edgehub.mqtt.client_packets import RefusedPublish

NO_PROPERTIES = b"\0"


class Radio:
    """What carries the frames of one device to one hub: an MQTT connection under its id."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self.lost = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[int]] = {}

    async def connect(self, port: int) -> Radio:
        """Connect to a hub."""
        self._client = await open_client(
            LinkOptions(
                host="127.0.0.1", port=port, client_id=self.device_id, keep_alive_s=600, level=5
            ),
            clock=SystemClock(),
            on_confirmed=self._confirmed,
            on_refused=self._refused,
            on_messages=self._client_acknowledge,
            on_closed=self._closed,
        )
        return self

    def _client_acknowledge(self, messages) -> None:
        self._client.acknowledge_all(messages)

    def _confirmed(self, packet_ids: list[int]) -> None:
        for packet_id in packet_ids:
            self._waiting.pop(packet_id).set_result(0)

    def _refused(self, refused: list[RefusedPublish]) -> None:
        for each in refused:
            self._waiting.pop(each.packet_id).set_result(each.code)

    def _closed(self, _reason: str) -> None:
        self.lost.set()
        for waiting in self._waiting.values():
            waiting.set_exception(ConnectionError("closed"))
        self._waiting.clear()

    async def frame(self, sequence: int, body: bytes = b"reading") -> int:
        """Send a frame; gives the code of its PUBACK."""
        packet_id = sequence % 65_535 + 1
        answer = self._waiting[packet_id] = asyncio.get_running_loop().create_future()
        topic = f"devices/{self.device_id}/messages/events/sequence={sequence}".encode()
        self._client.write(publish(topic, body, packet_id, properties=NO_PROPERTIES))
        return await answer

    async def close(self) -> None:
        """Disconnect."""
        self._client.abort("out of reach")
        await self.lost.wait()


@dataclass
class Heard:
    """What became of the frames.

    Attributes:
        frames: Sent on the air.
        refused: Answers with an error.
        slowest_s: The longest until all hubs had answered a frame.
    """

    frames: int = 0
    refused: int = 0
    slowest_s: list[float] = field(default_factory=list)


class Swarm:
    """Devices that several hubs hear.

    Args:
        count: How many.
        ports: Of the hubs' listeners.
        spread_s: How much later the last hub hears a frame than the first, at most.
        seed: For who is first.
    """

    def __init__(
        self, count: int, ports: list[int], *, spread_s: float = 0.1, seed: int = 7
    ) -> None:
        self.names = [f"dev-{number:04}" for number in range(count)]
        self._ports = ports
        self._spread_s = spread_s
        self._rng = random.Random(seed)
        self._radios: dict[str, list[Radio]] = {}
        self.heard = Heard()

    async def connect(self) -> None:
        """Bring all devices into reach of all hubs."""
        for name in self.names:
            self._radios[name] = [await Radio(name).connect(port) for port in self._ports]

    async def connect_all(self) -> Radio:
        """Bring the devices into reach, and give what carries the first one's frames."""
        await self.connect()
        return self._radios[self.names[0]][0]

    async def round(self, sequence: int, *, within_s: float) -> None:
        """Have every device send one frame at some moment of `within_s`."""
        async with asyncio.TaskGroup() as group:
            for name in self.names:
                group.create_task(self._send(name, sequence, self._rng.uniform(0, within_s)))

    async def _send(self, name: str, sequence: int, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(after_s)
        begun = loop.time()
        self.heard.frames += 1
        order = list(self._radios[name])
        self._rng.shuffle(order)
        async with asyncio.TaskGroup() as group:
            for place, radio in enumerate(order):
                late_s = place * self._rng.uniform(0, self._spread_s)
                group.create_task(self._hear(radio, sequence, late_s))
        self.heard.slowest_s.append(loop.time() - begun)

    async def _hear(self, radio: Radio, sequence: int, late_s: float) -> None:
        await asyncio.sleep(late_s)
        if radio.lost.is_set():
            return
        try:
            code = await radio.frame(sequence)
        except ConnectionError:
            return  # that hub is gone
        self.heard.refused += code >= 0x80

    async def close(self) -> None:
        """Take all devices out of reach."""
        for radios in self._radios.values():
            for radio in radios:
                await radio.close()
