"""`make bench`: run the measurements, print a table and one line of JSON.

Every figure is the median of several runs; the runs of different measurements are interleaved, so
that a noisy minute of the machine does not hit one of them alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.table import Table

from tests.bench import growth, peers, thin_link
from tests.bench.cases import CASES, ON_REQUEST
from tests.bench.tools import build

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a figure is held against.

    Attributes:
        reach: The value to reach.
        floor: The value not to fall short of, None = there is none.
        lower_is_better: Whether small values are good.
    """

    reach: float
    floor: float | None
    lower_is_better: bool = False

    def times_floor(self, value: float) -> float | None:
        """Return how many times the floor is met; 1 and more is good."""
        if self.floor is None or value == 0:
            return None
        return self.floor / value if self.lower_is_better else value / self.floor


BARS: Final[Mapping[str, Bar]] = {
    "ingest_10x50_msgs_s": Bar(reach=100_000, floor=50_000),
    "ingest_500x1_msgs_s": Bar(reach=50_000, floor=30_000),
    "many_clients_over_bare": Bar(reach=0.7, floor=None),
    "many_clients_over_few": Bar(reach=0.5, floor=None),
    "latency_2000_p99_ms": Bar(reach=3, floor=10, lower_is_better=True),
    "class_c_saturated_p99_ms": Bar(reach=10, floor=20, lower_is_better=True),
    "end_to_end_msgs_s": Bar(reach=38_000, floor=12_000),
    "end_to_end_over_bridge": Bar(reach=1.0, floor=None),
    "journal_ingest_slower": Bar(reach=0.05, floor=0.15, lower_is_better=True),
    "routes_us_per_message": Bar(reach=10, floor=25, lower_is_better=True),
    "mapper_us_per_message": Bar(reach=20, floor=60, lower_is_better=True),
    "entities_msgs_s": Bar(reach=12_000, floor=5_000),
    "entities_rogue_msgs_s": Bar(reach=12_000, floor=2_000),
    "store_written_per_payload_byte": Bar(reach=4, floor=6, lower_is_better=True),
    "report_small_wall_s": Bar(reach=25, floor=None, lower_is_better=True),
    "report_10m_wall_s": Bar(reach=75, floor=120, lower_is_better=True),
    "report_10m_prepared_wall_s": Bar(reach=60, floor=None, lower_is_better=True),
    "report_10m_advised_what_if_s": Bar(reach=60, floor=None, lower_is_better=True),
    "report_10m_peak_mb": Bar(reach=3 * 1024**3 / 1e6, floor=None, lower_is_better=True),
    "start_s": Bar(reach=0.7, floor=1, lower_is_better=True),
    "idle_rss_mb": Bar(reach=55, floor=66, lower_is_better=True),
    "idle_upstream_rss_mb": Bar(reach=60, floor=66, lower_is_better=True),
    "idle_cpu_percent": Bar(reach=0.2, floor=1, lower_is_better=True),
}


KNOWN: Final = CASES | ON_REQUEST

TABLES: Final[Mapping[str, Callable[[Mapping[str, float]], str]]] = {
    "peers": peers.table,
    "thin-link": thin_link.table,
}


def main() -> int:
    """Measure what the command line asks for; exit code 1 if a measurement failed."""
    parser = _parser()
    options = parser.parse_args()
    cases = {name: _named(name) for name in options.cases}
    unknown = [name for name, found in cases.items() if not found]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(KNOWN)}")
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
    build()
    names = [name for found in cases.values() for name in found] or list(CASES)
    values, failures = _measure(names, options.runs, options.folder)
    _print_table(values)
    medians = {figure: statistics.median(all_values) for figure, all_values in values.items()}
    for group, table in TABLES.items():
        if any(name.startswith(f"{group}-") for name in names):
            click.echo(table(medians))
    if options.plots is not None:
        for name, document in growth.plots(medians).items():
            (options.plots / name).write_text(document, "utf-8")
    document = {
        **_circumstances(),
        "runs": options.runs,
        "figures": dict(_summaries(values)),
        "failures": failures,
    }
    line = json.dumps(document)
    click.echo(line)
    if options.json is not None:
        options.json.write_text(line + "\n", "utf-8")
    return 1 if failures else 0


def _named(name: str) -> list[str]:
    """Return the case of this name, or all whose names begin with it."""
    return [name] if name in KNOWN else [each for each in KNOWN if each.startswith(f"{name}-")]


def _measure(
    names: Sequence[str], runs: int, disk: Path | None
) -> tuple[dict[str, list[float]], list[str]]:
    values: dict[str, list[float]] = {}
    failures = []
    for run, name in product(range(1, runs + 1), names):
        click.echo(f"run {run} of {runs}: {name}", err=True)
        with tempfile.TemporaryDirectory(prefix="edgehub-bench-", dir=disk) as folder:
            try:
                figures = KNOWN[name](Path(folder))
            except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
                click.echo(f"  failed: {error}", err=True)
                failures.append(f"{name}: {error}")
                continue
        for figure, value in figures.items():
            values.setdefault(figure, []).append(value)
    return values, failures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.run", description=__doc__)
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="case",
        help=f"of {', '.join(CASES)}; absent = all of them; or of {', '.join(ON_REQUEST)}; "
        "the beginning of names stands for all of them",
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--json", type=Path, help="also write the JSON line to this file")
    parser.add_argument("--plots", type=Path, help="write plots of growth to this folder, as SVG")
    parser.add_argument("--folder", type=Path, help="disk to measure on (default: temporary files)")
    return parser


def _summaries(values: Mapping[str, Sequence[float]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for figure, all_values in values.items():
        median = statistics.median(all_values)
        summary: dict[str, Any] = {
            "median": _short(median),
            "values": [_short(v) for v in all_values],
        }
        if figure in BARS:
            bar = BARS[figure]
            times = bar.times_floor(median)
            summary |= {
                "reach": bar.reach,
                "floor": bar.floor,
                "times_floor": None if times is None else _short(times),
            }
        yield figure, summary


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _print_table(values: Mapping[str, Sequence[float]]) -> None:
    table = Table("figure", box=None)
    for name in ("median", "lowest", "highest", "floor", "x floor", "reach"):
        table.add_column(name, justify="right")
    for figure, all_values in values.items():
        median = statistics.median(all_values)
        bar = BARS.get(figure)
        held = ["", "", ""]
        if bar is not None:
            times = bar.times_floor(median)
            held = [
                "" if bar.floor is None else f"{bar.floor:,g}",
                "" if times is None else f"{times:.2f}",
                f"{bar.reach:,g}",
            ]
        spread = [median, min(all_values), max(all_values)]
        table.add_row(figure, *(f"{_short(value):,g}" for value in spread), *held)
    Console(width=110).print(table)


def _circumstances() -> dict[str, Any]:
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
    }


if __name__ == "__main__":
    sys.exit(main())
