"""A scripted MQTT 3.1.1 broker: records, delays, refuses, goes silent or cuts, as a test says.

As one that has never heard of MQTT 5 it closes over such a CONNECT, and records nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tests.support.mqtt_wire import packet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CONNECT_5 = b"\0\4MQTT\5"
CONNECT, PUBLISH, PUBACK, SUBSCRIBE, PINGREQ, DISCONNECT = 1, 3, 4, 8, 12, 14


class MqttPeer:
    """One listening peer.

    Attributes:
        connack: Return code of CONNACK, None = never answer, -1 = close instead.
        after_connack: Bytes that leave in one piece with CONNACK.
        acknowledge: Whether PUBLISHes are answered at once.
        published: Bodies in order of arrival, over all connections.
        acknowledged: Packet ids of the hub's own PUBACKs.
        unconfirmed_most: Largest number of PUBLISHes without PUBACK on one connection.
        forbidden: Topic filters over which it closes the connection.
        granted: Topic filters that it granted on the newest connection.
    """

    def __init__(self) -> None:
        self.connack: int | None = 0
        self.after_connack = b""
        self.acknowledge = True
        self.published: list[bytes] = []
        self.topics: list[str] = []
        self.connects = 0
        self.subscribes = 0
        self.unconfirmed: list[int] = []
        self.unconfirmed_most = 0
        self.forbidden: set[str] = set()
        self.granted: set[str] = set()
        self.acknowledged: list[int] = []
        self.port = 0
        self._fatal: bytes | None = None
        self._reset: bool | None = None
        self._break_in: tuple[int, int] | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Return whether a hub is connected."""
        return bool(self._writers)

    def confirm(self, count: int | None = None) -> None:
        """Send the PUBACKs of the oldest unconfirmed PUBLISHes, of all by default."""
        mids = self.unconfirmed[:count]
        del self.unconfirmed[:count]
        for writer in self._writers:
            writer.write(b"".join(b"\x40\x02" + mid.to_bytes(2, "big") for mid in mids))

    def close_over(self, body: bytes) -> None:
        """Close the connection over a PUBLISH with this body from now on."""
        self._fatal = body
        self._reset = None

    def hold_back(self, *, reset: bool) -> None:
        """Close the connection after the first bytes of a PUBLISH, by FIN or by RST."""
        self._reset = reset

    def break_in(self, after: int, size: int) -> None:
        """Reset the connection, once, when `size` bytes have come behind PUBLISH number `after`."""
        self._break_in = (after, size)

    def send(self, data: bytes) -> None:
        """Write raw bytes to the hub."""
        for writer in self._writers:
            writer.write(data)

    def cut(self) -> None:
        """Close all connections at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition on this record holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self._writers.add(writer)
        self.unconfirmed = []
        self.granted = set()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                if self._reset is not None and self.connects:
                    await self._close_early(reader, writer)
                    break
                if self._break_in is not None and len(self.published) == self._break_in[0]:
                    await reader.readexactly(self._break_in[1])
                    self._break_in = None
                    writer.transport.abort()
                    break
                kind, flags, payload = await read_packet(reader)
                if kind == CONNECT and payload.startswith(CONNECT_5):
                    break
                if kind == PUBLISH and self._fatal is not None and payload.endswith(self._fatal):
                    break
                if not self._answer(kind, flags, payload, writer):
                    break
                self._changed.set()
        self._writers.discard(writer)
        writer.close()
        self._changed.set()

    async def _close_early(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readexactly(100)
        if self._reset:
            writer.transport.abort()
        else:
            # Reads no more, so that the kernels' buffers fill, and says that it is done.
            writer.write_eof()
            await asyncio.sleep(0)

    def _answer(self, kind: int, flags: int, payload: bytes, writer: asyncio.StreamWriter) -> bool:
        if kind == CONNECT:
            self.connects += 1
            if self.connack == -1:
                return False
            if self.connack is not None:
                writer.write(bytes([0x20, 2, 0, self.connack]) + self.after_connack)
        elif kind == PUBLISH:
            assert flags & 0x06 == 0x02, "QoS 1 only"
            self._take_publish(payload, writer)
        elif kind == PUBACK:
            self.acknowledged.append(int.from_bytes(payload, "big"))
        elif kind == SUBSCRIBE:
            self.subscribes += 1
            filters = _filters(payload[2:])
            if not self.forbidden.isdisjoint(filters):
                return False
            self.granted.update(filters)
            codes = b"\x01" * len(filters)
            writer.write(packet(0x90, payload[:2] + codes))
        elif kind == PINGREQ:
            writer.write(b"\xd0\x00")
        return kind != DISCONNECT

    def _take_publish(self, payload: bytes, writer: asyncio.StreamWriter) -> None:
        end = 2 + int.from_bytes(payload[:2], "big")
        self.topics.append(payload[2:end].decode())
        self.published.append(payload[end + 2 :])
        mid = int.from_bytes(payload[end : end + 2], "big")
        if self.acknowledge:
            writer.write(b"\x40\x02" + payload[end : end + 2])
        else:
            assert mid not in self.unconfirmed
            self.unconfirmed.append(mid)
            self.unconfirmed_most = max(self.unconfirmed_most, len(self.unconfirmed))


def _filters(payload: bytes) -> list[str]:
    found: list[str] = []
    while payload:
        end = 2 + int.from_bytes(payload[:2], "big")
        found.append(payload[2:end].decode())
        payload = payload[end + 1 :]
    return found


async def read_packet(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Read a packet; gives its type, its flags, and what follows its length."""
    first = (await reader.readexactly(1))[0]
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    return first >> 4, first & 0x0F, await reader.readexactly(length)


@contextlib.asynccontextmanager
async def mqtt_peer() -> AsyncIterator[MqttPeer]:
    """Listen on a free port of loopback for the length of the block."""
    peer = MqttPeer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        peer.cut()
        await server.wait_closed()
        await peer.until(lambda: not peer.is_connected)
