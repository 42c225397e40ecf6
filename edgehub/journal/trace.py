"""Finds the lines of one message, from the newest segment back.

Blocking code, called on a worker thread; bounded by time. Invariant: lines are in the order of the
events; the result says whether older ones may be missing.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct, field

from edgehub.journal.segments import OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LINES_MAX: Final = 200
CHUNK_BYTES: Final = 64 * 1024
TEXT_BYTES: Final = 1024 * 1024
_ENQUEUED: Final = b'"event":"enqueued"'
_SENT: Final = re.compile(
    rb'"event":"sent","endpoint":("(?:[^"\\]|\\.)*")(?:,"priority":(\d{1,18}))?'
    rb',"offset":(\d{1,18})'
)


class Passed(Struct, frozen=True, kw_only=True):
    """Which rows have overtaken one.

    Attributes:
        endpoint_id: Where they went.
        offset: Rows with higher offsets came later.
    """

    endpoint_id: str
    offset: int


class Trace(Struct):
    """What was found.

    Attributes:
        lines: Of the message, oldest first, at most `LINES_MAX`.
        complete: Its first line was found, and all lines after it could be read.
        overtakers: For each of those asked for: rows that came later and left earlier, by priority
            (None = the default one).
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    overtakers: list[dict[int | None, int]] = field(default_factory=list)


def trace(
    files: Sequence[Path],
    message_id: str,
    *,
    passed: Sequence[Passed],
    seconds_max: float,
    monotonic: Callable[[], float],
) -> Trace:
    """Look through segments.

    Args:
        files: Segments, newest first.
        message_id: Of the hub.
        passed: Count rows that have overtaken these.
        seconds_max: Stop after this time.
        monotonic: Monotonic seconds.
    """
    until_s = monotonic() + seconds_max
    needle = b'"message":' + orjson.dumps(message_id)
    found = Trace(overtakers=[{} for _ in passed])
    begun, unread = False, Unread()
    for file in files:
        older: list[dict[str, Any]] = []
        for text in whole_lines(file, unread):
            begun = _look(text, needle, older) or begun
            for each, overtakers in zip(passed, found.overtakers, strict=True):
                _count(text, each, overtakers)
            if monotonic() >= until_s:
                break
        found.lines = [*older, *found.lines][-LINES_MAX:]
        if begun or monotonic() >= until_s:
            break
    found.complete = begun and not unread.files
    return found


def _look(text: bytes, needle: bytes, lines: list[dict[str, Any]]) -> bool:
    """Collect lines of the message; return whether one of them is its first."""
    begun = False
    at = text.find(needle)
    while at >= 0:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        line = text[start:end]
        at = text.find(needle, end)
        document = document_of(line)
        if document is None:
            continue
        begun = begun or _ENQUEUED in line
        lines.append(document)
        del lines[:-LINES_MAX]
    return begun


def _count(text: bytes, passed: Passed, overtakers: dict[int | None, int]) -> None:
    endpoint = orjson.dumps(passed.endpoint_id)
    for match in _SENT.finditer(text):
        if match[1] == endpoint and int(match[3]) > passed.offset:
            priority = None if match[2] is None else int(match[2])
            overtakers[priority] = overtakers.get(priority, 0) + 1


def document_of(line: bytes) -> dict[str, Any] | None:
    """Return the document of a line, None = it is damaged: text is read before its checksum."""
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


class Unread(Struct):
    """Segments that could not be read to their end.

    Attributes:
        files: How many.
    """

    files: int = 0


def whole_lines(file: Path, unread: Unread) -> Iterator[bytes]:
    """Return whole lines of a segment, some at a time; it may be growing or removed.

    Args:
        file: The segment.
        unread: Counts it if it is damaged, cut short or removed: lines of it are missing.
    """
    rest = b""
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        with file.open("rb") as stream:
            while packed := stream.read(CHUNK_BYTES):
                while packed:
                    # Lines repeat: a piece of a file may hold a thousand times its size.
                    text = rest + decompressor.decompress(packed, TEXT_BYTES)
                    packed = decompressor.unconsumed_tail
                    whole, newline, rest = text.rpartition(b"\n")
                    if newline:
                        yield whole + newline
    except (OSError, zlib.error):
        # Exported and dropped, or damaged; other segments go on.
        unread.files += 1
        return
    if not decompressor.eof and file.suffix != OPEN:
        unread.files += 1
