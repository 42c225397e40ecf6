"""The lock of a database file: one process holds it, and records how it ended.

Owns the lock file next to the database and its contents. Blocking code. Invariant: while a hub
holds the file, the lock contains `open`; so the next start knows of an end without a close, of a
missing write-ahead log, and of damage.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec import Struct

from edgehub.errors import StartupError
from edgehub.storage.durable_files import make_folder, make_private_file

if TYPE_CHECKING:
    from pathlib import Path

RECORD_BYTES_MAX = 4096
REASON_CHARS_MAX = 1000


class _Record(Struct, kw_only=True, omit_defaults=True):
    """The contents of the lock file.

    Attributes:
        state: `open` while a hub has the file, `closed` after it; empty = no hub had it yet.
        high_water: No offset above it had been used.
        damage: Damage that was found, empty = none.
        file: `gone` = the file no longer existed at the end.
        inode: Of that file.
    """

    state: str = ""
    high_water: int = 0
    damage: str = ""
    file: str = ""
    inode: int = 0


class DatabaseLock:
    """A locked database file.

    Attributes:
        path: The database file.
        is_new: It did not exist, or was empty.
        was_closed: The last hub closed it in order.
        log_missing: The last hub ended without a close, and its write-ahead log does not exist.
        is_known: A hub has locked it before.
        file_missing: It is new, though a hub has locked it before; or it is not that hub's file.
        damage: Damage that the last hub found, empty = none.
        high_water: No offset above it had been used when the file was closed, or when the last hub
            that ended without a close started; 0 = not known.
        is_start_recorded: The next hub will know that this one ended without a close, if it does.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._inode = 0
        self.is_new = not path.exists() or path.stat().st_size == 0
        record = self._read()
        self.damage = record.damage
        self.was_closed = record.state == "closed"
        self.is_known = bool(record.state)
        self.file_missing = self.is_known and (
            self.is_new or (record.file == "gone" and not self._is_back(record.inode))
        )
        log_path = path.with_name(f"{path.name}-wal")
        # A hub that found damage closes the file all the same.
        left_open = record.state == "open" and not self.damage
        self.log_missing = left_open and not log_path.exists()
        self.high_water = record.high_water
        self.is_start_recorded = False

    @classmethod
    def take(cls, path: Path) -> Self:
        """Lock `path`, and create its folder if needed.

        Raises:
            StartupError: Locked by another process, or it cannot be opened.
        """
        descriptor = -1
        try:
            make_folder(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(f"{path}.lock", flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock = cls(path, descriptor)
            make_private_file(path)
        except OSError as exc:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(exc, BlockingIOError):
                raise StartupError(
                    f"{path} is in use by another process; stop the other hub, or give this one a"
                    " state directory of its own"
                ) from exc
            raise StartupError(f"{path} cannot be opened: {exc.strerror}") from exc
        return lock

    def opened(self, high_water: int) -> None:
        """Record that a hub runs and uses offsets above `high_water`.

        So the next hub skips offsets, if this one ends before its first commit.
        """
        self.high_water = high_water
        with suppress(OSError):
            self._inode = self.path.stat().st_ino
        if not self.damage:
            record = _Record(state="open", high_water=high_water)
            self.is_start_recorded = self._write(record)

    def damaged(self, reason: str) -> None:
        """Record that the file is damaged and must be checked at the next start."""
        if not self.damage:
            self.damage = reason
            self._write(
                _Record(state="open", high_water=self.high_water, damage=reason[:REASON_CHARS_MAX])
            )

    def repaired(self) -> None:
        """Clear `damaged`."""
        self.damage = ""
        self.opened(self.high_water)

    def closed(self, high_water: int, *, is_there: bool = True) -> None:
        """Record that the file was closed in order, or did not exist any more."""
        if not is_there:
            self._write(
                _Record(state="open", high_water=high_water, file="gone", inode=self._inode)
            )
        elif not self.damage:
            self._write(_Record(state="closed", high_water=high_water))

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_back(self, inode: object) -> bool:
        """Return whether a file that was missing is the same again, as after a move of its folder.

        Its inode alone is not enough: a new file may get that of a deleted one.
        """
        status, record = self.path.stat(), os.fstat(self._descriptor)
        return status.st_ino == inode and status.st_ctime_ns <= record.st_mtime_ns

    def _read(self) -> _Record:
        try:
            data = os.pread(self._descriptor, RECORD_BYTES_MAX, 0)
            return msgspec.json.decode(data, type=_Record)
        except msgspec.DecodeError:
            return _Record()

    def _write(self, record: _Record) -> bool:
        """Write a record; return whether it is on disk.

        If that of the end is not, the next start skips some offsets.
        """
        try:
            data = msgspec.json.encode(record)
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))
            os.fsync(self._descriptor)
        except OSError:
            return False
        return True
