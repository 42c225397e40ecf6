"""Segments: files of lines, one date each, compressed while they grow.

Owns the journal's folder. Plain blocking code, called on a worker thread. A growing segment is one
gzip stream that is flushed after each step, so it can be cut where a step ended and go on from
there; its end is written when it is closed. Invariants: a file without `.open` is whole and never
changes; what `append` returned for is on stable storage.
"""

from __future__ import annotations

import os
import re
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec import Struct, field

from edgehub.journal.lines import day_text
from edgehub.storage.durable_files import make_folder, sync_folder, write_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import BinaryIO

LEVEL: Final = 2
"""Takes two fifths of the time of the usual level 6 for a sixth more bytes."""
SUFFIX: Final = ".jsonl.gz"
OPEN: Final = ".open"
UNKNOWN: Final = "unknown"
NO_CHECKSUM: Final = -1
"""Of a segment whose position was stored by a version that stored no checksum."""
HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Without name and time: the same lines give the same bytes."""
PIECE_BYTES: Final = 64 * 1024
TEXT_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"(\d{12})-[0-9a-f]{8}\.jsonl\.gz")

log = structlog.get_logger(__name__)


class Segment(Struct, eq=False):
    """A growing segment.

    Attributes:
        path: Relative to the journal's folder, as it will be called.
        day: Date of its lines, days since 1970; None = it is not known.
        hour: UTC hour of its lines, hours since 1970; of hub time where the date is not known.
        last_commit: Number of the last commit in it.
        length: Bytes that are on stable storage.
    """

    path: str
    day: int | None
    hour: int
    last_commit: int = 0
    length: int = 0
    _checksum: int = 0
    _size: int = 0
    _compressor: Any = field(
        default_factory=partial(zlib.compressobj, LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    )

    @property
    def has_lines(self) -> bool:
        """Whether a line is in it."""
        return self._size > 0

    def document(self) -> list[Any]:
        """Return what JSON can hold, for `restore`."""
        return [self.path, self.day, self.hour, self.last_commit, self.length, self._checksum]

    @classmethod
    def restore(cls, document: list[Any]) -> Segment:
        """Return the segment that a document describes; `take_over` goes on with it."""
        path, day, hour, last_commit, length, *checksum = document
        return cls(path, day, hour, last_commit, length, checksum[0] if checksum else NO_CHECKSUM)

    def compress(self, texts: Iterable[bytes]) -> bytes:
        """Return the bytes that go behind those written so far."""
        packed = [] if self.length else [HEADER]
        for text in texts:
            packed.append(self._compressor.compress(text))
            self._checksum = zlib.crc32(text, self._checksum)
            self._size += len(text)
        packed.append(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        return b"".join(packed)

    def end(self) -> bytes:
        """Return the end of the stream."""
        size = self._size % 2**32
        sums = self._checksum.to_bytes(4, "little") + size.to_bytes(4, "little")
        end: bytes = self._compressor.flush()
        return end + sums

    def take_over(self, stream: BinaryIO) -> bool:
        """Go on behind the bytes of a stream that count; False = some are missing or damaged."""
        stored = self._checksum
        try:
            is_whole = self._inflate(stream) and stored in {self._checksum, NO_CHECKSUM}
        except zlib.error:
            is_whole = False
        if not is_whole:
            # Its lines are lost, those after it are not.
            log.error("journal.segment_lost", path=self.path)
        return is_whole

    def _inflate(self, stream: BinaryIO) -> bool:
        """Sum up the text of the bytes that count; returns whether all of them are there.

        Piece by piece: as text a whole segment is some hundred megabytes.
        """
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._checksum = self._size = 0
        left = self.length - len(stream.read(min(self.length, len(HEADER))))
        while left > 0 and (packed := stream.read(min(left, PIECE_BYTES))):
            left -= len(packed)
            while packed:
                text = inflate.decompress(packed, TEXT_BYTES)
                packed = inflate.unconsumed_tail
                self._checksum = zlib.crc32(text, self._checksum)
                self._size += len(text)
        return left == 0


class ClosedSegment(Struct, frozen=True, kw_only=True):
    """A whole segment.

    Attributes:
        path: Relative to the journal's folder, with `/`.
        date: Of its lines, `unknown` = it is not known.
        bytes: Size of the file.
    """

    path: str
    date: str
    bytes: int


class Segments:
    """The journal's folder.

    Args:
        folder: Made if need be.
        hub_id: Names the part of a date's folder.
        store_id: Id of the database file, 16 hex digits.
    """

    def __init__(self, folder: Path, *, hub_id: str, store_id: str) -> None:
        self.folder = folder
        self._hub_id = hub_id
        self._store_id = store_id

    def begin(self, day: int | None, hour: int, commit: int) -> Segment:
        """Begin a segment with the lines of some commit; without a day their date is not known."""
        name = f"{commit:012d}-{self._store_id[:8]}{SUFFIX}"
        date = UNKNOWN if day is None else day_text(day)
        return Segment(f"date={date}/hub={self._hub_id}/{name}", day, hour)

    def append(self, segment: Segment, texts: Sequence[bytes]) -> None:
        """Write lines behind the others and wait until they are on stable storage.

        Raises:
            OSError: Nothing counts as written; the segment has to be resumed.
        """
        path = self._open_path(segment.path)
        content = segment.compress(texts)
        if not segment.length:
            make_folder(path.parent, mode=0o700, top=self.folder)
        write_end(path, segment.length, content)
        if not segment.length:
            sync_folder(path.parent)
        segment.length += len(content)

    def close(self, segment: Segment) -> None:
        """Write the end of a segment; from then on it is whole.

        Raises:
            OSError: It is as before; it has to be resumed.
        """
        path = self._open_path(segment.path)
        write_end(path, segment.length, segment.end())
        path.rename(self.folder / segment.path)
        sync_folder(path.parent)

    def resume(self, documents: Iterable[list[Any]]) -> list[Segment]:
        """Cut what was written after the last stored position, and go on from there.

        Args:
            documents: Growing segments at that position, oldest first.

        Returns:
            Those of them that were not closed since.
        """
        known: list[Segment] = []
        for document in documents:
            segment = Segment.restore(document)
            file = self._open_path(segment.path)
            if not file.exists():
                continue  # closed or deleted since
            with file.open("r+b") as stream:
                if not segment.take_over(stream):
                    continue
                stream.truncate(segment.length)
                os.fsync(stream.fileno())
            known.append(segment)
        for file in self.folder.glob(f"date=[0-9]*/*/*{SUFFIX}{OPEN}"):
            if file not in [self._open_path(segment.path) for segment in known]:
                file.unlink()
        return known

    def closed(self) -> list[ClosedSegment]:
        """List the whole segments, oldest first."""
        found: list[tuple[str, str, ClosedSegment]] = []
        for file in self.folder.glob(f"date=*/*/*{SUFFIX}"):
            date = file.parent.parent.name.removeprefix("date=")
            if _NAME.fullmatch(file.name):
                path = file.relative_to(self.folder).as_posix()
                entry = ClosedSegment(path=path, date=date, bytes=file.stat().st_size)
                found.append((date, file.name, entry))
        return [entry for *_, entry in sorted(found, key=lambda item: item[:2])]

    def remove(self, path: str) -> None:
        """Delete a whole segment, and its folders when they are empty."""
        file = self.folder / path
        file.unlink(missing_ok=True)
        for parent in (file.parent, file.parent.parent):
            try:
                parent.rmdir()
            except OSError:
                return  # not empty, or in use

    def growing_file(self, segment: Segment) -> Path:
        """Return the file of a growing segment, for those who read it."""
        return self._open_path(segment.path)

    def _open_path(self, path: str) -> Path:
        return self.folder / f"{path}{OPEN}"
