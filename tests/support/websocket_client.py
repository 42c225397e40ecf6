"""A WebSocket client that sends whatever frames a test wants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

if TYPE_CHECKING:
    import ssl

    from websockets.frames import Close


class WebSocketClient:
    """A connection after its handshake, or after the refusal of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        protocol: ClientProtocol,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self.protocol = protocol
        self.response: Response | None = None
        self._frames: list[Frame] = []

    @classmethod
    async def open(
        cls,
        port: int,
        path: str = "/mqtt",
        *,
        subprotocol: str | None = "mqtt",
        headers: dict[str, str] | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> WebSocketClient:
        """Connect on loopback and shake hands; `response` is what the server said."""
        streams = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        offered = None if subprotocol is None else [Subprotocol(subprotocol)]
        uri = parse_uri(f"{'wss' if tls else 'ws'}://{host}:{port}{path}")
        client = cls(*streams, ClientProtocol(uri, subprotocols=offered))
        request = client.protocol.connect()
        request.headers.update(Headers(headers or {}))
        client.protocol.send_request(request)
        await client.flushed()
        await client._read_until(lambda: client.response is not None)
        return client

    def send(self, *frames: bytes, opcode: Opcode = Opcode.BINARY) -> None:
        """Send each as a message, in one write."""
        for data in frames:
            self.protocol.send_frame(Frame(opcode, data))
        self.flush()

    def send_fragments(self, *fragments: bytes) -> None:
        """Send one message in pieces."""
        for number, data in enumerate(fragments, 1):
            opcode = Opcode.BINARY if number == 1 else Opcode.CONT
            self.protocol.send_frame(Frame(opcode, data, fin=number == len(fragments)))
            self.flush()

    async def read(self) -> bytes:
        """Return the next message of the server."""
        frame = await self.read_frame()
        assert frame.opcode in (Opcode.BINARY, Opcode.TEXT), frame
        return bytes(frame.data)

    async def read_frame(self) -> Frame:
        """Return the next frame of the server."""
        await self._read_until(lambda: bool(self._frames))
        return self._frames.pop(0)

    async def closed(self) -> Close | None:
        """Wait until the server closes; returns its close frame, None = there was none."""
        await self._read_until(self._reader.at_eof)
        return self.protocol.close_rcvd

    def flush(self) -> None:
        """Write what the protocol has to send."""
        self._writer.write(b"".join(self.protocol.data_to_send()))

    async def flushed(self) -> None:
        """Write, and wait until the kernel has taken it."""
        self.flush()
        await self._writer.drain()

    def stop_reading(self) -> None:
        """Let what the server sends pile up."""
        self._writer.transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        self._writer.transport.resume_reading()

    async def close(self) -> None:
        """Close the socket without a word."""
        self._writer.close()

    async def _read_until(self, is_done) -> None:
        while not is_done():
            data = await self._reader.read(65_536)
            if data:
                self.protocol.receive_data(data)
            else:
                self.protocol.receive_eof()
            for event in self.protocol.events_received():
                if isinstance(event, Response):
                    self.response = event
                else:
                    self._frames.append(event)
            if not data:
                assert is_done() or self._reader.at_eof()
                break
