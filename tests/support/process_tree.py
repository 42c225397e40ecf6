"""What /proc tells of processes: their command lines, the memory of one and all that it started."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

INTERVAL_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class TreeMemory:
    """Watches a process tree while a block runs.

    Attributes:
        peak: Highest sum of resident bytes that was seen.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree-memory")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.peak = max(self.peak, _resident(self._pid))


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        started = children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * _PAGE + sum(map(_resident, started))


def children(pid: int) -> list[int]:
    """List the processes that any thread of a process started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def command_name(pid: int) -> str:
    """Return the name of a process's program."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def processes_that_name(text: str) -> list[str]:
    """List the command lines of running processes that hold a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            found += [line] if text in line else []
    return found
