"""A damaged database file: the names of what is set aside, and the copy that takes its place.

Blocking code. Invariant: at any moment the names determine the next step, so a replacement that is
cut off can be completed; the newest damaged files are kept.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from edgehub.storage.durable_files import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

KEPT_MAX: Final = 3
"""Damaged files that are kept; each may be as large as the database was."""


def sibling(path: Path, suffix: str) -> Path:
    """Return the file in the same folder with `suffix` appended to its name."""
    return path.with_name(path.name + suffix)


def damaged_files(path: Path) -> list[Path]:
    """List the damaged files of a database that were set aside, the newest last."""
    return sorted(path.parent.glob(f"{path.name}.damaged-*[0-9Z]"))


def remove_database(path: Path, *others: str) -> None:
    """Delete a database file with its log, its index and files with other suffixes."""
    for suffix in ("", "-wal", "-shm", *others):
        sibling(path, suffix).unlink(missing_ok=True)


def put_in_place(path: Path, copy: Path, aside: Path, *others: str) -> list[Path]:
    """Set a damaged database file aside and put a complete copy in its place.

    Args:
        path: The file.
        copy: Takes its name.
        aside: Its new name.
        others: Suffixes of files that go with it, in addition to its log.

    Returns:
        Damaged files that were deleted: those that are not among the newest.
    """
    for suffix in ("", "-wal", *others):
        with suppress(FileNotFoundError):
            sibling(path, suffix).rename(sibling(aside, suffix))
    sibling(path, "-shm").unlink(missing_ok=True)
    sync_folder(path.parent)
    copy.rename(path)
    sync_folder(path.parent)
    old = damaged_files(path)[:-KEPT_MAX]
    for file in old:
        remove_database(file, *others)
    return old
