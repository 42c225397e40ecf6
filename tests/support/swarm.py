"""Devices on the air: each frame is heard by several hubs, by one later than by the other."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from edgehub.endpoints.device_packets import (
    Connack,
    PacketParser,
    Puback,
    build_connect,
    build_publish,
    publish_properties,
)

VERSION = 5


class Radio(asyncio.Protocol):
    """What carries the frames of one device to one hub: an MQTT connection under its id."""

    def __init__(self, device_id: str) -> None:
        self.device_id = device_id
        self._parser = PacketParser(version=VERSION)
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self._connected = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[int]] = {}

    async def connect(self, port: int) -> Radio:
        """Connect to a hub."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", port)
        await self._connected
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport
        transport.write(
            build_connect(
                version=VERSION,
                client_id=self.device_id,
                keep_alive_s=600,
                username=None,
                password=None,
            )
        )

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        for packet in self._parser.feed(data):
            if isinstance(packet, Connack):
                self._connected.set_result(packet.code)
            elif isinstance(packet, Puback) and packet.mid in self._waiting:
                self._waiting.pop(packet.mid).set_result(packet.code)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self.lost.set()
        for waiting in self._waiting.values():
            waiting.set_exception(ConnectionError("closed"))
        self._waiting.clear()

    async def frame(self, sequence: int, body: bytes = b"reading") -> int:
        """Send a frame; gives the code of its PUBACK."""
        mid = sequence % 65_535 + 1
        answer = self._waiting[mid] = asyncio.get_running_loop().create_future()
        topic = f"devices/{self.device_id}/messages/events/sequence={sequence}".encode()
        self._transport.write(
            build_publish(topic, mid, body, properties=publish_properties(version=VERSION))
        )
        return await answer

    async def close(self) -> None:
        """Disconnect."""
        if self._transport is not None:
            self._transport.abort()
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
