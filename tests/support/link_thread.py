"""A thin, breakable link with a thread and loop of its own, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Self

import uvloop

from edgehub.clock import SystemClock
from edgehub.lab.demo.thin_link import ThinLink

if TYPE_CHECKING:
    from types import TracebackType

FAST_BIT_S = 1e9


class LinkThread:
    """`ThinLink` towards a port on loopback; the default rate is that of a cable."""

    def __init__(
        self,
        target_port: int,
        *,
        bit_s: float = FAST_BIT_S,
        down_bit_s: float | None = None,
        delay_s: float = 0,
    ) -> None:
        self.link = ThinLink(
            "127.0.0.1",
            target_port,
            up_bit_s=bit_s,
            down_bit_s=down_bit_s or bit_s,
            delay_s=delay_s,
            clock=SystemClock(),
        )
        self._loop = uvloop.new_event_loop()
        self._open = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="thin link")
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._open.wait(5)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(5)
        self._loop.close()

    def cut(self) -> None:
        """Take the link down."""
        self._loop.call_soon_threadsafe(self.link.cut)

    def restore(self) -> None:
        """Bring it back."""
        self._loop.call_soon_threadsafe(self.link.restore)

    def change_rate(self, *, up_bit_s: float, down_bit_s: float) -> None:
        """Go on at another rate."""
        self._loop.call_soon_threadsafe(self.link.up.change_rate, up_bit_s)
        self._loop.call_soon_threadsafe(self.link.down.change_rate, down_bit_s)

    @property
    def bytes_passed(self) -> int:
        """Return the bytes carried upward so far."""
        return self.link.up.bytes_passed

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        await self.link.open()
        self.port = self.link.port
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.link.run(), name="link")
            self._open.set()
            await self._ended.wait()
            task.cancel()
        await self.link.close()
