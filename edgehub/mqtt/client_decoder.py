"""The incremental decoder of the client's side: bytes of one connection in, packets out.

PUBACKs and PUBLISHes, the hot path, are returned apart from the other packets, a whole read at a
time. Owns framing and what is left of an incomplete packet. Invariants: how the bytes were cut into
reads changes neither the packets nor whether the stream is found malformed; the body of a PUBLISH
larger than `bytes_max` is never kept; a PUBLISH with a malformed topic or malformed properties is
returned too, so that its receiver may acknowledge it and go on.

Source: MQTT 5 and 3.1.1, sections 2.1, 3.3 and 3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from edgehub.errors import ProtocolError
from edgehub.mqtt.client_packets import parse_acknowledgement, parse_server_packet
from edgehub.mqtt.fields import REMAINING_LENGTH_MAX, STRING_BYTES_MAX, read_variable
from edgehub.mqtt.packets import BAD_PUBLISH, DUP, LEVEL_5, PUBLISH, QOS_2, RETAIN, TYPE
from edgehub.mqtt.reasons import FIRST_FAILURE, ReasonCode

if TYPE_CHECKING:
    from edgehub.mqtt.client_packets import RefusedPublish, ServerPacket

CONTROL_BYTES_MAX: Final = 2**20
"""Longest packet other than PUBLISH: a SUBACK has a byte for each filter."""

_PLAIN_PUBACK: Final = 0x40
_PUBACK_BYTES: Final = 4
_SHORT: Final = 2
_WITH_CODE: Final = 3
_NEVER: Final = -1
_QOS: Final = 0x06


class IncomingPublish(Struct, kw_only=True, eq=False):
    """A PUBLISH from the server; if it has a packet id it waits for its acknowledgement.

    Attributes:
        topic: Topic name, None = it is not UTF-8 or the packet is malformed.
        body: Payload, None = too large, or malformed.
        packet_id: 0 with QoS 0, or if the packet ends before it.
        qos: 0 to 2.
        retain: The retain flag.
        dup: The DUP flag: the server may have sent it before.
        properties: Property block of MQTT 5 without its length.
        size: Bytes of the packet.
    """

    topic: str | None
    body: bytes | None
    packet_id: int
    qos: int
    retain: bool = False
    dup: bool = False
    properties: bytes = b""
    size: int = 0


class Received(NamedTuple):
    """Packets that some bytes completed; each list in the server's order.

    Attributes:
        confirmed: Packet ids of PUBACKs.
        unmatched: Packet ids of those that say that no client gets the message.
        refused: PUBACKs with a failure code; not among `confirmed`.
        messages: PUBLISHes.
        packets: All others.
    """

    confirmed: list[int]
    unmatched: list[int]
    refused: list[RefusedPublish]
    messages: list[IncomingPublish]
    packets: list[ServerPacket]


class ClientDecoder:
    """Decodes what one server sends.

    Args:
        level: Protocol level, 4 = MQTT 3.1.1, 5 = MQTT 5.
        bytes_max: PUBLISHes larger than this lose their body.
    """

    __slots__ = (
        "_bytes_max",
        "_codes",
        "_failed",
        "_level",
        "_needed",
        "_received",
        "_rest",
        "_skipping",
    )

    def __init__(self, *, level: int, bytes_max: int = REMAINING_LENGTH_MAX) -> None:
        self._level = level
        # Length of a PUBACK of MQTT 5 that has a reason code and no properties.
        self._codes = _WITH_CODE if level >= LEVEL_5 else _NEVER
        self._bytes_max = bytes_max
        self._skipping = 0
        self._rest = bytearray()
        # Bytes of `_rest` before which it need not be looked at again.
        self._needed = 0
        self._received = Received([], [], [], [], [])
        self._failed: ProtocolError | None = None

    def take(self) -> Received:
        """Return the packets decoded since the last call."""
        received, self._received = self._received, Received([], [], [], [], [])
        return received

    def feed(self, data: bytes) -> None:
        """Decode the next bytes of the stream.

        Raises:
            ProtocolError: If the stream is malformed; `take` then returns earlier packets, and
                every later call raises again.
        """
        if self._failed is not None:
            raise self._failed
        if self._rest:
            # A large packet arrives in thousands of reads and must not be copied with each.
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
        self._needed = 0
        try:
            position = self._split(data)
        except ProtocolError as error:
            self._failed = error
            self._rest.clear()
            raise
        self._rest = bytearray(data[position:])

    def _split(self, data: bytes) -> int:
        """Decode packets; returns where the first incomplete one begins."""
        position = 0
        end = len(data)
        confirmed = self._received.confirmed
        codes = self._codes
        while position < end:
            if self._skipping:
                skipped = min(self._skipping, end - position)
                self._skipping -= skipped
                position += skipped
                continue
            # Without a call: most packets are PUBACKs without properties.
            stop = position + _PUBACK_BYTES
            if data[position] == _PLAIN_PUBACK and stop <= end:
                length = data[position + 1]
                packet_id = data[position + 2] << 8 | data[position + 3]
                if length == _SHORT and packet_id:
                    confirmed.append(packet_id)
                    position = stop
                    continue
                if length == codes and stop < end and not data[stop] and packet_id:
                    confirmed.append(packet_id)
                    position = stop + 1
                    continue
            after = self._packet(data, position)
            if after == position:
                break
            position = after
        return position

    def _packet(self, data: bytes, position: int) -> int:
        """Decode a packet; returns where the next one begins, `position` = it is incomplete."""
        length, start = read_variable(data, position + 1, len(data))
        if length < 0:
            return position
        head = data[position]
        stop = start + length
        if head & TYPE == PUBLISH:
            return self._publish(data, position, start, stop)
        if length > CONTROL_BYTES_MAX:
            raise ProtocolError(f"packet {head:#04x} of {length} bytes")
        if stop > len(data):
            self._needed = stop - position
            return position
        body = data[start:stop]
        if head == _PLAIN_PUBACK:
            if self._level < LEVEL_5 and length != _SHORT:
                raise ProtocolError(f"PUBACK of {length} bytes")
            self._puback(parse_acknowledgement(body))
        else:
            self._received.packets.append(parse_server_packet(head, body, self._level))
        return stop

    def _puback(self, puback: RefusedPublish) -> None:
        if puback.code >= FIRST_FAILURE:
            self._received.refused.append(puback)
        else:
            self._received.confirmed.append(puback.packet_id)
            if puback.code == ReasonCode.NO_MATCHING_SUBSCRIBERS:
                self._received.unmatched.append(puback.packet_id)

    def _publish(self, data: bytes, position: int, start: int, stop: int) -> int:
        size = stop - position
        is_large = size > self._bytes_max
        if stop > len(data):
            head_bytes = min(size, STRING_BYTES_MAX + 16)
            if not is_large or len(data) - position < head_bytes:
                self._needed = head_bytes if is_large else size
                return position
        message = read_publish(
            data[position], data[start:stop], level=self._level, size=size, cut=is_large
        )
        self._received.messages.append(message)
        if stop > len(data):
            self._skipping = stop - len(data)
            return len(data)
        return stop


def read_publish(flags: int, rest: bytes, *, level: int, size: int, cut: bool) -> IncomingPublish:
    """Read a PUBLISH.

    Args:
        flags: Its first byte.
        rest: The bytes after its length; may end after the packet id if `cut`.
        level: Protocol level.
        size: Bytes of the packet.
        cut: Whether the body is left out.

    Raises:
        ProtocolError: If it has QoS 3 or packet id 0.
    """
    qos = (flags & _QOS) >> 1
    topic: str | None = None
    body: bytes | None = None
    properties = b""
    packet_id = 0
    at = 2 + (rest[0] << 8 | rest[1]) if len(rest) > 1 else len(rest) + 1
    raw_topic = rest[2:at]
    is_whole = at <= len(rest)
    if qos:
        at += 2
        has_id = at <= len(rest)
        packet_id = rest[at - 2] << 8 | rest[at - 1] if has_id else 0
        if qos > QOS_2 or (has_id and not packet_id):
            raise ProtocolError(BAD_PUBLISH)
        is_whole = is_whole and has_id
    if is_whole and level >= LEVEL_5 and not cut:
        block = _block(rest, at)
        if block is None:
            is_whole = False
        else:
            properties, at = block
    if is_whole and raw_topic:
        try:
            topic = raw_topic.decode()
        except UnicodeDecodeError:
            topic = None
        if not cut:
            body = rest[at:]
    return IncomingPublish(
        topic=topic,
        body=body,
        packet_id=packet_id,
        qos=qos,
        retain=bool(flags & RETAIN),
        dup=bool(flags & DUP),
        properties=properties,
        size=size,
    )


def _block(rest: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the property block at a place, and where it ends; None = it is malformed."""
    try:
        length, at = read_variable(rest, at, len(rest))
    except ProtocolError:
        return None
    end = at + length
    return None if length < 0 or end > len(rest) else (rest[at:end], end)
