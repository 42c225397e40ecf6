"""MQTT control packets as values: what clients send, and the bytes of what the server answers.

Owns the layout of each packet of MQTT 3.1.1; pure, without sockets or state. Framing and the
protocol level belong to the decoder. Invariant: nothing but `ProtocolError` leaves a parser.
Source: MQTT 3.1.1, sections 2 and 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from edgehub.errors import ProtocolError

HEAD: Final = "mqtt"
LEVEL_3_1_1: Final = 4
REMAINING_LENGTH_MAX: Final = 268_435_455
STRING_BYTES_MAX: Final = 65_535
PACKET_ID_MAX: Final = 65_535

PINGRESP: Final = b"\xd0\x00"
SUBACK_FAILURE: Final = 0x80

_CLEAN_SESSION: Final = 0x02
_WILL: Final = 0x04
_WILL_RETAIN: Final = 0x20
_WILL_BITS: Final = 0x38
_PASSWORD: Final = 0x40
_USER_NAME: Final = 0x80
_QOS_2: Final = 2
_RETAIN: Final = 0x01
_LENGTH_DIGIT: Final = 0x7F

_TWO_SHORTS: Final = struct.Struct(">HH")


class ConnectCode(IntEnum):
    """CONNACK return codes of MQTT 3.1.1."""

    ACCEPTED = 0
    PROTOCOL_LEVEL = 1
    IDENTIFIER = 2
    UNAVAILABLE = 3
    CREDENTIALS = 4
    NOT_AUTHORIZED = 5


class UnsupportedLevelError(ProtocolError):
    """A CONNECT of a protocol level that the server does not speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """What the server publishes for a client that goes away without a word."""

    topic: bytes
    body: bytes
    qos: int
    retain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """CONNECT."""

    level: int
    client_id: str
    clean_session: bool
    keep_alive_s: int
    user_name: str | None
    password: bytes | None
    will: Will | None


class Publish:
    """PUBLISH; a plain class because one is built per message.

    Attributes:
        topic: Topic name as sent, not yet checked.
        body: Payload, None = over the packet limit, was read and discarded.
        packet_id: 0 with QoS 0.
        qos: 0 to 2.
        retain: The retain flag.
    """

    __slots__ = ("body", "packet_id", "qos", "retain", "topic")

    def __init__(
        self, topic: bytes, body: bytes | None, packet_id: int, qos: int, retain: int
    ) -> None:
        self.topic = topic
        self.body = body
        self.packet_id = packet_id
        self.qos = qos
        self.retain = retain


class Puback:
    """PUBACK; a plain class because one is built per message."""

    __slots__ = ("packet_id",)

    def __init__(self, packet_id: int) -> None:
        self.packet_id = packet_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """SUBSCRIBE: filters with the quality of service asked for, in the client's order."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """UNSUBSCRIBE."""

    packet_id: int
    filters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pingreq:
    """PINGREQ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """DISCONNECT: the client leaves on purpose."""


Packet = Connect | Publish | Puback | Subscribe | Unsubscribe | Pingreq | Disconnect

_PINGREQ: Final = Pingreq()
_DISCONNECT: Final = Disconnect()


class _Reader:
    """Reads the fields of one packet body; running over its end is a protocol error."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise ProtocolError(HEAD, "packet ends inside a field")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def binary(self) -> bytes:
        return self.take(self.short())

    def text(self, what: str) -> str:
        try:
            text = self.binary().decode()
        except UnicodeDecodeError:
            raise ProtocolError(HEAD, f"{what} is not UTF-8") from None
        if "\0" in text:
            raise ProtocolError(HEAD, f"{what} contains U+0000")
        return text

    def packet_id(self) -> int:
        packet_id = self.short()
        if packet_id == 0:
            raise ProtocolError(HEAD, "packet id 0")
        return packet_id

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def finish(self) -> None:
        if not self.at_end:
            raise ProtocolError(HEAD, "bytes behind the last field")


def parse_connect(data: bytes) -> Connect:
    """Read the body of a CONNECT.

    Raises:
        UnsupportedLevelError: If it asks for another protocol level.
        ProtocolError: If it is malformed.
    """
    reader = _Reader(data)
    name = reader.binary()
    level = reader.byte()
    if (name, level) != (b"MQTT", LEVEL_3_1_1):
        if name in (b"MQTT", b"MQIsdp"):
            raise UnsupportedLevelError(HEAD, f"protocol level {level} is not supported")
        raise ProtocolError(HEAD, "unknown protocol name")
    flags = reader.byte()
    _check_connect_flags(flags)
    keep_alive_s = reader.short()
    client_id = reader.text("client id")
    will = None
    if flags & _WILL:
        will = Will(
            topic=reader.binary(),
            body=reader.binary(),
            qos=flags >> 3 & 3,
            retain=bool(flags & _WILL_RETAIN),
        )
    user_name = reader.text("user name") if flags & _USER_NAME else None
    password = reader.binary() if flags & _PASSWORD else None
    reader.finish()
    return Connect(
        level=level,
        client_id=client_id,
        clean_session=bool(flags & _CLEAN_SESSION),
        keep_alive_s=keep_alive_s,
        user_name=user_name,
        password=password,
        will=will,
    )


def _check_connect_flags(flags: int) -> None:
    if flags & 1:
        raise ProtocolError(HEAD, "reserved connect flag is set")
    if not flags & _WILL and flags & _WILL_BITS:
        raise ProtocolError(HEAD, "will quality or retain without a will")
    if flags >> 3 & 3 > _QOS_2:
        raise ProtocolError(HEAD, "will quality of service 3")
    if flags & _PASSWORD and not flags & _USER_NAME:
        raise ProtocolError(HEAD, "password without a user name")


def parse_puback(data: bytes) -> Puback:
    """Read the body of a PUBACK."""
    reader = _Reader(data)
    packet_id = reader.packet_id()
    reader.finish()
    return Puback(packet_id)


def parse_subscribe(data: bytes) -> Subscribe:
    """Read the body of a SUBSCRIBE."""
    reader = _Reader(data)
    packet_id = reader.packet_id()
    filters = []
    while not reader.at_end:
        topic_filter = reader.text("topic filter")
        qos = reader.byte()
        if qos > _QOS_2:
            raise ProtocolError(HEAD, f"subscription with quality of service {qos}")
        filters.append((topic_filter, qos))
    if not filters:
        raise ProtocolError(HEAD, "SUBSCRIBE without a filter")
    return Subscribe(packet_id=packet_id, filters=tuple(filters))


def parse_unsubscribe(data: bytes) -> Unsubscribe:
    """Read the body of an UNSUBSCRIBE."""
    reader = _Reader(data)
    packet_id = reader.packet_id()
    filters = []
    while not reader.at_end:
        filters.append(reader.text("topic filter"))
    if not filters:
        raise ProtocolError(HEAD, "UNSUBSCRIBE without a filter")
    return Unsubscribe(packet_id=packet_id, filters=tuple(filters))


def parse_pingreq(data: bytes) -> Pingreq:
    """Read the body of a PINGREQ, which has none."""
    _Reader(data).finish()
    return _PINGREQ


def parse_disconnect(data: bytes) -> Disconnect:
    """Read the body of a DISCONNECT, which has none."""
    _Reader(data).finish()
    return _DISCONNECT


def connack(code: ConnectCode, *, session_present: bool = False) -> bytes:
    """Write a CONNACK."""
    return bytes((0x20, 2, int(session_present), code))


def puback(packet_id: int) -> bytes:
    """Write a PUBACK."""
    return _TWO_SHORTS.pack(0x4002, packet_id)


def suback(packet_id: int, codes: bytes) -> bytes:
    """Write a SUBACK with one code per filter."""
    return b"\x90" + remaining_length(2 + len(codes)) + packet_id.to_bytes(2, "big") + codes


def unsuback(packet_id: int) -> bytes:
    """Write an UNSUBACK."""
    return _TWO_SHORTS.pack(0xB002, packet_id)


def publish(topic: bytes, body: bytes, *, qos: int, packet_id: int, retain: bool = False) -> bytes:
    """Write a PUBLISH.

    Args:
        topic: Topic name, at most `STRING_BYTES_MAX` bytes.
        body: Payload.
        qos: 0 or 1.
        packet_id: 1 to `PACKET_ID_MAX`, 0 with QoS 0.
        retain: The retain flag.
    """
    assert len(topic) <= STRING_BYTES_MAX
    assert (packet_id > 0) == (qos > 0)
    head = bytes((0x30 | qos << 1 | int(retain),))
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    length = remaining_length(2 + len(topic) + len(identifier) + len(body))
    return b"".join((head, length, len(topic).to_bytes(2, "big"), topic, identifier, body))


def remaining_length(length: int) -> bytes:
    """Write a remaining length as one to four bytes."""
    assert 0 <= length <= REMAINING_LENGTH_MAX
    if length <= _LENGTH_DIGIT:
        return bytes((length,))
    digits = bytearray()
    while length > _LENGTH_DIGIT:
        digits.append(length & _LENGTH_DIGIT | 0x80)
        length >>= 7
    digits.append(length)
    return bytes(digits)
