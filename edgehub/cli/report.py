"""`edgehub report`: what expired and what starved on a day, as pages and as tables.

Becomes the report's process: it needs Java and much memory, and the daemon neither. What stops
this command (a service manager, a container engine, Ctrl-C) stops the report.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from edgehub.errors import EdgeHubError

_DAYS_AGO: Final = {"today": 0, "yesterday": 1}


class _Date(click.DateTime):
    """A date, `today`, or `yesterday` for timers."""

    def __init__(self) -> None:
        super().__init__(formats=["%Y-%m-%d"])

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the moment at which the date begins, or one of it."""
        if value in _DAYS_AGO:
            return datetime.now(UTC) - timedelta(days=_DAYS_AGO[value])
        try:
            found = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is no date: write 2026-11-28, today or yesterday", param, ctx)
        assert isinstance(found, datetime)
        return found


@click.command()
@click.argument("dates", metavar="DATE...", type=_Date(), nargs=-1, required=True)
@click.option(
    "--input", "source", required=True, help="Folder or URL that `edgehub journal export` fills."
)
@click.option("--output", required=True, help="Folder or URL for the results.")
@click.option("--exclude-hub", multiple=True, metavar="HUB", help="Leave a hub out; repeat.")
@click.option(
    "--hubs",
    metavar="FILE",
    help="File with the ids of all hubs, one a line; default: the hubs of the last 14 dates.",
)
@click.option(
    "--strict", is_flag=True, help="Write nothing if a hub that has segments cannot be used."
)
@click.option(
    "--starved-after-s",
    type=click.IntRange(min=60),
    help="Shortest time without service that counts; default: 60.",
)
@click.option(
    "--idle-after-s",
    type=click.IntRange(min=60),
    help="Shortest pause of a link that counts as idle; default: 60.",
)
@click.option(
    "--what-if",
    metavar="FILE",
    help="File with scenarios to simulate: other priorities, times to live, links or limits.",
)
@click.option(
    "--advise",
    is_flag=True,
    help="Look for the time to live or priority that would have let most messages arrive.",
)
@click.option(
    "--prepare",
    is_flag=True,
    help="Read the journals only, and keep them for reports that follow.",
)
@click.option("--memory", help="Heap for Java, such as 4g; default: 2g.")
def report(
    dates: tuple[datetime, ...],
    source: str,
    output: str,
    exclude_hub: tuple[str, ...],
    *,
    strict: bool,
    advise: bool,
    prepare: bool,
    **given: int | str | None,
) -> None:
    """Report on the journals of each DATE, such as 2026-11-28, today or yesterday (UTC).

    Exit code 5: no report can rest on the lines of that day, and nothing was written.
    Exit code 6: done without some hubs, which are named.
    Of several dates the worst one counts: 1, 5, then 6.
    """
    if importlib.util.find_spec("analytics") is None or importlib.util.find_spec("pyspark") is None:
        raise EdgeHubError(
            "the report needs the package analytics and PySpark, which this installation lacks:"
            " in a checkout pip install -c constraints.txt -e '.[spark]', or the wheel with [spark]"
        )
    command = [sys.executable, "-m", "analytics", *(f"--date={date:%Y-%m-%d}" for date in dates)]
    command += [f"--input={source}", f"--output={output}"]
    command += [f"--exclude-hub={hub}" for hub in exclude_hub]
    command += ["--strict"] * strict
    command += ["--advise"] * advise
    command += ["--prepare"] * prepare
    command += [
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    ]
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - our own package
