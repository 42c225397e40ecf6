"""WebSocket below a protocol that takes texts; streams are tested with the MQTT listener."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from websockets.frames import CloseCode, Frame, Opcode

from edgehub.clock import SystemClock
from edgehub.heads.websocket import WebSocketConnection, WebSocketOptions
from tests.support.websocket_client import WebSocketClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.integration


class Echo(asyncio.Protocol):
    """Answers each text with the path of the request and the text."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer."""
        self.transport.write(self.transport.get_extra_info("path").encode() + b" " + data)


@asynccontextmanager
async def echoing(refused: list[str]) -> AsyncIterator[int]:
    """Run a server of texts; yields its port."""
    options = WebSocketOptions(
        check=lambda request: (HTTPStatus.NOT_FOUND, "no") if request.path == "/no" else None,
        refused=lambda _, reason: refused.append(reason),
        message_bytes_max=100,
        is_text=True,
    )
    server = await asyncio.get_running_loop().create_server(
        lambda: WebSocketConnection(Echo(), options, SystemClock()), "127.0.0.1", 0
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_texts():
    """Each text arrives whole, however it is cut, and so does each answer."""
    refused: list[str] = []
    async with echoing(refused) as port:
        client = await WebSocketClient.open(port, "/router-info", subprotocol=None)
        client.send(b"one", b"two", opcode=Opcode.TEXT)
        client.protocol.send_frame(Frame(Opcode.TEXT, b"th", fin=False))
        client.protocol.send_frame(Frame(Opcode.PING, b""))
        client.protocol.send_frame(Frame(Opcode.CONT, b"ree"))
        client.flush()
        frames = [await client.read_frame() for _ in range(4)]
        assert [bytes(frame.data) for frame in frames if frame.opcode is Opcode.TEXT] == [
            b"/router-info one",
            b"/router-info two",
            b"/router-info three",
        ]
        await client.close()
        client = await WebSocketClient.open(port, "/no", subprotocol=None)
        assert client.response.status_code == 404
        await client.closed()
        await client.close()
    assert refused == ["no"]


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Frame(Opcode.BINARY, b"x")], CloseCode.UNSUPPORTED_DATA),
        ([Frame(Opcode.TEXT, bytes(101))], CloseCode.MESSAGE_TOO_BIG),
        (
            [Frame(Opcode.TEXT, bytes(60), fin=False), Frame(Opcode.CONT, bytes(60))],
            CloseCode.MESSAGE_TOO_BIG,
        ),
    ],
    ids=["binary", "large", "large in pieces"],
)
async def test_no_text(frames, code):
    """What is no text of this size closes the connection and reaches nobody."""
    async with echoing([]) as port:
        client = await WebSocketClient.open(port, "/", subprotocol=None)
        for frame in frames:
            client.protocol.send_frame(frame)
        client.flush()
        assert (await client.read_frame()).opcode is Opcode.CLOSE
        assert (await client.closed()).code == code
        await client.close()
