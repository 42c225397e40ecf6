"""The newest lines of the journal that fit a query, from the newest segment back.

Plain blocking code, called on a worker thread. Invariant: bounded by time, number of lines and
bytes; whether older lines may be missing is returned.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from edgehub.journal.trace import Unread, document_of, whole_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LINES_MAX: Final = 1000
BYTES_MAX: Final = 2**20
_TIME: Final = b'"time":"'


class LineQuery(Struct, frozen=True, kw_only=True):
    """Which lines to look for.

    Attributes:
        event: Name of an event, None = all.
        queue: Endpoint and priority (None = the default one), None = all queues.
        since: UTC as lines have it, `2026-11-28T02:49:44.123Z`; older lines do not fit.
        lines_max: The newest so many, at most `LINES_MAX`.
    """

    event: str | None
    queue: tuple[str, int | None] | None
    since: str
    lines_max: int


@dataclass(slots=True)
class FoundLines:
    """The lines that a query has found.

    Attributes:
        lines: The newest that fit, oldest first.
        found: How many fit, those that were left out included.
        complete: All lines that can match were read.
        unread_segments: Damaged, cut short or removed ones, whose lines are missing.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    found: int = 0
    complete: bool = True
    unread_segments: int = 0


def search(
    files: Sequence[Path],
    query: LineQuery,
    *,
    seconds_max: float,
    monotonic: Callable[[], float],
) -> FoundLines:
    """Search segments for the lines that fit.

    Args:
        files: Segments, newest first.
        query: What to look for.
        seconds_max: Stop after this time.
        monotonic: Monotonic seconds.
    """
    until_s = monotonic() + seconds_max
    result = FoundLines()
    room = _Room(query.lines_max)
    unread = Unread()
    for file in files:
        newest = _Room(room.lines_max - len(room.lines), room.bytes_max - room.bytes)
        is_older = False
        for text in whole_lines(file, unread):
            _look(text, query, newest, result)
            is_older = _time(text[text.rfind(b"\n", 0, -1) + 1 :]) < query.since
            if monotonic() >= until_s:
                result.complete = False
                break
        room.put_before(newest)
        if is_older or not result.complete:
            # The file ends before the time that is asked for, and the rest is older still.
            break
    result.unread_segments = unread.files
    result.complete = result.complete and not unread.files
    for line in room.lines:
        document = document_of(line)
        if document is None:
            result.found -= 1
        else:
            result.lines.append(document)
    return result


class _Room:
    """The newest lines that there is room for."""

    __slots__ = ("bytes", "bytes_max", "lines", "lines_max")

    def __init__(self, lines_max: int, bytes_max: int = BYTES_MAX) -> None:
        self.lines: deque[bytes] = deque()
        self.lines_max = lines_max
        self.bytes = 0
        self.bytes_max = bytes_max

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.bytes += len(line)
        while self.lines and (len(self.lines) > self.lines_max or self.bytes > self.bytes_max):
            self.bytes -= len(self.lines.popleft())

    def put_before(self, older: _Room) -> None:
        self.lines.extendleft(reversed(older.lines))
        self.bytes += older.bytes


def _look(text: bytes, query: LineQuery, room: _Room, result: FoundLines) -> None:
    # No text of a line can hold either, since quotes within a text are escaped.
    needle = _TIME if query.event is None else b'"event":"%s"' % query.event.encode()
    at = text.find(needle)
    while at >= 0:
        end = text.find(b"\n", at)
        line = text[text.rfind(b"\n", 0, at) + 1 : end]
        at = text.find(needle, end)
        if _time(line) >= query.since and _fits(line, query.queue):
            result.found += 1
            room.add(line)


def _fits(line: bytes, queue: tuple[str, int | None] | None) -> bool:
    if queue is None:
        return True
    document = document_of(line)
    return document is not None and queue == (document.get("endpoint"), document.get("priority"))


def _time(line: bytes) -> str:
    start = line.find(_TIME) + len(_TIME)
    return line[start : line.find(b'"', start)].decode(errors="replace")
