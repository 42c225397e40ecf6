"""The packets of a device's own upstream session, MQTT 3.1.1 and 5, as its client sees them.

Pure functions on bytes, and a parser of the incoming stream. Small on purpose: a session publishes
with QoS 1, takes device-bound messages, and says that it is alive. Invariant: a stream that is no
MQTT ends with `PacketError`, it never stalls the parser.

Source: MQTT 3.1.1 and MQTT 5, chapters 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgehub.errors import EdgeHubError
from edgehub.mqtt.property_bag import ORIGIN_PROPERTY

PINGREQ: Final = b"\xc0\x00"
MQTT_5: Final = 5
DISCONNECT: Final = b"\xe0\x00"
SESSION_TAKEN_OVER: Final = 0x8E
PACKET_BYTES_MAX: Final = 2**20
"""No answer of a peer is longer, and a device-bound message has 256 KiB at most."""

SESSION_EXPIRY_S: Final = 86_400
"""MQTT 5: how long the peer keeps a device's subscription and messages while it is away."""

_CONNACK, _PUBLISH, _PUBACK, _SUBACK, _PINGRESP, _DISCONNECT = 2, 3, 4, 9, 13, 14
_LENGTH_BYTES_MAX: Final = 4
_USERNAME, _PASSWORD, _CLEAN = 0x80, 0x40, 0x02

MID_MAX: Final = 65_535
_RECEIVE_MAXIMUM, _USER_PROPERTY, _PACKET_BYTES_MAX = 0x21, 0x26, 0x27
# Of the properties that may stand in a CONNACK, by the form of their values.
_NUMBERS: Final = {
    **dict.fromkeys((0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22), 2),
    **dict.fromkeys((0x11, 0x27), 4),
}
_TEXTS: Final = {**dict.fromkeys((0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F), 1), _USER_PROPERTY: 2}


class PacketError(EdgeHubError):
    """The peer sent what is no MQTT, or what nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connack:
    """The peer's answer to CONNECT.

    Attributes:
        code: 0 = it lets us in.
        receive_maximum: PUBLISHes without PUBACK that it takes.
        packet_bytes_max: Largest packet that it takes, None = it does not say.
    """

    code: int
    receive_maximum: int = MID_MAX
    packet_bytes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Puback:
    """The peer has a message; `code` of 0x80 and more = it refuses it."""

    mid: int
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suback:
    """The peer has a subscription; `code` of 0x80 and more = it refuses it."""

    mid: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """A message to the device."""

    topic: str
    body: bytes
    mid: int
    qos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """The peer ends the session, MQTT 5 only."""

    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pingresp:
    """The peer is alive."""


Packet = Connack | Puback | Suback | Publish | Disconnect | Pingresp


def build_connect(
    *, version: int, client_id: str, keep_alive_s: int, username: str | None, password: str | None
) -> bytes:
    """Build a CONNECT that keeps the session at the peer.

    Args:
        version: 4 = MQTT 3.1.1, 5 = MQTT 5.
        client_id: The device's id.
        keep_alive_s: See the standard.
        username: None = none.
        password: None = none.
    """
    flags = (_USERNAME if username is not None else 0) | (_PASSWORD if password is not None else 0)
    properties = b""
    if version == MQTT_5:
        properties = b"\x05\x11" + SESSION_EXPIRY_S.to_bytes(4, "big")
    payload = _text(client_id)
    payload += b"" if username is None else _text(username)
    payload += b"" if password is None else _text(password)
    head = _text("MQTT") + bytes((version, flags)) + keep_alive_s.to_bytes(2, "big") + properties
    return _packet(0x10, head + payload)


def build_publish(topic: bytes, mid: int, body: bytes, *, properties: bytes) -> bytes:
    """Build a PUBLISH with QoS 1; `properties` is what `publish_properties` returned."""
    head = len(topic).to_bytes(2, "big") + topic + mid.to_bytes(2, "big") + properties
    return _packet(0x32, head + body)


def publish_properties(*, version: int, origin: str | None = None) -> bytes:
    """Build the property block of a PUBLISH, its length in front; empty before MQTT 5.

    Args:
        version: 4 = MQTT 3.1.1, 5 = MQTT 5.
        origin: Hub that publishes, None = not said.
    """
    if version != MQTT_5:
        return b""
    block = b""
    if origin is not None:
        block = bytes((_USER_PROPERTY,)) + _text(ORIGIN_PROPERTY) + _text(origin)
    return _with_length(block)


def build_message(topic: bytes, body: bytes, *, version: int) -> bytes:
    """Build a PUBLISH with QoS 0, for a question whose answer is its confirmation."""
    none = b"\0" if version == MQTT_5 else b""
    return _packet(0x30, len(topic).to_bytes(2, "big") + topic + none + body)


def build_puback(mid: int) -> bytes:
    """Build the PUBACK of a message to the device."""
    return b"\x40\x02" + mid.to_bytes(2, "big")


def build_subscribe(topic_filter: str, mid: int, *, version: int, qos: int = 1) -> bytes:
    """Build a SUBSCRIBE; with QoS 0 the peer keeps nothing while the device is away."""
    none = b"\0" if version == MQTT_5 else b""
    return _packet(0x82, mid.to_bytes(2, "big") + none + _text(topic_filter) + bytes((qos,)))


class PacketParser:
    """Takes packets out of an incoming stream."""

    __slots__ = ("_rest", "_version")

    def __init__(self, *, version: int) -> None:
        self._version = version
        self._rest = b""

    def feed(self, data: bytes) -> list[Packet]:
        """Take the next bytes; gives the packets that are whole.

        Raises:
            PacketError: It is no MQTT.
        """
        data = self._rest + data
        packets: list[Packet] = []
        position = 0
        while True:
            header = _header(data, position)
            if header is None or header[1] > len(data):
                break
            start, end = header
            try:
                packet = self._packet(data[position], data[start:end])
            except (IndexError, UnicodeDecodeError) as exc:
                raise PacketError(f"malformed packet of type {data[position] >> 4}") from exc
            packets.append(packet)
            position = end
        self._rest = data[position:]
        return packets

    def _packet(self, first: int, content: bytes) -> Packet:
        kind = first >> 4
        packet: Packet
        if kind == _CONNACK:
            packet = self._connack(content)
        elif kind == _PUBLISH:
            packet = self._publish(first, content)
        elif kind == _PUBACK:
            # Three bytes and more only in MQTT 5: a reason code, and properties.
            packet = Puback(mid=_number(content, 0), code=content[2] if len(content) > 2 else 0)  # noqa: PLR2004 - packet id
        elif kind == _SUBACK:
            packet = Suback(mid=_number(content, 0), code=content[-1])
        elif kind == _PINGRESP:
            packet = Pingresp()
        elif kind == _DISCONNECT and self._version == MQTT_5:
            packet = Disconnect(code=content[0] if content else 0)
        else:
            raise PacketError(f"packet of type {kind}")
        return packet

    def _connack(self, content: bytes) -> Connack:
        code = content[1]
        if self._version != MQTT_5 or len(content) == 2:  # noqa: PLR2004 - flags and code alone
            return Connack(code=code)
        said = _numbers(content)
        receive_maximum = said.get(_RECEIVE_MAXIMUM, MID_MAX)
        packet_bytes_max = said.get(_PACKET_BYTES_MAX)
        if receive_maximum == 0 or packet_bytes_max == 0:
            raise PacketError("a bound of zero in the answer to CONNECT")
        return Connack(
            code=code, receive_maximum=receive_maximum, packet_bytes_max=packet_bytes_max
        )

    def _publish(self, first: int, content: bytes) -> Publish:
        qos = first >> 1 & 3
        end = 2 + _number(content, 0)
        topic = content[2:end].decode()
        mid = 0
        if qos:
            mid = _number(content, end)
            end += 2
        if self._version == MQTT_5:
            header = _header(content, end - 1)
            if header is None:
                raise PacketError("malformed properties")
            end = header[1]
        return Publish(topic=topic, body=content[end:], mid=mid, qos=qos)


def _header(data: bytes, position: int) -> tuple[int, int] | None:
    """Give start and end of what a variable length behind a byte speaks of, None = not whole."""
    remaining = 0
    for index in range(_LENGTH_BYTES_MAX):
        at = position + 1 + index
        if at >= len(data):
            return None
        remaining |= (data[at] & 0x7F) << (7 * index)
        if not data[at] & 0x80:
            if remaining > PACKET_BYTES_MAX:
                raise PacketError(f"packet of {remaining} bytes")
            return at + 1, at + 1 + remaining
    raise PacketError("length that never ends")


def _numbers(content: bytes) -> dict[int, int]:
    """Read the properties of a CONNACK; gives those that are numbers."""
    header = _header(content, 1)
    if header is None or header[1] > len(content):
        raise PacketError("malformed properties")
    position, end = header
    numbers: dict[int, int] = {}
    while position < end:
        name = content[position]
        position += 1
        if name in _NUMBERS:
            size = _NUMBERS[name]
            numbers[name] = int.from_bytes(content[position : position + size], "big")
            position += size
        elif name in _TEXTS:
            for _ in range(_TEXTS[name]):
                position += 2 + _number(content, position)
        else:
            raise PacketError(f"property {name:#x} in the answer to CONNECT")
    if position != end:
        raise PacketError("malformed properties")
    return numbers


def _number(content: bytes, position: int) -> int:
    return content[position] << 8 | content[position + 1]


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _packet(first: int, content: bytes) -> bytes:
    return bytes((first,)) + _with_length(content)


def _with_length(content: bytes) -> bytes:
    remaining = len(content)
    header = bytearray()
    while remaining > 0x7F:  # noqa: PLR2004 - a length byte carries seven bits
        header.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    header.append(remaining)
    return bytes(header) + content
