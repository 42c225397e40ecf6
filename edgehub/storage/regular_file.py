"""Files that settings name are regular ones: a pipe or a device is read without end, or never.

Plain blocking code.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def open_regular(file: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Raises:
        OSError: If it cannot be opened, or is something else.
    """
    # The opening of a pipe would wait for its other end.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(file))
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def read_regular(file: Path) -> bytes:
    """Read a regular file whole; raises likewise."""
    with open_regular(file) as stream:
        return stream.read()
