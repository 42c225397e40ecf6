"""The report on a day of a fleet: time, processor time, memory, and how long each phase took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from tests.support.journal_days import HubModel
from tests.support.process_tree import TreeUsage
from tests.support.report import DATE, Results

if TYPE_CHECKING:
    from collections.abc import Callable

CORES: Final = 2
_ROOT: Final = Path(__file__).parents[2]


def report(name: str, messages: tuple[int, ...]) -> Callable[[Path], dict[str, float]]:
    """Return the measurement of a day.

    Args:
        name: What its figures begin with.
        messages: Of each hub; a message is some three lines.
    """

    def run(folder: Path) -> dict[str, float]:
        with ProcessPoolExecutor(CORES) as pool:
            numbers = range(len(messages))
            lines = sum(
                pool.map(_write_hub, [folder / "export"] * len(messages), numbers, messages)
            )
        arguments = [f"--input={folder / 'export'}", f"--output={folder / 'out'}"]
        command = [sys.executable, "-m", "analytics", f"--master=local[{CORES}]", *arguments]
        started = time.monotonic()
        with (
            subprocess.Popen(
                [*command, f"--date={DATE}"],
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=subprocess.DEVNULL,
            ) as process,
            TreeUsage(process.pid) as usage,
        ):
            code = process.wait()
        wall_s = time.monotonic() - started
        metrics = Results(folder / "out").metrics if code == 0 else {"lines": None}
        if metrics["lines"] != lines:
            msg = f"{name}: exit code {code}, {metrics['lines']} of {lines} lines"
            raise RuntimeError(msg)
        figures = {"wall_s": wall_s, "cpu_s": usage.cpu_s, "peak_mb": usage.peak / 1e6}
        figures |= {f"{phase}_s": seconds for phase, seconds in metrics["phases"].items()}
        return {f"{name}_{figure}": value for figure, value in figures.items()}

    return run


def _write_hub(export: Path, number: int, messages: int) -> int:
    model = HubModel(f"hub-{number:02}", messages, Random(number), headroom=0.95 + number / 100)
    return model.write_day(export, DATE)
