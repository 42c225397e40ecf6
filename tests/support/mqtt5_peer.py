"""A scripted server of MQTT 5, on the packets of another implementation: answers when told to."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import mqtt5

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


class Mqtt5Peer:
    """One listening peer.

    Attributes:
        speaks_5: False = it closes over a CONNECT of MQTT 5, and takes one of 3.1.1.
        levels: Protocol levels of the CONNECTs that came.
        published: PUBLISHes of MQTT 5, in order of arrival.
        unanswered: Those of them that `answer` was not called for.
        unanswered_most: The largest number of these.
        said: Further fields of CONNACK.
    """

    def __init__(self, *, speaks_5: bool, said: dict[str, Any]) -> None:
        self.speaks_5 = speaks_5
        self.levels: list[int] = []
        self.published: list[mqtt5.PublishPacket] = []
        self.unanswered: list[mqtt5.PublishPacket] = []
        self.unanswered_most = 0
        self.said = said
        self.port = 0
        self._writer: asyncio.StreamWriter | None = None
        self._changed = asyncio.Event()

    def answer(self, code: int = 0, senders: Sequence[str] = ()) -> None:
        """Answer the oldest PUBLISH."""
        oldest = self.unanswered.pop(0)
        names = b"".join(
            b"\x26\x00\x0erefused_sender" + len(name).to_bytes(2, "big") + name.encode()
            for name in senders
        )
        assert oldest.packet_id is not None
        assert len(names) < 100
        body = oldest.packet_id.to_bytes(2, "big") + bytes((code, len(names))) + names
        self.send(bytes((0x40, len(body))) + body)

    def send(self, data: bytes) -> None:
        """Write raw bytes to the client."""
        assert self._writer is not None
        self._writer.write(data)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition on this record holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self._writer = writer
        self.unanswered = []
        rest = b""
        # Closed also when a test has ended, which cancels it.
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                rest += data
                if b"MQTT" in rest[:8]:
                    self.levels.append(rest[8])
                    self._changed.set()
                    if rest[8] != 5:
                        writer.write(b"\x20\x02\x00\x00")
                        rest = b""
                        continue
                    if not self.speaks_5:
                        break
                rest = rest[self._take(rest) :]

    def _take(self, data: bytes) -> int:
        taken = 0
        while len(data) - taken >= 2:
            try:
                packet, size = mqtt5.read(memoryview(data)[taken:])
            except IndexError:
                break  # incomplete
            taken += size
            if isinstance(packet, mqtt5.ConnectPacket):
                self.send(mqtt5.ConnAckPacket(**self.said).write())
            elif isinstance(packet, mqtt5.PublishPacket):
                self.published.append(packet)
                self.unanswered.append(packet)
                self.unanswered_most = max(self.unanswered_most, len(self.unanswered))
        self._changed.set()
        return taken

    def cut(self) -> None:
        """Close the connection at once."""
        if self._writer is not None:
            self._writer.transport.abort()


@contextlib.asynccontextmanager
async def mqtt5_peer(*, speaks_5: bool = True, **said: Any) -> AsyncIterator[Mqtt5Peer]:
    """Listen on a free port of loopback for the length of the block."""
    peer = Mqtt5Peer(speaks_5=speaks_5, said=said)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        peer.cut()
        await server.wait_closed()
