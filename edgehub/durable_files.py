"""Names that survive a power cut: folders, and small files that are replaced whole.

A file system may forget the name of a new file or folder until the folder that holds it has been
synced, whatever was synced of the file itself. Plain blocking code. Invariant: when a function has
returned, a power cut leaves what it made; a replaced file is the old one or the new one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those above it where they are missing.

    Args:
        path: The folder.
        mode: Its permissions where it is made; those above it get the usual ones.
    """
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    # The folder itself too if it was there: a start that was killed may have made it.
    for folder in missing or [path]:
        # Who may not read the folder above, as under systemd, found this one there.
        with suppress(PermissionError):
            sync_folder(folder.parent)


def make_private_file(path: Path) -> None:
    """Make a file that nobody else may read, if there is none; before a database opens it.

    Raises:
        OSError: It cannot be made.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole."""
    partial = path.with_name(f"{path.name}.new")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
