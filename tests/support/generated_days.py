"""Hub-days by number, each another one: ties, steps of the clock, cuts, files replaced and cloned.

Owns the kinds, which follow each other by number; all else of a day is by chance, from its number.
"""

from __future__ import annotations

import gzip
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, Final

from tests.support.journal_days import DAY_S, HubModel
from tests.support.report import DATE

if TYPE_CHECKING:
    from pathlib import Path

DAY_BEFORE: Final = "2026-11-27"
_HOUR_S: Final = 3600


class Kind(Enum):
    """What is particular of a day."""

    WHOLE = auto()
    """It begins with what was carried in, and ends at midnight."""
    REPLACED = auto()
    """The gateway is replaced; the old file has what waits in it."""
    OPEN = auto()
    """It goes on."""
    REPLACED_OPEN = auto()
    """Replaced, and the new one goes on."""
    ABANDONED = auto()
    """Replaced; the old gateway had no time to write what waits in it."""
    COPIED = auto()
    """A segment is there twice."""
    CLONED = auto()
    """Two gateways went on from one file."""


KINDS: Final = tuple(Kind)


def write_generated(export: Path, number: int, messages: int) -> None:
    """Write the day of hub `model-<number>`.

    Args:
        export: The export.
        number: Decides about all of it.
        messages: Of a whole day.
    """
    hub = f"model-{number}"
    random = Random(number)
    kind = KINDS[number % len(KINDS)]
    clock = _clock(random)
    off_s = random.randrange(6 * _HOUR_S, 9 * _HOUR_S)
    off = (off_s, off_s + random.randrange(600, _HOUR_S)) if random.random() < 0.6 else None
    is_cut = random.random() < 0.5

    def model() -> HubModel:
        return HubModel(
            hub,
            messages,
            random,
            outages=_outages(random),
            off=off,
            is_cut=is_cut,
            clock=clock,
            headroom=random.uniform(0.85, 1.2),
        )

    first = model()
    if kind is Kind.WHOLE:
        # The clock had not been stepped yet.
        first.clock = ()
        first.write_day(export, DAY_BEFORE)
        first.clock = clock
    if kind in (Kind.REPLACED, Kind.REPLACED_OPEN, Kind.ABANDONED):
        at_s = random.randrange(12 * _HOUR_S, 16 * _HOUR_S)
        first.write_day(export, DATE, (0, at_s), ends=kind is not Kind.ABANDONED)
        end_s = 22 * _HOUR_S if kind is Kind.REPLACED_OPEN else DAY_S
        part = (at_s + random.randrange(1, 1800), end_s)
        model().write_day(export, DATE, part, ends=kind is not Kind.REPLACED_OPEN)
    elif kind is Kind.OPEN:
        first.write_day(export, DATE, (0, random.randrange(20, 24) * _HOUR_S - 1), ends=False)
    else:
        first.write_day(export, DATE)
    if kind in (Kind.COPIED, Kind.CLONED):
        _repeat(export / f"date={DATE}" / f"hub={hub}", random, is_other=kind is Kind.CLONED)


def _clock(random: Random) -> list[tuple[int, int]]:
    """Return steps of the clock; in the end it is right."""
    seconds = sorted(
        random.randrange(3 * _HOUR_S, 20 * _HOUR_S) for _ in range(random.randrange(4))
    )
    steps = [(second, random.randrange(-2 * _HOUR_S, _HOUR_S)) for second in seconds]
    return [*steps, (21 * _HOUR_S, 0)]


def _outages(random: Random) -> list[tuple[int, int]]:
    begins = sorted(random.randrange(DAY_S - _HOUR_S) for _ in range(random.randrange(5)))
    found = [(begin, begin + random.randrange(20, _HOUR_S)) for begin in begins]
    if random.random() < 0.6:
        # So that rows wait at midnight.
        found.append((DAY_S - random.randrange(600, _HOUR_S), DAY_S))
    return found


def _repeat(folder: Path, random: Random, *, is_other: bool) -> None:
    path = random.choice([each for each in sorted(folder.iterdir()) if each.stat().st_size > 2000])
    text = gzip.decompress(path.read_bytes())
    if is_other:
        text = text.replace(b'"device":"press-', b'"device":"pump-')
    commit, rest = path.name.split("-", 1)
    with folder.joinpath(f"{int(commit) + 1:012}-{rest}").open("xb") as file:
        file.write(gzip.compress(text))
