"""The MQTT client when its user is cancelled: a stop is never taken for a lost link.

The peer is a socket of this thread, so that its bytes and its end are in the kernel at a known
moment. Which turn of the loop sees them is then a matter of counting turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.endpoints.mqtt_link import LinkOptions, connect
from edgehub.mqtt.client import LinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgehub.mqtt.client import Client

pytestmark = pytest.mark.integration

CONNACK = b"\x20\x02\x00\x00"
SUBACK = b"\x90\x03\x00\x01\x01"
TURNS = range(8)


class Peer:
    """One accepted connection."""

    def __init__(self, server: socket.socket) -> None:
        self.port: int = server.getsockname()[1]
        self._server = server
        self._socket: socket.socket | None = None

    async def accept(self) -> None:
        """Take the connection and its CONNECT."""
        loop = asyncio.get_running_loop()
        self._socket, _ = await loop.sock_accept(self._server)
        self._socket.setblocking(False)
        await self.read()

    async def read(self) -> bytes:
        """Take one packet."""
        assert self._socket is not None
        return await asyncio.get_running_loop().sock_recv(self._socket, 4096)

    def send(self, data: bytes) -> None:
        """Put bytes into the kernel."""
        assert self._socket is not None
        self._socket.send(data)

    def reset(self) -> None:
        """End the connection by RST, once."""
        if self._socket is not None:
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._socket.close()
            self._socket = None


@pytest.fixture(name="peer")
def fixture_peer() -> Iterator[Peer]:
    """Return a listening peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        peer = Peer(server)
        yield peer
        peer.reset()


class Use:
    """A connection in use by a task, which may be waiting for something of its peer."""

    def __init__(self, peer: Peer, *, subscribes: bool = False) -> None:
        self.entered = asyncio.Event()
        self._port = peer.port
        self._subscribes = subscribes

    async def run(self) -> None:
        """Connect and stay; a link that ends is the caller's to know, a cancel too."""
        options = LinkOptions(host="127.0.0.1", port=self._port, client_id="a", clean_session=True)
        async with connect(
            options,
            clock=SystemClock(),
            on_confirmed=lambda _ids: None,
            on_messages=lambda _messages: None,
        ) as connection:
            self.entered.set()
            await self._stay(connection)

    async def _stay(self, connection: Client) -> None:
        if self._subscribes:
            await connection.subscribe(["a"])
        await asyncio.Event().wait()


async def _cancel_after(turns: int, task: asyncio.Task[None], happens: Callable[[], None]) -> None:
    """Let something happen at the peer, cancel some turns later, and look at the task's end."""
    happens()
    for _ in range(turns):
        await asyncio.sleep(0)
    was_running = task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done, "cancelled, and goes on"
    assert task.cancelled() or not was_running, task.exception()
    if not task.cancelled():
        assert isinstance(task.exception(), LinkError)


@pytest.mark.parametrize("turns", TURNS)
async def test_cancelled_while_the_peer_goes(peer: Peer, turns: int) -> None:
    """In use, the end of the connection not yet seen: the farewell finds it, the cancel holds."""
    use = Use(peer)
    task = asyncio.create_task(use.run())
    await peer.accept()
    peer.send(CONNACK)
    await use.entered.wait()
    await _cancel_after(turns, task, peer.reset)


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("answer", [CONNACK, b"\x20\x02\x00\x05", b""], ids=["yes", "no", "gone"])
async def test_cancelled_while_connack_comes(peer: Peer, turns: int, answer: bytes) -> None:
    """Whether it is a welcome, a refusal or a close."""
    task = asyncio.create_task(Use(peer).run())
    await peer.accept()
    happens = (lambda: peer.send(answer)) if answer else peer.reset
    await _cancel_after(turns, task, happens)


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("answer", [SUBACK, b""], ids=["granted", "gone"])
async def test_cancelled_while_suback_comes(peer: Peer, turns: int, answer: bytes) -> None:
    """Likewise, with a subscription under way."""
    use = Use(peer, subscribes=True)
    task = asyncio.create_task(use.run())
    await peer.accept()
    peer.send(CONNACK)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await peer.read()
    happens = (lambda: peer.send(answer)) if answer else peer.reset
    await _cancel_after(turns, task, happens)
