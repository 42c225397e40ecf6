"""The write-ahead log of an SQLite file: whether it is damaged, and one in its place that is not.

SQLite ends the replay of a log at the first frame whose checksum does not fit, and takes all behind
it for the torn end of a transaction that was never committed. Where the disk has changed a byte,
that is every transaction since. Plain blocking code, to be run before SQLite opens the file for
writing. Invariants: with `synchronous = FULL` a transaction is written only after the sync of the
one before, so a commit frame with another frame chained to it was durable, and all before it was;
the log that is found stays as it is until a whole one takes its name.

Source: https://www.sqlite.org/walformat.html; https://www.sqlite.org/fileformat2.html, section 4.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from shutil import copyfile
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import structlog
from msgspec import Struct

from edgehub.storage.durable_files import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

log = structlog.get_logger(__name__)

PAGE_BYTES: Final = 4096
LOG_HEADER: Final = struct.Struct(">8I")
FRAME_HEADER: Final = struct.Struct(">6I")
FRAME_BYTES: Final = FRAME_HEADER.size + PAGE_BYTES
LOG_MAGIC: Final = 0x377F0682
"""Of sums over little-endian words; the next number is that of big-endian ones."""
LOG_VERSION: Final = 3007000
KEPT_MAX: Final = 3
"""Damaged logs that are kept, the newest."""

_PAIR: Final = struct.Struct(">2I")
_INDEX_FRAMES: Final = 16
"""Where SQLite's index of the log says how many frames count."""
_COPY_BYTES: Final = 2**20

Sums = tuple[int, int]


def checksum(before: Sums, data: bytes, *, big: bool) -> Sums:
    """Return SQLite's checksum of some bytes, chained to the one before."""
    first, second = before
    words = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    pairs = iter(words)
    for word in pairs:
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + next(pairs) + first) & 0xFFFFFFFF
    return first, second


def _summed(frame: bytes) -> bytes:
    """Return what the checksum of a frame covers: page number, pages of the file, and the page."""
    return frame[:8] + frame[FRAME_HEADER.size :]


class LogHeader(NamedTuple):
    """The first 32 bytes of a log.

    Attributes:
        big: Checksums are over big-endian words.
        sequence: Checkpoints of the file.
        salts: What all frames of this round of the log carry.
        sums: Checksum; the one of the first frame is chained to it.
    """

    big: bool
    sequence: int
    salts: Sums
    sums: Sums

    @classmethod
    def read(cls, data: bytes) -> LogHeader | None:
        """Parse it, None = it is not as SQLite writes it, with pages of our size."""
        if len(data) != LOG_HEADER.size:
            return None
        magic, version, page_bytes, sequence, *rest = LOG_HEADER.unpack(data)
        header = cls(bool(magic & 1), sequence, (rest[0], rest[1]), (rest[2], rest[3]))
        if (magic & ~1, version, page_bytes) != (LOG_MAGIC, LOG_VERSION, PAGE_BYTES):
            return None
        return header if checksum((0, 0), data[:24], big=header.big) == header.sums else None

    def written(self) -> bytes:
        """Return the 32 bytes; the checksum is computed."""
        start = (LOG_MAGIC + self.big, LOG_VERSION, PAGE_BYTES, self.sequence, *self.salts)
        data = struct.pack(">6I", *start)
        return data + _PAIR.pack(*checksum((0, 0), data, big=self.big))


class _Frame(Struct):
    """A frame behind those that SQLite accepts.

    Attributes:
        place: Where it begins in the log.
        number: Number of its page.
        pages: Pages of the file, where it ends a transaction, else 0.
        is_ours: It carries the salts of this round.
        is_chained: Its checksum follows from what the frame before has for one.
        is_proven: Its page is as it was written.
        may_be_renumbered: A change of its page's number alone would explain its checksum.
    """

    place: int
    number: int
    pages: int
    is_ours: bool
    is_chained: bool
    is_proven: bool
    may_be_renumbered: bool = False

    @property
    def is_sound(self) -> bool:
        """Return whether SQLite would accept it."""
        return self.is_ours and self.is_chained


class _NewFrame(NamedTuple):
    """A frame of the log that takes the place of a damaged one.

    Attributes:
        place: Where its page is in the damaged one, 0 = it is lost.
        number: Number of the page.
        pages: Pages of the file, where it ends a transaction, else 0.
    """

    place: int
    number: int
    pages: int


class LogDamage(Struct, frozen=True):
    """What is wrong with a log, and what a whole one in its place holds.

    Attributes:
        reason: What is wrong.
        lost: Pages whose newest content is lost, by number; they become pages of zeros.
        is_exact: False = the newest content of further pages is lost, and it is not known of which.
        header: Of the new log.
        accepted: Frames at the beginning that are as they should be.
        frames: Those behind them.
    """

    reason: str
    lost: frozenset[int]
    is_exact: bool
    header: LogHeader
    accepted: int
    frames: list[_NewFrame]

    @property
    def is_restored(self) -> bool:
        """Return whether the new log holds all that was committed."""
        return self.is_exact and not self.lost


def find_log_damage(path: Path) -> LogDamage | None:
    """Return what is wrong with the log of a database file, None = nothing, or there is none.

    Where the last transaction alone is not whole it was being written when the power went, or it is
    damaged: that cannot be known, so it is logged, and left out as SQLite does. Costs one replay by
    SQLite, and 0.1 ms for each frame that it does not accept though it is of this round.

    Raises:
        OSError: The log cannot be read.
    """
    try:
        log = os.open(log_path(path), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # SQLite does not look at the log of an empty file.
        if os.fstat(log).st_size < LOG_HEADER.size + FRAME_BYTES or not path.stat().st_size:
            return None
        return _Reader(log).damage(path)
    finally:
        os.close(log)


def replace_log(path: Path, damage: LogDamage, found: datetime) -> str:
    """Put a whole log in the place of a damaged one, which is set aside; return its new name.

    Raises:
        OSError: There is no room for it, or the disk fails.
    """
    log = log_path(path)
    partial = log.with_name(f"{log.name}.new")
    descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with partial.open("wb") as file:
            os.fchmod(file.fileno(), os.fstat(descriptor).st_mode & 0o777)
            file.writelines(_written(descriptor, damage))
            file.flush()
            os.fsync(file.fileno())
        aside = log.with_name(f"{log.name}.damaged-{found:%Y%m%dT%H%M%SZ}")
        _keep_as(log, aside)
        partial.replace(log)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync_folder(path.parent)
    for old in damaged_logs(path)[:-KEPT_MAX]:
        log.with_name(old).unlink(missing_ok=True)
    return aside.name


def damaged_logs(path: Path) -> list[str]:
    """List the names of damaged logs of a file that were set aside, the newest last."""
    log = log_path(path)
    return sorted(each.name for each in log.parent.glob(f"{log.name}.damaged-*"))


def log_path(path: Path) -> Path:
    """Return the name of a database file's log."""
    return path.with_name(f"{path.name}-wal")


class _Reader:
    def __init__(self, log: int) -> None:
        self._log = log
        self._count = (os.fstat(log).st_size - LOG_HEADER.size) // FRAME_BYTES
        self._head = os.pread(log, LOG_HEADER.size, 0)
        self._header = LogHeader.read(self._head)

    def damage(self, path: Path) -> LogDamage | None:
        header, accepted = self._header, 0
        if header is None:
            header = self._guessed_header()
            if header is None:
                return None
        else:
            accepted = min(_frames_accepted(path), self._count)
        frames = self._frames(header, accepted, self._end_of(header.salts, accepted))
        damaged = next((at for at, frame in enumerate(frames) if not frame.is_sound), -1)
        if self._header is None:
            damaged = 0
        if damaged < 0:
            return None
        end = _last_committed(frames, damaged)
        if end < damaged:
            if any(frame.pages and frame.is_ours for frame in frames[damaged:]):
                log.warning("store.log_end_not_whole", path=str(log_path(path)))
            return None
        where = "its header" if self._header is None else f"frame {accepted + damaged + 1}"
        reason = f"the write-ahead log is damaged: {where}, {accepted + end + 1} frames in all"
        return _replacement(reason, header, accepted, frames[: end + 1])

    def _guessed_header(self) -> LogHeader | None:
        """Make up what is wrong of a header from the first frame that fits the one before."""
        sequence = int.from_bytes(self._head[12:16])
        stored = _PAIR.unpack_from(self._head, 24)
        for big in (False, True):
            computed = checksum((0, 0), self._head[:24], big=big)
            if computed == stored and int.from_bytes(self._head[:4]) == LOG_MAGIC + big:
                return None  # it is whole: pages of another size
            seeds = [stored, computed]
            for index in range(self._count):
                frame = self._raw(index)
                first, second, *salts = _PAIR.unpack_from(frame, 16) + _PAIR.unpack_from(frame, 8)
                for seed in seeds:
                    sums = checksum(seed, _summed(frame), big=big)
                    # Zeros fit zeros, and no page has the number 0.
                    if sums == (first, second) and any(frame[:4]):
                        return LogHeader(big, sequence, (salts[0], salts[1]), stored)
                seeds = [(first, second)]
        return None

    def _raw(self, index: int) -> bytes:
        return os.pread(self._log, FRAME_BYTES, LOG_HEADER.size + index * FRAME_BYTES)

    def _end_of(self, salts: Sums, accepted: int) -> int:
        """Return where this round ends, and one more frame: the salts of its last may be bad."""
        wanted = _PAIR.pack(*salts)
        for index in range(self._count - 1, accepted - 1, -1):
            place = LOG_HEADER.size + index * FRAME_BYTES + 8
            if os.pread(self._log, _PAIR.size, place) == wanted:
                return min(index + 2, self._count)
        return min(accepted + 1, self._count)

    def _frames(self, header: LogHeader, accepted: int, end: int) -> list[_Frame]:
        found: list[_Frame] = []
        stored = header.sums
        computed = (
            header.sums if self._header else checksum((0, 0), self._head[:24], big=header.big)
        )
        if accepted:
            stored = computed = _PAIR.unpack_from(self._raw(accepted - 1), 16)
        for index in range(accepted, end):
            raw = self._raw(index)
            number, pages, *salts, first, second = FRAME_HEADER.unpack_from(raw)
            summed = _summed(raw)
            sums = checksum(stored, summed, big=header.big)
            is_chained = number > 0 and sums == (first, second)
            if not is_chained and computed != stored:
                # Nothing but the checksum of the one before may be wrong.
                other = checksum(computed, summed, big=header.big)
                if other == (first, second):
                    sums, is_chained = other, True
                    for before in found[-1:]:
                        before.is_proven = True
            frame = _Frame(
                place=LOG_HEADER.size + index * FRAME_BYTES,
                number=number,
                pages=pages,
                is_ours=tuple(salts) == header.salts,
                is_chained=is_chained,
                is_proven=is_chained,
            )
            if not is_chained:
                difference = (first - sums[0], second - sums[1])
                frame.may_be_renumbered = _is_of_first_word(difference, len(summed) // 4)
            found.append(frame)
            stored, computed = (first, second), sums
        return found


def _last_committed(frames: list[_Frame], damaged: int) -> int:
    """Return the last frame of what was committed, -1 = nothing of it is known to have been.

    Args:
        frames: Those behind what SQLite accepts.
        damaged: The first of them that is.
    """
    following = enumerate(pairwise(frames[damaged:]), start=damaged)
    durable = [
        at for at, (frame, after) in following if frame.pages and frame.is_ours and after.is_chained
    ]
    end = max(durable, default=-1)
    for at in range(end + 1, len(frames)):
        if not frames[at].is_proven:
            break
        if frames[at].pages:
            end = at
    return end


def _replacement(reason: str, header: LogHeader, accepted: int, frames: list[_Frame]) -> LogDamage:
    newest = {frame.number: at for at, frame in enumerate(frames) if frame.is_proven}
    pages_max = max(frame.pages for frame in frames)
    lost: set[int] = set()
    is_exact = True
    kept: list[_NewFrame] = []
    for at, frame in enumerate(frames):
        if frame.is_proven:
            kept.append(_NewFrame(frame.place, frame.number, frame.pages))
        elif not frame.is_ours or frame.may_be_renumbered or not 0 < frame.number <= pages_max:
            is_exact = False
        elif newest.get(frame.number, -1) < at:
            lost.add(frame.number)
            kept.append(_NewFrame(0, frame.number, 0))
    if kept and not kept[-1].pages:
        # Its own end is lost. A file that is taken for too long has no more pages in use.
        pages = max(pages_max, *(frame.number for frame in kept))
        kept[-1] = kept[-1]._replace(pages=pages)
    return LogDamage(reason, frozenset(lost), is_exact, header, accepted, kept)


def _written(log: int, damage: LogDamage) -> Iterator[bytes]:
    header = damage.header.written()
    yield header
    end = LOG_HEADER.size + damage.accepted * FRAME_BYTES
    for place in range(LOG_HEADER.size, end, _COPY_BYTES):
        yield os.pread(log, min(_COPY_BYTES, end - place), place)
    sums = _PAIR.unpack_from(header, 24)
    if damage.accepted:
        sums = _PAIR.unpack_from(os.pread(log, _PAIR.size, end - FRAME_BYTES + 16))
    for place, number, pages in damage.frames:
        page = os.pread(log, PAGE_BYTES, place + FRAME_HEADER.size) if place else bytes(PAGE_BYTES)
        start = _PAIR.pack(number, pages)
        sums = checksum(sums, start + page, big=damage.header.big)
        yield start + _PAIR.pack(*damage.header.salts) + _PAIR.pack(*sums) + page


def _keep_as(log: Path, aside: Path) -> None:
    """Link a log under a second name, or copy it where the file system has one name for a file."""
    if aside.exists():
        return
    try:
        os.link(log, aside)
    except OSError:
        copyfile(log, aside)


def _frames_accepted(path: Path) -> int:
    """Return how many frames SQLite would replay; 0 where it cannot make its index of the log."""
    uri = f"file:{quote(str(path))}?mode=ro"
    # SQLite's locks on the index end with the first descriptor that is closed, so it goes last.
    with ExitStack() as closed_last:
        try:
            connection = closed_last.enter_context(closing(sqlite3.connect(uri, uri=True)))
            with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                # It replays the log first, whatever it finds in the file then.
                connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
            index = path.with_name(f"{path.name}-shm").open("rb")
        except (sqlite3.Error, OSError):
            return 0
        with index:
            data = index.read(_INDEX_FRAMES + 4)
            connection.close()
        return int.from_bytes(data[_INDEX_FRAMES:], sys.byteorder)


def _is_of_first_word(difference: Sums, words: int) -> bool:
    """Return whether a change of the first of some words alone may make a difference of sums.

    A change of the last word changes the second sum alone, by as much; that of the one before both,
    and so on by Fibonacci's rule, which is followed backwards here.
    """
    first, second = difference
    for _ in range(words - 1):
        first, second = (second - first) & 0xFFFFFFFF, first & 0xFFFFFFFF
    return first == 0
