"""The fixed header, for the decoders of both sides."""

from __future__ import annotations

from typing import Final

from edgehub.errors import ProtocolError

PUBLISH: Final = 0x30
TYPE: Final = 0xF0
MORE_DIGITS: Final = 0x80
HEADER_BYTES_MIN: Final = 2
LENGTH_DIGITS_MAX: Final = 4
QOS_3: Final = 3
DUP: Final = 0x08
BAD_PUBLISH: Final = (
    "PUBLISH without a topic or packet id, with quality of service 3, or DUP with 0"
)


def long_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a remaining length of two to four bytes.

    Returns:
        The length, -1 when its bytes are incomplete, and where the body begins.
    """
    length = 0
    for index in range(LENGTH_DIGITS_MAX):
        place = at + 1 + index
        if place >= end:
            return -1, place
        digit = data[place]
        length |= (digit & 0x7F) << (7 * index)
        if digit < MORE_DIGITS:
            return length, place + 1
    raise ProtocolError("remaining length of more than four bytes")
