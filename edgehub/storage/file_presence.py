"""Checks that open files still have their names: what is written to a deleted file is lost.

On Unix a file that was deleted, or whose folder was, accepts writes and syncs as long as it is
open. Blocking code. Invariant: a check that passes after a commit means that the next start will
find that commit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class FilePresence:
    """Files as they were when they were opened."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Record what the names lead to now; those that lead nowhere are not looked after."""
        self._files: list[tuple[Path, int, int]] = []
        for path in paths:
            with suppress(OSError):
                status = path.stat()
                self._files.append((path, status.st_dev, status.st_ino))

    def fault(self) -> str | None:
        """Return which file is not there any more, None = all are."""
        for path, device, inode in self._files:
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return f"{path} was removed while it was in use"
            except OSError:
                # A failing disk is reported by the writes to it.
                continue
            if (status.st_ino, status.st_dev) != (inode, device):
                return f"{path} was replaced by another file while it was in use"
        return None
