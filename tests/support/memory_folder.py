"""A folder in memory, where syncs take no time: for many small files, and images of disks."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY: Final = Path("/dev/shm")
BYTES_MIN: Final = 2 << 30


def memory() -> Path | None:
    """Return the folder of the system; None = it is missing, small, or nothing may run from it."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return None
    # Tests build libraries and scripts and run them.
    is_usable = not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > BYTES_MIN
    return MEMORY if is_usable else None


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Make a folder for the length of the block, in memory where that can be."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        yield Path(folder)
