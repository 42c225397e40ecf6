"""Fields of MQTT packets: lengths, strings, packet ids.

Owns how single fields are read and written; pure, without state but the place in one packet.
Invariant: nothing but `ProtocolError` leaves a reader. Source: MQTT 3.1.1 and 5, section 1.5.
"""

from __future__ import annotations

import re
from typing import Final

from edgehub.errors import ProtocolError

REMAINING_LENGTH_MAX: Final = 268_435_455
STRING_BYTES_MAX: Final = 65_535
PACKET_ID_MAX: Final = 65_535

MORE_DIGITS: Final = 0x80
"""Bit of a byte of a variable length integer that others follow."""

_DIGIT: Final = 0x7F
_DIGITS_MAX: Final = 4

_UNFIT: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


class Reader:
    """Reads the fields of one packet body; running over its end is a protocol error.

    Attributes:
        at: Where the next field begins.
    """

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def take(self, count: int) -> bytes:
        """Read bytes."""
        end = self.at + count
        if end > len(self._data):
            raise ProtocolError("packet ends inside a field")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def byte(self) -> int:
        """Read a byte."""
        return self.take(1)[0]

    def short(self) -> int:
        """Read an integer of two bytes."""
        return int.from_bytes(self.take(2), "big")

    def long(self) -> int:
        """Read an integer of four bytes."""
        return int.from_bytes(self.take(4), "big")

    def variable(self) -> int:
        """Read an integer of one to four bytes."""
        value, self.at = read_variable(self._data, self.at, len(self._data))
        if value < 0:
            raise ProtocolError("packet ends inside a field")
        return value

    def binary(self) -> bytes:
        """Read bytes with their length in front."""
        return self.take(self.short())

    def text(self, what: str) -> str:
        """Read a string; `what` names it in the error."""
        return decoded(self.binary(), what)

    def packet_id(self) -> int:
        """Read a packet id, which is never 0."""
        packet_id = self.short()
        if packet_id == 0:
            raise ProtocolError("packet id 0")
        return packet_id

    @property
    def at_end(self) -> bool:
        """Whether all is read."""
        return self.at == len(self._data)

    def finish(self) -> None:
        """Check that all is read."""
        if not self.at_end:
            raise ProtocolError("bytes behind the last field")


def decoded(data: bytes, what: str) -> str:
    """Read the bytes of a string; `what` names it in the error."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"{what} is not UTF-8") from None
    if "\0" in text:
        raise ProtocolError(f"{what} contains U+0000")
    return text


def is_plain(text: str) -> bool:
    """Return whether no receiver treats a string as malformed.

    It may do so for control characters and non-characters; libmosquitto closes the connection over
    them, also at each repetition. Source: MQTT 5, section 1.5.4.
    """
    return text.isprintable() or _UNFIT.search(text) is None


def read_variable(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read an integer of one to four bytes, as lengths are written.

    Returns:
        The integer, -1 when its bytes are incomplete, and where the next field begins.
    """
    if at < end and data[at] < MORE_DIGITS:
        # Without the loop: most integers have one byte.
        return data[at], at + 1
    value = 0
    for index in range(_DIGITS_MAX):
        if at >= end:
            return -1, at
        digit = data[at]
        at += 1
        value |= (digit & _DIGIT) << (7 * index)
        if digit < MORE_DIGITS:
            return value, at
    raise ProtocolError("variable length integer of more than four bytes")


def variable(value: int) -> bytes:
    """Write an integer as one to four bytes, as lengths are written."""
    assert 0 <= value <= REMAINING_LENGTH_MAX
    if value <= _DIGIT:
        return bytes((value,))
    digits = bytearray()
    while value > _DIGIT:
        digits.append(value & _DIGIT | MORE_DIGITS)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def binary(value: bytes) -> bytes:
    """Write bytes with their length in front."""
    assert len(value) <= STRING_BYTES_MAX
    return len(value).to_bytes(2, "big") + value


def packet(head: int, body: bytes) -> bytes:
    """Write a packet from its first byte and what follows its length."""
    return bytes((head,)) + variable(len(body)) + body
