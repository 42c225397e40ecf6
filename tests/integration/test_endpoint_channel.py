"""The channel on a real socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from edgehub.endpoints.mqtt_channel import Channel, Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.mqtt.client_decoder import Incoming

pytestmark = pytest.mark.integration


class Pair:
    """A channel, the other end, and the packet ids that came."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.far = far
        self.mids: list[int] = []
        self.messages: list[Incoming] = []
        receiver = Receiver(self.mids.extend, self.messages.extend)
        self.channel = Channel(near, asyncio.get_running_loop(), receiver)


@contextlib.contextmanager
def a_pair() -> Iterator[Pair]:
    """Connect two sockets on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    near.setblocking(False)
    far.setblocking(False)
    pair = Pair(near, far)
    try:
        yield pair
    finally:
        pair.channel.close()
        far.close()


async def test_bytes_beyond_the_socket_wait_and_are_counted() -> None:
    """What a full socket does not take leaves later, in order, and shows as unsent."""
    loop = asyncio.get_running_loop()
    with a_pair() as pair:
        data = bytes(range(256)) * 40_000
        pair.channel.write(data)
        pair.channel.write(b"end")
        assert pair.channel.send(b"ping") == 4
        assert 0 < pair.channel.unsent_bytes() <= len(data) + 7
        received = bytearray()
        while len(received) < len(data) + 7:
            received += await loop.sock_recv(pair.far, 1 << 20)
        assert received == data + b"endping"
        assert pair.channel.unsent_bytes() == 0


async def test_pubacks_go_one_way_and_other_packets_the_other() -> None:
    """Confirmations reach the callback, the rest can be read byte by byte."""
    loop = asyncio.get_running_loop()
    with a_pair() as pair:
        with pytest.raises(BlockingIOError):
            pair.channel.recv(1)
        await loop.sock_sendall(pair.far, b"\x40\x02\x00\x07\xd0\x00\x40\x02\x01\x00")
        assert [pair.channel.recv(1), pair.channel.recv(1)] == [b"\xd0", b"\x00"]
        assert pair.channel.pending() == 0
        await asyncio.sleep(0)
        assert pair.mids == [7, 256]


async def test_messages_are_taken_out_too() -> None:
    """A PUBLISH reaches its callback, paho reads what is around it."""
    loop = asyncio.get_running_loop()
    with a_pair() as pair:
        await loop.sock_sendall(pair.far, b"\xd0\x00\x33\x06\x00\x01t\x00\x09!\xd0\x00")
        assert pair.channel.recv(4) == b"\xd0\x00\xd0\x00"
        await asyncio.sleep(0)
        (message,) = pair.messages
        assert (message.topic, message.body, message.mid) == ("t", b"!", 9)
        assert (message.qos, message.retain, message.again) == (1, True, False)


async def test_the_end_of_the_stream_has_a_reason() -> None:
    """A close by the peer reads as the end and says so."""
    with a_pair() as pair:
        pair.far.close()
        assert pair.channel.recv(1) == b""
        assert pair.channel.end_reason == "closed by the peer"


async def test_writing_to_a_reset_connection_raises_nothing() -> None:
    """The reader reports the end; the writer only remembers why."""
    with a_pair() as pair:
        pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        pair.far.close()
        pair.channel.write(b"x" * 10)
        pair.channel.write(b"x" * 10)
        assert pair.channel.end_reason in {"Connection reset by peer", "Broken pipe"}


async def test_a_closed_channel_refuses_what_paho_asks() -> None:
    """Closing twice is harmless; afterwards there is no descriptor and nothing unsent."""
    with a_pair() as pair:
        pair.channel.write(b"x" * 10_000_000)
        pair.channel.close()
        pair.channel.close()
        assert not pair.channel.is_open
        assert pair.channel.fileno() == -1
        assert pair.channel.unsent_bytes() == 0
        with pytest.raises(ConnectionError):
            pair.channel.send(b"x")
        with pytest.raises(ConnectionError):
            pair.channel.recv(1)
