"""The report on a day of a fleet: time, processor time, memory, and how long each phase took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.journal_fleet import write_fleet
from tests.support.process_tree import TreeUsage
from tests.support.report import DATE, Results

if TYPE_CHECKING:
    from collections.abc import Callable

CORES: Final = 2
_ROOT: Final = Path(__file__).parents[2]


def report(
    name: str, messages: tuple[int, ...], *, times: int = 1, is_prepared: bool = False
) -> Callable[[Path], dict[str, float]]:
    """Return the measurement of a day.

    Args:
        name: What its figures begin with.
        messages: Of each hub; a message is some two lines.
        times: How many hubs there are of each.
        is_prepared: Then prepare the day, and report from that, without and with advice.
    """

    def run(folder: Path) -> dict[str, float]:
        lines = write_fleet(folder / "export", messages, times=times)
        figures = _run(folder, name, lines)
        if is_prepared:
            figures |= _run(folder, f"{name}_prepare", None, "--prepare")
            figures |= _run(folder, f"{name}_prepared", lines)
            figures |= _run(folder, f"{name}_advised", lines, "--advise")
        return figures

    return run


def _run(folder: Path, name: str, lines: int | None, *options: str) -> dict[str, float]:
    """Measure one run; `lines` is how many it reports on, None if it writes no metrics."""
    arguments = [f"--input={folder / 'export'}", f"--output={folder / 'out'}", f"--date={DATE}"]
    command = [sys.executable, "-m", "analytics", f"--master=local[{CORES}]", *arguments]
    started = time.monotonic()
    with (
        subprocess.Popen(
            [*command, *options],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.DEVNULL,
        ) as process,
        TreeUsage(process.pid) as usage,
    ):
        code = process.wait()
    figures = {
        "wall_s": time.monotonic() - started,
        "cpu_s": usage.cpu_s,
        "peak_mb": usage.peak / 1e6,
    }
    metrics = Results(folder / "out").metrics if code == 0 and lines is not None else {}
    if code or metrics.get("lines") != lines:
        msg = f"{name}: exit code {code}, {metrics.get('lines')} of {lines} lines"
        raise RuntimeError(msg)
    figures |= {f"{phase}_s": seconds for phase, seconds in metrics.get("phases", {}).items()}
    return {f"{name}_{figure}": value for figure, value in figures.items()}
