"""Arguments of the job: read once, validated, frozen.

Owns names, defaults and limits. The date is always given, never "today": a run can be repeated.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP_S: Final = 60
"""Thresholds are at least this long: services are looked at once per minute of hub time."""

EXPECTED_DAYS: Final = 14
"""A hub that reported on none of so many dates is taken for one that was removed."""

_Dates = tuple[date, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArgs:
    """What the job is asked to do.

    Attributes:
        input: Folder or Hadoop URL of the export.
        output: Folder or Hadoop URL of the results.
        date: UTC date of the journal, of several the first.
        later: Further dates, in order.
        exclude_hubs: Hubs whose folders are not read.
        hubs: File or URL with the ids of the hubs that should have reported, one a line.
        strict: Whether a hub that has segments and is not sound ends the run.
        starved_after_s: Shortest time without service that counts, at least 60 s.
        idle_after_s: Longest pause of a link that is up and has rows to send, at least 60 s.
        what_if: File or URL of scenarios to simulate, None = none.
        advise: Whether to look for the change that lets most rows arrive.
        prepare: Whether lines are read and kept only, for reports that follow.
    """

    input: str
    output: str
    date: date
    later: _Dates = ()
    exclude_hubs: tuple[str, ...] = ()
    hubs: str | None = None
    strict: bool = False
    starved_after_s: int = STEP_S
    idle_after_s: int = STEP_S
    what_if: str | None = None
    advise: bool = False
    prepare: bool = False

    @property
    def asks_what_if(self) -> bool:
        """Whether anything is to be simulated."""
        return self.advise or self.what_if is not None

    @property
    def reads_for_what_if(self) -> bool:
        """Whether what only scenarios need is read, too."""
        return self.prepare or self.asks_what_if

    @property
    def midnight(self) -> datetime:
        """00:00 UTC of the date."""
        return datetime(self.date.year, self.date.month, self.date.day, tzinfo=UTC)

    def each_day(self) -> list[JobArgs]:
        """Return what is asked for of each date."""
        return [replace(self, date=day, later=()) for day in (self.date, *self.later)]


def parse_args(arguments: Sequence[str], *more: argparse.ArgumentParser) -> JobArgs:
    """Parse a command line; a wrong one ends the process with exit code 2 and the reason.

    Args:
        arguments: The command line.
        more: Parsers of further arguments that may stand in it.
    """
    parsed = parser(*more).parse_args(arguments)
    first, *later = sorted(set(parsed.date))
    return JobArgs(
        input=parsed.input.rstrip("/") or "/",
        output=parsed.output.rstrip("/") or "/",
        date=first,
        later=tuple(later),
        exclude_hubs=tuple(parsed.exclude_hub),
        hubs=parsed.hubs,
        strict=parsed.strict,
        starved_after_s=parsed.starved_after_s,
        idle_after_s=parsed.idle_after_s,
        what_if=parsed.what_if,
        advise=parsed.advise,
        prepare=parsed.prepare,
    )


def parser(*more: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser of the job's own arguments, and of what others add to them."""
    made = argparse.ArgumentParser(
        prog="analytics",
        description="Report on days of hub journals: expiry, starvation, counts.",
        epilog="Exit codes: 0 done (an empty day too), 1 failed, 2 usage, "
        "5 no report can rest on the lines and nothing was written, 6 done without some hubs; "
        "of several dates the first of 1, 5, 6 that one of them had.",
        allow_abbrev=False,
        parents=more,
    )
    made.add_argument("--input", type=_url, required=True, help="export of the hubs: folder or URL")
    made.add_argument("--output", type=_url, required=True, help="results: folder or URL")
    made.add_argument(
        "--date",
        type=_date,
        action="append",
        required=True,
        help="UTC date, such as 2026-11-28; repeat",
    )
    made.add_argument(
        "--exclude-hub", action="append", default=[], metavar="HUB", help="leave a hub out; repeat"
    )
    made.add_argument(
        "--hubs",
        type=_url,
        metavar="FILE",
        help="ids of all hubs, one a line; without it those of the last "
        f"{EXPECTED_DAYS} dates in the output",
    )
    made.add_argument(
        "--strict",
        action="store_true",
        help="write nothing if a hub is damaged, unreadable, cloned or unbalanced",
    )
    for name, meaning in (
        ("starved", "shortest time without service that counts as a window"),
        ("idle", "shortest pause of a link that counts as idle while rows wait"),
    ):
        made.add_argument(
            f"--{name}-after-s",
            type=_seconds,
            default=STEP_S,
            metavar="SECONDS",
            help=f"{meaning}; at least and by default {STEP_S}",
        )
    made.add_argument(
        "--what-if",
        type=_url,
        metavar="FILE",
        help="scenarios to simulate: other priorities, times to live, links, limits; file or URL",
    )
    made.add_argument(
        "--advise",
        action="store_true",
        help="simulate longer times to live and better priorities of the routes that lost most",
    )
    made.add_argument(
        "--prepare",
        action="store_true",
        help="read the lines and keep them as Parquet in the output, for reports that follow",
    )
    return made


def _url(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; name a folder or a URL")
    return text


def _date(text: str) -> date:
    try:
        parsed = date.fromisoformat(text)
    except ValueError:
        parsed = None
    # Python 3.11 takes 20261128 and 2026-W48-6 too; the folders are named in one way only.
    if parsed is None or parsed.isoformat() != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no date; write it like 2026-11-28")
    return parsed


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < STEP_S:
        raise argparse.ArgumentTypeError(f"{text!r}: whole seconds, at least {STEP_S}")
    return int(text)
