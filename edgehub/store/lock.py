"""The claim on a database file: one process holds it, and leaves word how it ended.

Owns the lock file beside the database and what stands in it. Plain blocking code. Invariant: while
a hub holds the file, the lock says `open`; so the next start knows of an end without a close, of a
log that has gone, and of damage that was met.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import orjson

from edgehub.errors import StartupError
from edgehub.storage.durable_files import make_folder, make_private_file

if TYPE_CHECKING:
    from pathlib import Path

WORD_BYTES_MAX = 4096


class DatabaseLock:
    """A file that is held.

    Attributes:
        path: The database file.
        is_new: It did not exist, or was empty.
        was_closed: The last hub closed it in order.
        log_missing: The last hub left without a close, and its write-ahead log is not there.
        is_known: A hub has held it before.
        file_missing: It is new, though a hub has held it before; or it is not the one that hub had.
        damage: Damage that the last hub met, empty = none.
        high_water: No offset above it had been handed out when the file was closed, or when the
            last hub that left without a close began; 0 = not known.
    """

    __slots__ = (
        "_descriptor",
        "_inode",
        "damage",
        "file_missing",
        "high_water",
        "is_known",
        "is_new",
        "log_missing",
        "path",
        "was_closed",
    )

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._inode = 0
        self.is_new = not path.exists() or path.stat().st_size == 0
        word = self._read()
        self.damage = str(word.get("damage", ""))
        self.was_closed = word.get("state") == "closed"
        self.is_known = "state" in word
        self.file_missing = self.is_known and (
            self.is_new or (word.get("file") == "gone" and not self._is_back(word.get("inode")))
        )
        log_path = path.with_name(f"{path.name}-wal")
        # A hub that met damage closes the file all the same.
        left_open = word.get("state") == "open" and not self.damage
        self.log_missing = left_open and not log_path.exists()
        high_water = word.get("high_water", 0)
        self.high_water = high_water if isinstance(high_water, int) else 0

    @classmethod
    def take(cls, path: Path) -> Self:
        """Hold `path`, making its folder if need be.

        Raises:
            StartupError: Held by another process, or not to be opened at all.
        """
        descriptor = -1
        try:
            make_folder(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(f"{path}.lock", flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            hold = cls(path, descriptor)
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
        return hold

    def opened(self, high_water: int) -> None:
        """Leave word that a hub is at work, which hands out offsets above `high_water`.

        So the next hub skips others, should this one end before it has stored a mark of its own.
        """
        self.high_water = high_water
        with suppress(OSError):
            self._inode = self.path.stat().st_ino
        if not self.damage:
            self._write({"state": "open", "high_water": high_water})

    def damaged(self, reason: str) -> None:
        """Leave word that the file must be looked through before anybody relies on it."""
        if not self.damage:
            self.damage = reason
            word = {"state": "open", "high_water": self.high_water, "damage": reason[:1000]}
            self._write(word)

    def mended(self) -> None:
        """Take back `damaged`."""
        self.damage = ""
        self.opened(self.high_water)

    def closed(self, high_water: int, *, is_there: bool = True) -> None:
        """Leave word that the file was closed in order, or was not there any more."""
        if not is_there:
            word = {"state": "open", "high_water": high_water, "file": "gone"}
            self._write({**word, "inode": self._inode})
        elif not self.damage:
            self._write({"state": "closed", "high_water": high_water})

    def release(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_back(self, inode: object) -> bool:
        """Return whether a file that was gone is the same again, as where its folder was moved.

        Its number alone does not tell: a new file may get that of one that was deleted.
        """
        status, word = self.path.stat(), os.fstat(self._descriptor)
        return status.st_ino == inode and status.st_ctime_ns <= word.st_mtime_ns

    def _read(self) -> dict[str, Any]:
        try:
            word = orjson.loads(os.pread(self._descriptor, WORD_BYTES_MAX, 0))
        except orjson.JSONDecodeError:
            return {}
        return word if isinstance(word, dict) else {}

    def _write(self, word: dict[str, Any]) -> None:
        # A word that cannot be written is an end without a close, which costs some offsets.
        with suppress(OSError):
            data = orjson.dumps(word)
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))
            os.fsync(self._descriptor)
