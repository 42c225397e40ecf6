"""MQTT 3.1.1 as a client writes and reads it, by hand: for what no client library would send."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

CONNACK = 0x20
PUBACK = 0x40
PUBREC = 0x50
PUBREL = 0x62
PUBCOMP = 0x70
SUBACK = 0x90
UNSUBACK = 0xB0
PINGRESP = 0xD0
PINGREQ = b"\xc0\x00"
DISCONNECT = b"\xe0\x00"


def length(count: int) -> bytes:
    """Remaining length, built with divisions as in the specification's pseudo code."""
    digits = bytearray()
    while True:
        count, digit = divmod(count, 128)
        digits.append(digit + 128 if count else digit)
        if not count:
            return bytes(digits)


def packet(head: int, body: bytes) -> bytes:
    """Any packet."""
    return bytes([head]) + length(len(body)) + body


def field(value: bytes | str) -> bytes:
    """A field with its length in front."""
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def connect(
    client_id: str = "dev1",
    *,
    clean: bool = True,
    keep_alive_s: int = 60,
    user: str | None = None,
    password: bytes | None = None,
    will: tuple[str, bytes] | None = None,
    will_flags: int = 0,
    protocol: tuple[str, int] = ("MQTT", 4),
) -> bytes:
    """CONNECT."""
    flags = (2 if clean else 0) | will_flags
    payload = field(client_id)
    if will is not None:
        flags |= 0x04
        payload += field(will[0]) + field(will[1])
    if user is not None:
        flags |= 0x80
        payload += field(user)
    if password is not None:
        flags |= 0x40
        payload += field(password)
    head = field(protocol[0]) + bytes([protocol[1], flags]) + keep_alive_s.to_bytes(2, "big")
    return packet(0x10, head + payload)


def publish(
    topic: bytes | str, body: bytes = b"", *, qos: int = 0, packet_id: int = 1, flags: int = 0
) -> bytes:
    """PUBLISH; `flags` are added to the first byte."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | flags, field(topic) + identifier + body)


def acknowledgement(head: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return packet(head, packet_id.to_bytes(2, "big"))


def puback(packet_id: int) -> bytes:
    """PUBACK."""
    return acknowledgement(PUBACK, packet_id)


def subscribe(*filters: tuple[str, int], packet_id: int = 1) -> bytes:
    """SUBSCRIBE."""
    body = b"".join(field(name) + bytes([qos]) for name, qos in filters)
    return packet(0x82, packet_id.to_bytes(2, "big") + body)


def unsubscribe(*filters: str, packet_id: int = 1) -> bytes:
    """UNSUBSCRIBE."""
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"".join(field(f) for f in filters))


class RawClient:
    """A socket that speaks bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, tls: ssl.SSLContext | None = None) -> RawClient:
        """Connect on loopback."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    @classmethod
    async def signed_in(
        cls,
        port: int,
        client_id: str = "dev1",
        *,
        tls: ssl.SSLContext | None = None,
        **options: object,
    ) -> RawClient:
        """Connect and sign in; fails unless the hub accepts."""
        client = await cls.open(port, tls)
        client.send(connect(client_id, **options))
        try:
            head, body = await client.read()
        except BaseException:
            client.cut()
            raise
        assert (head, body[1]) == (CONNACK, 0)
        return client

    def send(self, data: bytes) -> None:
        """Write without waiting."""
        self._writer.write(data)

    def stop_reading(self) -> None:
        """Let what the hub sends pile up."""
        self._writer.transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        self._writer.transport.resume_reading()

    async def flushed(self) -> None:
        """Wait until the kernel has taken what was sent."""
        await self._writer.drain()

    async def read(self) -> tuple[int, bytes]:
        """Return the next packet as first byte and body; fails at the end of the stream."""
        head = (await self._reader.readexactly(1))[0]
        size = shift = 0
        while True:
            digit = (await self._reader.readexactly(1))[0]
            size |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return head, await self._reader.readexactly(size)

    async def read_pubacks(self, count: int) -> list[int]:
        """Return the packet ids of the next `count` packets, which must be PUBACKs."""
        ids = []
        for _ in range(count):
            head, body = await self.read()
            assert head == PUBACK
            ids.append(int.from_bytes(body, "big"))
        return ids

    async def read_publish(self) -> tuple[str, bytes, int]:
        """Return topic, body and packet id (0 with QoS 0) of the next packet, a PUBLISH."""
        head, body = await self.read()
        assert head & 0xF0 == 0x30
        end = 2 + int.from_bytes(body[:2], "big")
        topic = body[2:end].decode()
        if head & 0x06:
            return topic, body[end + 2 :], int.from_bytes(body[end : end + 2], "big")
        return topic, body[end:], 0

    async def pong(self) -> None:
        """Ping and wait for the answer: what was sent before has been acted upon."""
        self.send(PINGREQ)
        assert await self.read() == (PINGRESP, b"")

    async def rest(self) -> bytes:
        """Read until the server closes."""
        return await self._reader.read()

    async def closed(self) -> bool:
        """Wait until the hub closes; True when nothing came before that."""
        try:
            rest = await self._reader.read()
        except ConnectionError:
            return True
        return rest == b""

    async def end(self) -> None:
        """Send no more, as a client that breaks off does, and wait for the hub to close."""
        self._writer.write_eof()
        await self.closed()

    def cut(self) -> None:
        """Close without a word, as a broken network does."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the socket."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
