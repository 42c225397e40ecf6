"""A JSON Lines file that survives power cuts and full disks; plain blocking code for one thread.

Owns the file and its rotation. Invariants: whole lines only, a torn end is cut off at open, a
failed append is cut back at once; when `append` returns, its lines are on stable storage.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from edgehub.storage.durable_files import make_folder, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES: Final = 65_536
_BLOCK_BYTES: Final = 1024 * 1024
_APPEND_BYTES_MAX: Final = 64 * _BLOCK_BYTES
"""Longer than any append: the rows in flight, each byte of them escaped."""
_MODE: Final = 0o640


class JsonLinesFile:
    """A JSON Lines file with rotation.

    Args:
        path: The file that is written; rotated ones are next to it, with a time before the suffix.
        rotate_bytes: A file is closed before it would exceed this; 0 = never.
        keep_files: Rotated files that are kept, the oldest are deleted; 0 = all.

    Attributes:
        path: The file that is written.
    """

    def __init__(self, path: Path, *, rotate_bytes: int = 0, keep_files: int = 0) -> None:
        self.path = path
        self._rotate_bytes = rotate_bytes
        self._keep_files = keep_files
        self._descriptor = -1
        self._size = 0

    def open(self) -> None:
        """Open or create the file and cut off a torn end; harmless when open."""
        if self._descriptor >= 0:
            return
        make_folder(self.path.parent)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            size = _whole_lines(descriptor)
            os.ftruncate(descriptor, size)
            os.lseek(descriptor, size, os.SEEK_SET)
            os.fsync(descriptor)
            # The name of a new file is on stable storage only once its folder is.
            sync_folder(self.path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._size = size

    def append(self, lines: bytes, now_ms: int) -> None:
        """Append whole lines and wait until they are on stable storage.

        Args:
            lines: Each with its end.
            now_ms: UTC in milliseconds since 1970.

        Raises:
            OSError: If they are not; then none of them is in the file.
        """
        self._close_if_changed()
        self.open()
        if self._size and 0 < self._rotate_bytes < self._size + len(lines):
            self._rotate(now_ms)
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError:
            self._cut_back()
            raise
        self._size += len(lines)

    def close(self) -> None:
        """Close the file; harmless when closed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _close_if_changed(self) -> None:
        # Log rotation may have moved, deleted or emptied the file. Then lines would go to a file
        # without a name, or behind a hole.
        if self._descriptor < 0:
            return
        try:
            named = self.path.stat()
        except FileNotFoundError:
            self.close()
            return
        held = os.fstat(self._descriptor)
        if not os.path.samestat(named, held) or held.st_size != self._size:
            self.close()

    def _cut_back(self) -> None:
        # After a failed fsync the content of the pages is unknown: the next open reads the file
        # itself, and cuts off what this could not.
        try:
            os.ftruncate(self._descriptor, self._size)
        finally:
            self.close()

    def _rotate(self, now_ms: int) -> None:
        self.close()
        at = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        # Several files may end in one second, and the first of them may be deleted already.
        same = [number for moment, number, _ in self._rotated() if moment == at]
        number = max(same, default=-1) + 1
        name = f"{self.path.stem}-{at}-{number:04}{self.path.suffix}"
        self.path.rename(self.path.with_name(name))
        if self._keep_files:
            for _, _, old in sorted(self._rotated())[: -self._keep_files]:
                old.unlink(missing_ok=True)
        self.open()

    def _rotated(self) -> list[tuple[str, int, Path]]:
        name = re.compile(
            rf"{re.escape(self.path.stem)}-(\d{{8}}T\d{{6}}Z)-(\d+){re.escape(self.path.suffix)}"
        )
        found = ((name.fullmatch(path.name), path) for path in self.path.parent.iterdir())
        return [(match[1], int(match[2]), path) for match, path in found if match]


def _whole_lines(descriptor: int) -> int:
    # Bytes up to and with the last line end before any hole.
    end = _first_hole(descriptor, os.fstat(descriptor).st_size)
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _first_hole(descriptor: int, size: int) -> int:
    # A power cut may keep the length of the last append and lose blocks in its middle. They read as
    # zeros, which no line holds; what stands behind them was never confirmed.
    at = max(0, size - _APPEND_BYTES_MAX)
    while at < size and (block := os.pread(descriptor, _BLOCK_BYTES, at)):
        hole = block.find(b"\0")
        if hole >= 0:
            return at + hole
        at += len(block)
    return size
