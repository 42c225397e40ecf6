"""The two packets of the hot path, MQTT 3.1.1: PUBLISH with QoS 1 out, PUBACK in.

Pure functions on bytes. Invariant: `publish_bytes` is the length of what `build_publish` builds.

Source: MQTT 3.1.1, sections 2.2, 3.3 and 3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLISH_QOS1: Final = 0x32
PUBACK: Final = 0x40
REMAINING_MAX: Final = 268_435_455

_PUBACK_BYTES: Final = 4
_LENGTH_BYTES_MAX: Final = 4


def publish_bytes(topic_bytes: int, body_bytes: int) -> int:
    """Give the length of the whole packet: header, topic, packet id and body."""
    remaining = topic_bytes + body_bytes + 4
    if remaining < 0x80:  # noqa: PLR2004 - a length byte carries seven bits
        return remaining + 2
    return remaining + 1 + (remaining.bit_length() + 6) // 7


def build_publish(topic: bytes, mid: int, body: bytes) -> bytes:
    """Build a PUBLISH with QoS 1; the topic has at most 65 535 bytes."""
    remaining = len(topic) + len(body) + 4
    assert remaining <= REMAINING_MAX, remaining
    header = bytearray((PUBLISH_QOS1,))
    while remaining > 0x7F:  # noqa: PLR2004 - a length byte carries seven bits
        header.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    header.append(remaining)
    return b"".join((header, len(topic).to_bytes(2, "big"), topic, mid.to_bytes(2, "big"), body))


class PubackFilter:
    """Takes the PUBACKs out of an incoming stream and passes on all other packets.

    Args:
        pass_on: Gets the bytes of the other packets, in order, whole or in parts.
    """

    __slots__ = ("_pass_on", "_passing", "_rest")

    def __init__(self, pass_on: Callable[[bytes], None]) -> None:
        self._pass_on = pass_on
        self._passing = 0
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Take the next bytes of the stream; gives the packet ids of the PUBACKs in it."""
        if self._rest:
            data = self._rest + data
        mids: list[int] = []
        position = 0
        end = len(data)
        while position < end:
            if self._passing:
                taken = min(self._passing, end - position)
                self._pass_on(data[position : position + taken])
                self._passing -= taken
                position += taken
            elif data[position] == PUBACK and data[position + 1 : position + 2] in {b"\2", b""}:
                if end - position < _PUBACK_BYTES:
                    break
                mids.append(data[position + 2] << 8 | data[position + 3])
                position += _PUBACK_BYTES
            else:
                self._passing = _packet_bytes(data, position)
                if not self._passing:
                    break
        self._rest = data[position:]
        return mids


def _packet_bytes(data: bytes, position: int) -> int:
    # 0 = the header is not complete. A length that never ends is passed on as it is: the client
    # behind the filter knows how to refuse it.
    remaining = 0
    for index in range(_LENGTH_BYTES_MAX):
        at = position + 1 + index
        if at >= len(data):
            return 0
        remaining |= (data[at] & 0x7F) << (7 * index)
        if not data[at] & 0x80:
            return index + 2 + remaining
    return len(data) - position
