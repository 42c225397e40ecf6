"""Names that survive a power cut: folders, and small files that are replaced whole.

A file system may forget the name of a new file or folder until the folder that holds it has been
synced, whatever was synced of the file itself. Plain blocking code. Invariant: when a function has
returned, a power cut leaves what it made; a replaced file is the old one or the new one.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_folder(path: Path, *, mode: int = 0o777, top: Path | None = None) -> None:
    """Make a folder and those above it where they are missing.

    Args:
        path: The folder.
        mode: Its permissions where it is made; those above it get the usual ones.
        top: A folder above it that gets `mode` too, with all between them; None = none does.
    """
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        if top is not None and folder.is_relative_to(top.absolute()):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    # The folder itself too if it was there: a start that was killed may have made it.
    for folder in missing or [path]:
        # Who may not read the folder above, as under systemd, found this one there.
        with suppress(PermissionError):
            sync_folder(folder.parent)


def open_private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read where it is made; an `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_end(path: Path, length: int, content: bytes) -> None:
    """Write what follows the first `length` bytes of a file, for its owner alone, and sync it.

    Raises:
        OSError: What is behind them is not known.
    """
    with open(path, "r+b" if length else "wb", opener=open_private) as file:
        file.seek(length)
        file.truncate()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_private_file(path: Path) -> None:
    """Make a file that its owner alone may read, if there is none; before a database opens it.

    Raises:
        OSError: It cannot be made.
    """
    os.close(open_private(str(path), os.O_RDWR | os.O_CREAT))


def restrict(path: Path) -> None:
    """Remove the rights of group and others from a file or folder.

    A symbolic link, a file of another user and a folder such as /tmp stay as they are.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode) or mode & stat.S_ISVTX:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        with suppress(PermissionError):
            path.chmod(stat.S_IMODE(mode) & stat.S_IRWXU)


def restrict_all(path: Path) -> None:
    """Restrict a file, or a folder and all in it."""
    # A file that disappears during this exposes nothing; what cannot be read is another user's.
    with suppress(FileNotFoundError, PermissionError):
        restrict(path)
        if path.is_dir() and not path.is_symlink():
            for each in path.iterdir():
                restrict_all(each)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole, for its owner alone."""
    partial = path.with_name(f"{path.name}.new")
    with open(partial, "wb", opener=open_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
