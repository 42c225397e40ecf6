"""Moments at which the power is cut: few among thousands of calls, those that matter among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.power_cut.disk import Cut, Disk
from tests.support.power_cut.records import Kind

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.power_cut.records import Record

RARE = {Kind.TRUNCATE, Kind.UNLINK, Kind.RENAME, Kind.LINK, Kind.MKDIR}


@dataclass(frozen=True, slots=True)
class Image:
    """One image: where it lies, and how it came about."""

    folder: Path
    at: int
    cut: Cut

    def __str__(self) -> str:
        return f"{self.cut} after record {self.at}"


def cut_points(records: Sequence[Record], count: int, rng: random.Random) -> list[int]:
    """Choose about `count` numbers of records after which the power goes, in order.

    A third lies around rare calls (names, sizes, syncs of a file that is rarely synced), a third
    right before the end of a sync, when most is at stake, a third right after a mark.
    """
    syncs: dict[int, list[int]] = {}
    for at, record in enumerate(records):
        if record.kind is Kind.SYNC_END:
            syncs.setdefault(record.inode, []).append(at)
    usual = max(syncs.values(), key=len, default=[])
    rare = [at for at, record in enumerate(records) if record.kind in RARE]
    rare += [at for ends in syncs.values() if ends is not usual for at in ends]
    around = [near for at in rare for near in (at, at + 1, at + 3) if near < len(records)]
    ends = [at for found in syncs.values() for at in found]
    marks = [at + 1 for at, record in enumerate(records) if record.kind is Kind.MARK]
    chosen: set[int] = set()
    for places in (around, ends, marks):
        chosen.update(rng.sample(places, min(count // 3, len(places))))
    return sorted(chosen)


def images(
    records: Sequence[Record], count: int, rng: random.Random, folder: Path
) -> Iterator[tuple[Image, Sequence[Record]]]:
    """Build up to `count` images one after another, each with the records since the one before.

    At each moment all that is unsure is lost once, and twice it is there in part.
    """
    disk = Disk()
    done = number = 0
    for at in cut_points(records, count // 3, rng):
        news = records[done:at]
        disk.play(news)
        done = at
        for cut in (Cut.NOTHING, *rng.sample(list(Cut)[1:], 2)):
            number += 1
            image = Image(folder / str(number), at, cut)
            image.folder.mkdir(parents=True)
            disk.image(image.folder, cut, rng)
            yield image, news
            news = []
