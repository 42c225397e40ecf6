"""The log of the shim: its records, the marks that others add to it, and how to get one written."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import time
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<IIQqQII")
SHIM = Path(__file__).with_name("shim.c")


class Kind(IntEnum):
    """Kinds of records; all but the last are the shim's."""

    LINK = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC_BEGIN = 4
    SYNC_END = 5
    RENAME = 6
    UNLINK = 7
    MKDIR = 8
    ALLOCATE = 9
    OPEN = 10
    MARK = 100


class Record(NamedTuple):
    """One call, or one mark.

    `offset` is the new size for truncations and allocations, and the number of a sync. `path` is
    below the recorded folder. `data` holds the bytes of a write, the target of a rename, or the
    words of a mark.
    """

    kind: Kind
    inode: int
    offset: int
    time_ns: int
    path: str
    data: memoryview

    @property
    def words(self) -> list[str]:
        """Return the words of a mark."""
        return str(self.data, "utf-8").split()


def build_shim(folder: Path) -> Path:
    """Compile the shim into `folder`."""
    library = folder / "power-shim.so"
    command = ["cc", "-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-o", library, SHIM, "-ldl"]
    subprocess.run(command, check=True)
    return library


def recording(shim: Path, root: Path, log: Path) -> dict[str, str]:
    """Return the environment in which a process has its changes below `root` recorded."""
    return {
        "LD_PRELOAD": str(shim),
        "EDGEHUB_POWER_ROOT": str(root),
        "EDGEHUB_POWER_LOG": str(log),
    }


class Marks:
    """Adds marks to the log, each at its place in the order of all records."""

    def __init__(self, log: Path) -> None:
        self._descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, *words: object) -> None:
        """Append a mark."""
        data = " ".join(map(str, words)).encode()
        size = _HEAD.size + len(data)
        head = _HEAD.pack(size, Kind.MARK, 0, 0, time.monotonic_ns(), 0, len(data))
        os.write(self._descriptor, head + data)

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._descriptor)


def read_log(log: Path) -> list[Record]:
    """Read all records; one that a kill has cut off at the end is left out."""
    with log.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    records: list[Record] = []
    at = 0
    while at + _HEAD.size <= len(content):
        size, kind, inode, offset, time_ns, path, data = _HEAD.unpack_from(content, at)
        if at + size > len(content):
            break
        middle = at + _HEAD.size + path
        name = str(content[at + _HEAD.size : middle], "utf-8")
        records.append(
            Record(Kind(kind), inode, offset, time_ns, name, content[middle : middle + data])
        )
        at += size
    return records
