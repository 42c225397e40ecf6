"""A name for a socket file that the kernel takes, however deep its folder lies."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BYTES_MAX: Final = 107
"""sun_path holds 108 bytes with its closing zero (unix(7))."""


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """Return what to bind or connect to in place of `path`; good inside the context only.

    A long path is named by way of its opened folder, which has a short name in /proc.

    Raises:
        OSError: If the folder cannot be opened, or even the file's own name is too long.
    """
    if len(bytes(path)) <= BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
