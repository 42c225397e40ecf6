"""What /proc has on processes: command lines, memory and time of one and all that it started."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

INTERVAL_S = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class TreeUsage:
    """Watches a process tree while a block runs.

    Attributes:
        peak: Highest sum of resident bytes that was seen.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._cpu_s: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tree-memory")

    @property
    def cpu_s(self) -> float:
        """Processor time of all processes that were seen, until shortly before each ended."""
        return sum(self._cpu_s.values())

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
            self.peak = max(self.peak, self._see(self._pid))

    def _see(self, pid: int) -> int:
        """Record the time of a process and all below it; return their resident bytes."""
        try:
            # The name, in brackets, may hold anything.
            figures = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            started = children(pid)
        except (FileNotFoundError, ProcessLookupError):
            return 0
        self._cpu_s[pid] = (int(figures[11]) + int(figures[12])) / _TICKS
        return int(figures[21]) * _PAGE + sum(map(self._see, started))


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
