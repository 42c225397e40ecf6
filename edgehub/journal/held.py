"""Held segments: events under a clock that is not trusted, until their date is known.

Owns, for each of them, two files in the folder of the date `unknown`: lines with the times of the
untrusted clock, for searches until then, and the events themselves, to be written again with right
times once these are known. If they never are, the lines become a segment as they are. Blocking
code, called on a worker thread, except for reads of memory. Invariants: the ledger's state before
the first event precedes the events, so that writing them again needs nothing else; bytes beyond a
stored length are ignored.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct

from edgehub.journal.segments import Segment
from edgehub.storage.durable_files import make_folder, write_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from edgehub.journal.segments import Segments

EVENTS: Final = ".events"
READ_BYTES_MAX: Final = 64 * 1024
_RECORD: Final = struct.Struct(">QI")
"""Number of the commit and length of its events; number 0 is the ledger's state."""


class HeldSegment(Struct, eq=False):
    """One held segment.

    Attributes:
        lines: As the machine believed.
        hub_ms: Hub time of the last commit in it.
        account: Stands before the events; written with the first of them.
        length: Bytes of events that are on stable storage.
        rewritten: Bytes of them that have been written again.
    """

    lines: Segment
    hub_ms: int
    account: list[Any]
    length: int = 0
    rewritten: int = 0

    @property
    def size(self) -> int:
        """Size of both files."""
        return self.lines.length + self.length

    def document(self) -> list[Any]:
        """Return what JSON can hold, for `Held.resume`."""
        return [self.lines.document(), self.hub_ms, self.length, self.rewritten]


class Held:
    """All held segments, oldest first.

    Args:
        segments: The journal's folder.
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._growing: HeldSegment | None = None
        self.entries: list[HeldSegment] = []
        self.rewriting = False
        """Their events are being written again."""

    @property
    def size(self) -> int:
        """Size of all files."""
        return sum([entry.size for entry in self.entries])

    def growing(self, hour: int, bytes_max: int) -> HeldSegment | None:
        """Return the segment that takes the events of an hour of hub time, None = begin one."""
        entry = self._growing
        if entry is None or entry.lines.hour != hour or entry.size >= bytes_max:
            return None
        return entry

    def begin(self, hour: int, commit: int, hub_ms: int, account: list[Any]) -> HeldSegment:
        """Start a segment with some commit; `account` is the ledger's state before it."""
        self._growing = HeldSegment(self._segments.begin(None, hour, commit), hub_ms, account)
        self.entries.append(self._growing)
        return self._growing

    def append(
        self, entry: HeldSegment, texts: Sequence[bytes], events: Sequence[tuple[int, bytes]]
    ) -> None:
        """Write lines and events behind the others and wait until they are on stable storage.

        Raises:
            OSError: Nothing counts as written; all have to be resumed.
        """
        file = self._events_file(entry)
        records = [] if entry.length else [_record(0, zlib.compress(orjson.dumps(entry.account)))]
        if not entry.length:
            entry.rewritten = len(records[0])
            make_folder(file.parent, mode=0o700, top=self._segments.folder)
        content = b"".join([*records, *(_record(number, blob) for number, blob in events)])
        write_end(file, entry.length, content)
        # The folder, and with it the name of this file, is synced with the first lines.
        self._segments.append(entry.lines, texts)
        entry.length += len(content)

    def account(self) -> list[Any]:
        """Return the ledger's state before the oldest event.

        Raises:
            OSError: It cannot be read.
        """
        file = self._events_file(self.entries[0])
        with file.open("rb") as stream, _readable(file):
            _, length = _RECORD.unpack(stream.read(_RECORD.size))
            account: list[Any] = orjson.loads(zlib.decompress(stream.read(length)))
        return account

    def read(self) -> tuple[list[tuple[int, bytes]], int]:
        """Read some of the oldest events that have not been written again.

        Returns:
            Their commits and blobs, and what `rewritten` of their segment is once they have been.

        Raises:
            OSError: They cannot be read.
        """
        entry = self.entries[0]
        found: list[tuple[int, bytes]] = []
        rewritten = entry.rewritten
        file = self._events_file(entry)
        with file.open("rb") as stream, _readable(file):
            stream.seek(rewritten)
            while rewritten < entry.length and rewritten - entry.rewritten < READ_BYTES_MAX:
                number, length = _RECORD.unpack(stream.read(_RECORD.size))
                found.append((number, stream.read(length)))
                rewritten += _RECORD.size + length
        return found, rewritten

    def rewritten(self, rewritten: int) -> None:
        """Record up to where events have been written again; remove a segment without others."""
        entry = self.entries[0]
        entry.rewritten = rewritten
        if rewritten >= entry.length:
            self._pop()

    def give_up(self) -> None:
        """Make the lines of the oldest segment a segment of the date `unknown`, as they are.

        Raises:
            OSError: It is as before; all have to be resumed.
        """
        entry = self.entries[0]
        is_whole = True
        if entry is not self._growing:
            with self.lines_file(entry).open("rb") as stream:
                is_whole = entry.lines.take_over(stream)
        if is_whole and entry.lines.has_lines:
            self._segments.close(entry.lines)
        self._pop()

    def clean(self) -> None:
        """Delete files of segments that are held no more; after the position was stored.

        Raises:
            OSError: A file cannot be deleted.
        """
        kept = {self.lines_file(entry) for entry in self.entries}
        kept |= {self._events_file(entry) for entry in self.entries}
        folder = self._segments.folder
        for pattern in (f"date=unknown/*/*{EVENTS}", "date=unknown/*/*.open"):
            for file in folder.glob(pattern):
                if file not in kept:
                    file.unlink()

    def resume(self, documents: Iterable[list[Any]], *, rewriting: bool) -> bool:
        """Cut what was written after the last stored position.

        Args:
            documents: Segments at that position, oldest first.
            rewriting: Their events were being written again.

        Returns:
            Whether one of them is held no more: it was given up, or was edited.

        Raises:
            OSError: A file cannot be read or cut.
        """
        self.entries.clear()
        self.rewriting = rewriting
        # A new segment goes on, so that nothing has to be read again.
        self._growing = None
        is_whole = True
        for lines, hub_ms, length, rewritten in documents:
            entry = HeldSegment(Segment.restore(lines), hub_ms, [], length, rewritten)
            if _cut(self.lines_file(entry), entry.lines.length) and _cut(
                self._events_file(entry), length
            ):
                self.entries.append(entry)
            else:
                is_whole = False
        self.rewriting = rewriting and bool(self.entries)
        self.clean()
        return not is_whole

    def lines_file(self, entry: HeldSegment) -> Path:
        """Return the file of lines of a held segment, for those who read it."""
        return self._segments.growing_file(entry.lines)

    def _events_file(self, entry: HeldSegment) -> Path:
        return self._segments.folder / f"{entry.lines.path}{EVENTS}"

    def _pop(self) -> None:
        if self.entries.pop(0) is self._growing:
            self._growing = None
        self.rewriting = self.rewriting and bool(self.entries)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raise `OSError` where a file of events is damaged."""
    try:
        yield
    except (struct.error, zlib.error, ValueError) as error:
        raise OSError(errno.EIO, f"damaged: {error}", str(file)) from error


def _record(number: int, content: bytes) -> bytes:
    return _RECORD.pack(number, len(content)) + content


def _cut(file: Path, length: int) -> bool:
    """Cut a file; False = it is not there, or shorter."""
    try:
        with file.open("r+b") as stream:
            if stream.seek(0, os.SEEK_END) < length:
                return False
            stream.truncate(length)
            os.fsync(stream.fileno())
    except FileNotFoundError:
        return False
    return True
