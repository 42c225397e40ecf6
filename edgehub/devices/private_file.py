"""Files with hashes of secrets: their permissions, and how commands change them.

Owns the lock, the replacement and the permissions. Blocks on
the disk. Invariant: a reader sees the file before or after a change, never in between.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def exposed_mode(path: Path) -> int | None:
    """Return the file's permission bits where others may read or change it, else None."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        # It was there when it was read; a removed file exposes nothing.
        return None
    return mode if mode & _OTHERS else None


@contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Lock a file against another command; yields the file behind symbolic links.

    The lock is on the folder, since the file is replaced. What was written is on stable storage
    when the block ends without an error.
    """
    path = path.resolve()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield path
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Write the file whole, for its owner's eyes only.

    The file keeps its owner; a new one gets the folder's, so that root can prepare it for the
    daemon.
    """
    owner = (path if path.exists() else path.parent).stat()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
