"""A subscriber at a broker, on the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aiomqtt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Subscriber:
    """Records topics and bodies in order of arrival."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[str, bytes]] = []
        self.times: list[float] = []
        self._changed = asyncio.Event()

    @property
    def bodies(self) -> list[bytes]:
        """Return the bodies in order of arrival."""
        return [body for _, body in self.arrivals]

    async def wait(self, count: int, timeout_s: float = 10) -> None:
        """Wait until that many messages came."""
        async with asyncio.timeout(timeout_s):
            while len(self.arrivals) < count:
                self._changed.clear()
                await self._changed.wait()

    async def collect(self, client: aiomqtt.Client) -> None:
        """Record until cancelled."""
        async for message in client.messages:
            self.note(message.topic.value, bytes(message.payload))

    def note(self, topic: str, body: bytes) -> None:
        """Record a message."""
        self.arrivals.append((topic, body))
        self.times.append(asyncio.get_running_loop().time())
        self._changed.set()


@contextlib.asynccontextmanager
async def subscriber(port: int, topic: str = "#") -> AsyncIterator[Subscriber]:
    """Subscribe with QoS 1 for the length of the block."""
    taker = Subscriber()
    async with aiomqtt.Client("127.0.0.1", port, identifier="subscriber") as client:
        await client.subscribe(topic, qos=1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(taker.collect(client))
            yield taker
            task.cancel()
