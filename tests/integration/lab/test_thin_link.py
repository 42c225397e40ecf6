"""The thin link with real sockets: rate, outage, and that it hides no queue."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.lab.demo.thin_link import ThinLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration

RATE_BIT_S = 256_000
BYTES_S = RATE_BIT_S // 8


class Target:
    """A server that counts what it gets and answers each read with two bytes."""

    def __init__(self) -> None:
        self.received = 0
        self.ended = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def serve(self) -> int:
        """Listen; gives the port."""
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.received += len(data)
                writer.write(b"ok")
        except ConnectionError:
            pass
        self.ended.set()
        writer.close()


@asynccontextmanager
async def a_link(target: Target) -> AsyncIterator[ThinLink]:
    """Open a link to the target and serve it."""
    link = ThinLink(
        "127.0.0.1",
        await target.serve(),
        up_bit_s=RATE_BIT_S,
        down_bit_s=RATE_BIT_S,
        clock=SystemClock(),
    )
    await link.open()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(link.run())
        yield link
        task.cancel()
    await link.close()
    await target.close()


async def test_bytes_pass_at_the_rate_and_wait_at_the_sender():
    """A flood arrives at the rate; the proxy and its sockets hold less than 4 KiB of it."""
    target, clock = Target(), SystemClock()
    async with a_link(target) as link:
        _, writer = await asyncio.open_connection("127.0.0.1", link.port)
        began_s = clock.monotonic()
        writer.write(b"x" * 20 * BYTES_S)
        await clock.sleep(1.0)
        passed = (clock.monotonic() - began_s) * BYTES_S
        assert 0.85 * passed < target.received <= 1.08 * passed
        assert link.up.bytes_passed - target.received < 4096
        writer.transport.abort()


async def test_answers_come_back():
    """The way down works, and the end of one side reaches the other behind the last bytes."""
    target = Target()
    async with a_link(target) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"hello")
        assert await reader.readexactly(2) == b"ok"
        writer.write_eof()
        assert await reader.read() == b""
        await target.ended.wait()
        writer.close()


async def test_a_cut_ends_connections_and_refuses_new_ones():
    """After restore new connections pass again."""
    target = Target()
    async with a_link(target) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"hello")
        await reader.readexactly(2)
        link.cut()
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        reader_2, writer_2 = await asyncio.open_connection("127.0.0.1", link.port)
        with pytest.raises(ConnectionError):
            await reader_2.readexactly(1)
        link.restore()
        reader_3, writer_3 = await asyncio.open_connection("127.0.0.1", link.port)
        writer_3.write(b"again")
        assert await reader_3.readexactly(2) == b"ok"
        for each in (writer, writer_2, writer_3):
            each.transport.abort()


async def test_a_target_that_is_away_refuses():
    """Nobody listens behind the link: the connection is reset, the link goes on."""
    target = Target()
    async with a_link(target) as link:
        await target.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        writer.transport.abort()
        await target.serve()
