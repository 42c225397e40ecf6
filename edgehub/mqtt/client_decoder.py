"""What a peer sends on the hot path: PUBACKs and PUBLISHes, taken out of the incoming stream.

Pure functions and one parser on bytes; no I/O. Invariants: bytes of all other packets are passed on
as they came; a PUBLISH that cannot be read is told of like one that can, so that whoever takes them
may acknowledge it and go on; of one that is larger than `bytes_max` the body is never kept.

Source: MQTT 5 and 3.1.1, sections 2.1, 3.3 and 3.4.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from edgehub.mqtt.fields import REMAINING_LENGTH_MAX
from edgehub.mqtt.packets import LEVEL_5

if TYPE_CHECKING:
    from collections.abc import Callable

PUBACK: Final = 4
PUBLISH: Final = 3

_PLAIN_PUBACK: Final = 0x40
_PUBACK_BYTES: Final = 4
_LENGTH_BYTES_MAX: Final = 4
_FAILURE: Final = 0x80
_TOPIC_BYTES_MAX: Final = 65_535
_INCOMPLETE: Final = 0
_ENDLESS: Final = -1
_QOS: Final = 0x06
_QOS_1: Final = 1
_RETAIN: Final = 0x01
_AGAIN: Final = 0x08


class Incoming:
    """A message from the peer that waits for its acknowledgement.

    Attributes:
        topic: Topic name, None = it is not UTF-8 or the packet is malformed.
        body: Payload, None = larger than is taken, or malformed.
        mid: Packet id, 0 with QoS 0.
        qos: 0 to 2.
        retain: The retain flag.
        again: The peer says that it may have sent it before.
        properties: Property block of MQTT 5 without its length.
        size: Bytes of the packet.
    """

    __slots__ = ("again", "body", "mid", "properties", "qos", "retain", "size", "topic")

    def __init__(
        self,
        *,
        topic: str | None,
        body: bytes | None,
        mid: int,
        qos: int,
        retain: bool = False,
        again: bool = False,
        properties: bytes = b"",
        size: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body
        self.mid = mid
        self.qos = qos
        self.retain = retain
        self.again = again
        self.properties = properties
        self.size = size


class InboundFilter:
    """Takes PUBACKs, and PUBLISHes of QoS 0 and 1, out of an incoming stream.

    Args:
        pass_on: Gets the bytes of the other packets, in order, whole or in parts.
        level: Protocol level, 4 = MQTT 3.1.1, 5 = MQTT 5.
        bytes_max: Packets larger than this lose their body.

    Attributes:
        mids: Packet ids of PUBACKs since the last `take`.
        refusals: Packet ids and reason codes of those that refuse; not among `mids`.
        messages: What came since the last `take`.
    """

    __slots__ = (
        "_bytes_max",
        "_level",
        "_needed",
        "_pass_on",
        "_passing",
        "_rest",
        "_skipping",
        "messages",
        "mids",
        "refusals",
    )

    def __init__(
        self,
        pass_on: Callable[[bytes], None],
        *,
        level: int = 4,
        bytes_max: int = REMAINING_LENGTH_MAX,
    ) -> None:
        self._pass_on = pass_on
        self._level = level
        self._bytes_max = bytes_max
        self._passing = 0
        self._skipping = 0
        self._rest = bytearray()
        # Bytes of `_rest` before which it need not be looked at again.
        self._needed = 0
        self.mids: list[int] = []
        self.refusals: list[tuple[int, int]] = []
        self.messages: list[Incoming] = []

    def take(self) -> tuple[list[int], list[tuple[int, int]], list[Incoming]]:
        """Hand over what was found; see `mids`, `refusals` and `messages`."""
        found = (self.mids, self.refusals, self.messages)
        if self.mids:
            self.mids = []
        if self.refusals:
            self.refusals = []
        if self.messages:
            self.messages = []
        return found

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._rest:
            # A large packet comes in thousands of parts, and is not to be copied with each.
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
        self._needed = 0
        position = 0
        end = len(data)
        while position < end:
            if self._passing or self._skipping:
                position = self._go_on(data, position)
            elif data[position] == _PLAIN_PUBACK and data[position + 1 : position + 2] == b"\2":
                if end - position < _PUBACK_BYTES:
                    break
                self.mids.append(data[position + 2] << 8 | data[position + 3])
                position += _PUBACK_BYTES
            else:
                after = self._packet(data, position)
                if after == position:
                    break
                position = after
        self._rest = bytearray(data[position:])

    def _go_on(self, data: bytes, position: int) -> int:
        if self._passing:
            taken = min(self._passing, len(data) - position)
            self._pass_on(data[position : position + taken])
            self._passing -= taken
        else:
            taken = min(self._skipping, len(data) - position)
            self._skipping -= taken
        return position + taken

    def _packet(self, data: bytes, position: int) -> int:
        """Take a packet; gives where the next one begins, `position` = more bytes are needed."""
        length = _packet_bytes(data, position)
        if length == _INCOMPLETE:
            return position
        kind = data[position] >> 4
        if length == _ENDLESS:
            # The client behind the filter refuses it, and nothing that follows is a packet.
            self._passing = sys.maxsize
        elif kind == PUBLISH and (data[position] & _QOS) >> 1 <= _QOS_1:
            return self._publish(data, position, length)
        elif kind == PUBACK and self._level >= LEVEL_5:
            return self._puback(data, position, length)
        else:
            self._passing = length
        return self._go_on(data, position)

    def _puback(self, data: bytes, position: int, length: int) -> int:
        end = position + length
        if end > len(data):
            return position
        at = position + _header_bytes(data, position)
        if end - at < 2:  # noqa: PLR2004 - the packet id
            self._passing = length
            return self._go_on(data, position)
        mid = data[at] << 8 | data[at + 1]
        code = data[at + 2] if end - at > 2 else 0  # noqa: PLR2004 - the reason code behind it
        if code >= _FAILURE:
            self.refusals.append((mid, code))
        else:
            self.mids.append(mid)
        return end

    def _publish(self, data: bytes, position: int, length: int) -> int:
        end = position + length
        is_large = length > self._bytes_max
        if end > len(data):
            head_bytes = min(length, _TOPIC_BYTES_MAX + 16)
            if not is_large or len(data) - position < head_bytes:
                self._needed = head_bytes if is_large else length
                return position
        flags = data[position]
        at = position + _header_bytes(data, position)
        message = read_publish(flags, data[at:end], level=self._level, size=length, cut=is_large)
        self.messages.append(message)
        if end > len(data):
            self._skipping = end - len(data)
            return len(data)
        return end


def read_publish(flags: int, rest: bytes, *, level: int, size: int, cut: bool) -> Incoming:
    """Read a PUBLISH of QoS 0 or 1.

    Args:
        flags: Its first byte.
        rest: What is behind its length; may end after the packet id if `cut`.
        level: Protocol level.
        size: Bytes of the packet.
        cut: The body is not wanted.
    """
    qos = (flags & _QOS) >> 1
    topic: str | None = None
    body: bytes | None = None
    properties = b""
    mid = 0
    at = 2 + (rest[0] << 8 | rest[1]) if len(rest) > 1 else len(rest) + 1
    raw_topic = rest[2:at]
    is_whole = at <= len(rest)
    if qos and is_whole:
        mid = rest[at] << 8 | rest[at + 1] if at + 1 < len(rest) else 0
        at += 2
        is_whole = at <= len(rest)
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
    return Incoming(
        topic=topic,
        body=body,
        mid=mid,
        qos=qos,
        retain=bool(flags & _RETAIN),
        again=bool(flags & _AGAIN),
        properties=properties,
        size=size,
    )


def _block(rest: bytes, at: int) -> tuple[bytes, int] | None:
    """Give the property block at a place, and where it ends; None = it is malformed."""
    length = shift = 0
    for _ in range(_LENGTH_BYTES_MAX):
        if at >= len(rest):
            return None
        byte = rest[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            end = at + length
            return None if end > len(rest) else (rest[at:end], end)
    return None


def _header_bytes(data: bytes, position: int) -> int:
    at = position + 1
    while data[at] & 0x80:
        at += 1
    return at + 1 - position


def _packet_bytes(data: bytes, position: int) -> int:
    remaining = 0
    for index in range(_LENGTH_BYTES_MAX):
        at = position + 1 + index
        if at >= len(data):
            return _INCOMPLETE
        remaining |= (data[at] & 0x7F) << (7 * index)
        if not data[at] & 0x80:
            return index + 2 + remaining
    return _ENDLESS
