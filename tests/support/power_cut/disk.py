"""A disk that forgets: replays recorded calls and builds what a power cut may leave of them.

Sure to be there: the bytes of a file that were written before the beginning of a completed sync of
that file, and the names that were made before the beginning of a completed sync of their folder.
All else may be there or not, in any order, and writes may be torn at 512 bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tests.support.power_cut.records import Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.power_cut.records import Record

SECTOR = 512


class Cut(StrEnum):
    """What becomes of that which no sync has covered."""

    NOTHING = "nothing"  # it is lost
    EVERYTHING = "everything"  # it is there: the kernel survived, or was quick
    FIRST = "first"  # it was written in order up to some sector
    TORN = "torn"  # some of its sectors, later writes over earlier ones
    REORDERED = "reordered"  # some of its sectors, in any order
    GARBAGE = "garbage"  # as torn, and new sectors not written hold anything


@dataclass(slots=True)
class Change:
    """A change of a file that no sync has covered yet."""

    number: int
    kind: Kind
    offset: int
    data: memoryview


@dataclass(slots=True, eq=False)
class File:
    """One file: what is stored of it, and what is not yet."""

    stored: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class Naming:
    """A change of names that no sync of the folder has covered yet; None = the name goes."""

    number: int
    folder: str
    names: dict[str, File | None]


FOLDER = File()
"""Stands for a folder in the names."""


class Disk:
    """The files below one folder, known by the records so far."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._files: dict[int, File] = {}
        self._folders: dict[int, str] = {}
        self._made_folders: set[str] = set()
        self._names: dict[str, File] = {}
        self._stored_names: dict[str, File] = {}
        self._pending_names: list[Naming] = []
        self._sync_began: dict[int, int] = {}

    def play(self, records: Iterable[Record]) -> None:
        """Let these calls happen."""
        for record in records:
            match record.kind:
                case Kind.WRITE | Kind.TRUNCATE | Kind.ALLOCATE:
                    self._files[record.inode].pending.append(
                        Change(next(self._numbers), record.kind, record.offset, record.data)
                    )
                case Kind.SYNC_BEGIN:
                    self._sync_began[record.offset] = next(self._numbers)
                case Kind.SYNC_END:
                    self._synced(record.inode, self._sync_began.pop(record.offset))
                case Kind.MARK:
                    pass
                case _:
                    self._rename(record)

    def image(self, folder: Path, cut: Cut, rng: random.Random) -> None:
        """Write into `folder` what a cut at this moment may leave."""
        names = self._names_after(cut, rng)
        gone = self._made_folders - names.keys()
        for name, file in names.items():
            if file is not FOLDER and not gone.intersection(map(str, PurePosixPath(name).parents)):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # No file system shows what others have written; SQLite counts on less.
                is_database = path.name.startswith("queue.db")
                shown = Cut.TORN if cut is Cut.GARBAGE and not is_database else cut
                path.write_bytes(_content(file, shown, rng))

    def _rename(self, record: Record) -> None:
        path = record.path
        folder = str(PurePosixPath(path).parent)
        match record.kind:
            case Kind.OPEN:
                file = self._names.get(path, FOLDER)
                if file is FOLDER:
                    # Its number may have been that of a file which is gone.
                    self._files.pop(record.inode, None)
                    self._folders[record.inode] = path or "."
                else:
                    self._files[record.inode] = file
                return
            case Kind.LINK:
                names: dict[str, File | None] = {path: File()}
                self._files[record.inode] = names[path]
            case Kind.MKDIR:
                self._made_folders.add(path)
                names = {path: FOLDER}
            case Kind.UNLINK:
                names = {path: None}
            case Kind.RENAME:
                names = {str(record.data, "utf-8"): self._names[path], path: None}
        self._pending_names.append(Naming(next(self._numbers), folder, names))
        _apply(self._names, names)

    def _synced(self, inode: int, began: int) -> None:
        file = self._files.get(inode)
        if file is not None:
            covered = [change for change in file.pending if change.number < began]
            file.pending = file.pending[len(covered) :]
            for change in covered:
                _write(file.stored, change)
            return
        folder = self._folders[inode]
        rest: list[Naming] = []
        for naming in self._pending_names:
            if naming.folder == folder and naming.number < began:
                _apply(self._stored_names, naming.names)
            else:
                rest.append(naming)
        self._pending_names = rest

    def _names_after(self, cut: Cut, rng: random.Random) -> dict[str, File]:
        names = dict(self._stored_names)
        left_out: set[str] = set()
        for naming in self._pending_names:
            # A change of a name rests on the earlier ones of that name.
            free = left_out.isdisjoint(naming.names)
            if cut is Cut.EVERYTHING or (cut is not Cut.NOTHING and free and rng.random() < 0.5):
                _apply(names, naming.names)
            else:
                left_out.update(naming.names)
        return names


def _apply(names: dict[str, File], changes: dict[str, File | None]) -> None:
    for name, file in changes.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _write(content: bytearray, change: Change) -> None:
    if change.kind is Kind.WRITE:
        if len(content) < change.offset:
            content.extend(bytes(change.offset - len(content)))
        content[change.offset : change.offset + len(change.data)] = change.data
    elif len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    elif change.kind is Kind.TRUNCATE:
        del content[change.offset :]


def _content(file: File, cut: Cut, rng: random.Random) -> bytearray:
    content = bytearray(file.stored)
    pieces = [piece for change in file.pending for piece in _pieces(change)]
    match cut:
        case Cut.NOTHING:
            chosen: list[Change] = []
        case Cut.EVERYTHING:
            chosen = pieces
        case Cut.FIRST:
            chosen = pieces[: rng.randint(0, len(pieces))]
        case Cut.TORN | Cut.REORDERED | Cut.GARBAGE:
            share = rng.choice([0.05, 0.5, 0.95])
            chosen = [piece for piece in pieces if rng.random() < share]
    if cut is Cut.REORDERED:
        _shuffle(chosen, rng)
    if cut is Cut.GARBAGE:
        end = max([piece.offset + len(piece.data) for piece in chosen], default=0)
        content.extend(rng.randbytes(max(0, end - len(content))))
    for piece in chosen:
        _write(content, piece)
    return content


def _pieces(change: Change) -> list[Change]:
    if change.kind is not Kind.WRITE:
        return [change]
    pieces: list[Change] = []
    end = change.offset + len(change.data)
    at = change.offset
    while at < end:
        stop = min(end, (at // SECTOR + 1) * SECTOR)
        part = change.data[at - change.offset : stop - change.offset]
        pieces.append(Change(change.number, change.kind, at, part))
        at = stop
    return pieces


def _shuffle(pieces: list[Change], rng: random.Random) -> None:
    # What a truncation frees is given out again only after it, so none passes a write.
    runs: dict[int, list[Change]] = defaultdict(list)
    run = 0
    for piece in pieces:
        if piece.kind is Kind.TRUNCATE:
            run += 1
        runs[run].append(piece)
        if piece.kind is Kind.TRUNCATE:
            run += 1
    pieces.clear()
    for number in sorted(runs):
        rng.shuffle(runs[number])
        pieces.extend(runs[number])
