"""A peer that resets the connection, on both event loops: the endpoint hears of it at once."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest
import uvloop

from edgehub.clock import SystemClock
from edgehub.endpoints.mqtt_link import LinkOptions, connect

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

CONNACK = b"\x20\x02\x00\x00"
PUBACK = b"\x40\x02\x00\x01"
RESET = struct.pack("ii", 1, 0)


def _serve(server: socket.socket, go: threading.Event, last: bytes) -> None:
    peer, _ = server.accept()
    with peer:
        peer.recv(4096)
        peer.sendall(CONNACK)
        assert go.wait(5)
        peer.sendall(last)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("last", [b"", PUBACK])
def test_a_reset_ends_the_connection_at_once(
    loop: Callable[[], asyncio.AbstractEventLoop], last: bytes
) -> None:
    """With or without a last confirmation."""
    go = threading.Event()

    async def live(port: int) -> str:
        options = LinkOptions(host="127.0.0.1", port=port, client_id="hub-1")
        async with connect(
            options,
            clock=SystemClock(),
            on_confirmed=lambda _: None,
            on_messages=lambda _: None,
        ) as connection:
            connection.begin()
            go.set()
            async with asyncio.timeout(3):
                return await connection.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, go, last))
        thread.start()
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(live(server.getsockname()[1])) in {
                "Connection reset by peer",
                "closed by the peer",
            }
        thread.join(5)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_reading_goes_on_after_a_pause(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """What comes during a pause is read after it, the end of the connection too."""
    go = threading.Event()
    confirmed: list[int] = []

    async def live(port: int) -> None:
        options = LinkOptions(host="127.0.0.1", port=port, client_id="hub-1")
        async with connect(
            options,
            clock=SystemClock(),
            on_confirmed=confirmed.extend,
            on_messages=lambda _: None,
        ) as connection:
            connection.begin()
            connection.pause_reading()
            go.set()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await connection.wait_closed()
            assert confirmed == []
            connection.resume_reading()
            async with asyncio.timeout(3):
                await connection.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, go, PUBACK))
        thread.start()
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(live(server.getsockname()[1]))
        thread.join(5)
