"""Pages and records of a database file, read without SQLite.

For files whose list of tables, or whose upper pages, SQLite cannot read any more. Knows the parts
of the format that the hub's own files use: pages of 4096 bytes, UTF-8, B-trees of tables and of
keys, overflow chains, and the write-ahead log. Only reads. Invariant: a record is returned whole,
or not at all.

Source: https://www.sqlite.org/fileformat2.html, sections 1.3 (header), 1.6 (B-tree pages), 2.1
(records), 4 (write-ahead log).
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

from edgehub.storage.sqlite_log import (
    FRAME_BYTES,
    FRAME_HEADER,
    LOG_HEADER,
    PAGE_BYTES,
    LogHeader,
    checksum,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADER_BYTES: Final = 100
MAGIC: Final = b"SQLite format 3\0"

KEYS_INNER: Final = 0x02
TABLE_INNER: Final = 0x05
KEYS_LEAF: Final = 0x0A
TABLE_LEAF: Final = 0x0D
"""Kinds of B-tree pages: the first byte. `KEYS` are indexes and tables WITHOUT ROWID."""
INNER: Final = frozenset({KEYS_INNER, TABLE_INNER})
KINDS: Final = frozenset({KEYS_INNER, TABLE_INNER, KEYS_LEAF, TABLE_LEAF})

LOCAL_MIN: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
KEY_LOCAL_MAX: Final = (PAGE_BYTES - 12) * 64 // 255 - 23
TABLE_LOCAL_MAX: Final = PAGE_BYTES - 35
"""Bytes of a record that stand on its own page."""
CHAINED_BYTES: Final = PAGE_BYTES - 4
RECORD_BYTES_MAX: Final = 1 << 28

MORE: Final = 0x80
"""Set in all bytes of a number but its last."""

WHOLE_NUMBER_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)
"""By the type in a record's header."""

Record = tuple[Any, ...]


class PageError(Exception):
    """A page or record is not as SQLite writes it."""


class PageFile:
    """The pages of a file as its last commit left them, its write-ahead log included.

    Attributes:
        count: How many there are; the first is number 1.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._log = -1
        self._frames: dict[int, int] = {}
        self.count = os.fstat(self._file).st_size // PAGE_BYTES
        try:
            self._log = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._frames, pages = _committed_frames(self._log)
        self.count = pages or self.count

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for descriptor in (self._file, self._log):
            if descriptor >= 0:
                os.close(descriptor)

    def page(self, number: int) -> bytes:
        """Read a page.

        Raises:
            PageError: There is none of that number, or the disk does not give it back.
        """
        place = self._frames.get(number)
        try:
            if place is None:
                page = os.pread(self._file, PAGE_BYTES, (number - 1) * PAGE_BYTES)
            else:
                page = os.pread(self._log, PAGE_BYTES, place)
        except (OSError, OverflowError) as exc:
            raise PageError from exc
        if number < 1 or len(page) != PAGE_BYTES:
            raise PageError
        return page


def _committed_frames(log: int) -> tuple[dict[int, int], int]:
    """Find the newest committed place of each page in the log, and the pages of the file by then.

    The log ends at the first frame that is not of this round or whose sums do not fit.
    """
    frames: dict[int, int] = {}
    header = LogHeader.read(os.pread(log, LOG_HEADER.size, 0))
    if header is None:
        return frames, 0
    open_frames: dict[int, int] = {}
    sums, pages = header.sums, 0
    place = LOG_HEADER.size
    while len(frame := os.pread(log, FRAME_BYTES, place)) == FRAME_BYTES:
        number, pages_then, *salts, first, second = FRAME_HEADER.unpack_from(frame)
        sums = checksum(sums, frame[:8] + frame[FRAME_HEADER.size :], big=header.big)
        if tuple(salts) != header.salts or sums != (first, second):
            break
        open_frames[number] = place + FRAME_HEADER.size
        if pages_then:
            frames |= open_frames
            open_frames.clear()
            pages = pages_then
        place += FRAME_BYTES
    return frames, pages


def children(page: bytes, count: int) -> list[int]:
    """Return the numbers of the pages below an inner page.

    Args:
        page: Part of it may be overwritten; then what is read by chance has no order.
        count: How many pages the file has.

    Raises:
        PageError: It is none, or not whole.
    """
    if page[0] not in INNER:
        raise PageError
    try:
        places = list(_cells(page))
        below = [int.from_bytes(page[place : place + 4]) for place in places]
        below.append(int.from_bytes(page[8:12]))
        keys = [varint(page, place + 4)[0] for place in places if page[0] == TABLE_INNER]
    except IndexError as exc:
        raise PageError from exc
    if not all(0 < number <= count for number in below) or len(set(below)) < len(below):
        raise PageError
    if any(key >= following for key, following in pairwise(keys)):
        raise PageError
    return below


def first_key(page: bytes) -> int:
    """Return the key of the first row on a leaf of a table, 0 = it cannot be read.

    So leaves can be read in the order of their rows.
    """
    try:
        place = next(iter(_cells(page)), None)
        if page[0] != TABLE_LEAF or place is None:
            return 0
        return varint(page, varint(page, place)[1])[0]
    except (PageError, IndexError):
        return 0


def _cells(page: bytes) -> Iterator[int]:
    """Return where the cells of a B-tree page begin.

    Raises:
        PageError: The page is none, or its list of cells is not whole.
    """
    if page[0] not in KINDS:
        raise PageError
    start = 12 if page[0] in INNER else 8
    count = int.from_bytes(page[3:5])
    if start + 2 * count > PAGE_BYTES:
        raise PageError
    places: tuple[int, ...] = struct.unpack_from(f">{count}H", page, start)
    for place in places:
        if not start + 2 * count <= place < PAGE_BYTES:
            raise PageError
        yield place


class RecordReader:
    """Reads the records of B-tree pages, cell by cell.

    Attributes:
        failures: Pages and cells that are not as SQLite writes them.
    """

    def __init__(self, pages: PageFile) -> None:
        self._pages = pages
        self.failures = 0

    def records(self, number: int, page: bytes) -> Iterator[tuple[int, Record]]:
        """Return key and values of each record on a page, whatever is between them.

        The key is 0 on pages of keys; inner pages of tables have no records.
        """
        if page[0] == TABLE_INNER:
            return
        try:
            places = list(_cells(page))
        except PageError:
            self.failures += 1
            return
        for place in places:
            try:
                key, payload = self._payload(number, page, place)
                record = decode(payload)
            except (PageError, ValueError, IndexError, struct.error):
                self.failures += 1
            else:
                yield key, record

    def _payload(self, number: int, page: bytes, place: int) -> tuple[int, bytes]:
        kind = page[0]
        if kind == KEYS_INNER:
            place += 4
        size, place = varint(page, place)
        key = 0
        if kind == TABLE_LEAF:
            key, place = varint(page, place)
        local_max = TABLE_LOCAL_MAX if kind == TABLE_LEAF else KEY_LOCAL_MAX
        if not 0 < size < RECORD_BYTES_MAX:
            raise PageError
        if size <= local_max:
            payload = page[place : place + size]
        else:
            local = LOCAL_MIN + (size - LOCAL_MIN) % CHAINED_BYTES
            if local > local_max:
                local = LOCAL_MIN
            chain = int.from_bytes(page[place + local : place + local + 4])
            payload = page[place : place + local] + self._chained(chain, size - local, number)
        if len(payload) != size:
            raise PageError
        return key, payload

    def _chained(self, number: int, size: int, owner: int) -> bytes:
        """Read an overflow chain, which ends where the record does."""
        parts: list[bytes] = []
        while size > 0:
            # A record that has more pages than the file goes in a circle.
            if number == owner or number < 1 or len(parts) == self._pages.count:
                raise PageError
            page = self._pages.page(number)
            owner, number = number, int.from_bytes(page[:4])
            parts.append(page[4 : 4 + size])
            size -= CHAINED_BYTES
        if number:
            raise PageError
        return b"".join(parts)


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Read a varint of one to nine bytes; return it, signed, and the place behind it."""
    byte = data[place]
    if byte < MORE:
        return byte, place + 1
    value = byte & ~MORE
    for at in range(place + 1, place + 8):
        byte = data[at]
        value = value << 7 | byte & ~MORE
        if byte < MORE:
            return value, at + 1
    value = value << 8 | data[place + 8]
    return (value - (1 << 64) if value >> 63 else value), place + 9


def decode(payload: bytes) -> Record:
    """Return the values of a record.

    Raises:
        ValueError, IndexError, struct.error: It is none.
    """
    end, place = varint(payload, 0)
    at = end
    values: list[Any] = []
    while place < end:
        kind, place = varint(payload, place)
        if kind >= 12:  # noqa: PLR2004 - by the format: texts are odd, blobs even
            size = (kind - 12) >> 1
            value: Any = payload[at : at + size]
            if kind & 1:
                value = value.decode("utf-8", "replace")
        elif 0 <= kind <= 6:  # noqa: PLR2004 - whole numbers
            size = WHOLE_NUMBER_BYTES[kind]
            value = int.from_bytes(payload[at : at + size], signed=True) if kind else None
        elif kind == 7:  # noqa: PLR2004 - a float
            size = 8
            value = struct.unpack_from(">d", payload, at)[0]
        elif kind in {8, 9}:
            size, value = 0, kind - 8
        else:
            raise ValueError(kind)
        at += size
        values.append(value)
    if place != end or at != len(payload) or not values:
        raise ValueError(len(payload))
    return tuple(values)
