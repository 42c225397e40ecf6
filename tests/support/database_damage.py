"""Damage of database files by the page, and what must outlive it.

Which pages hold a row is found on the whole file, and held against what SQLite says of it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.salvage.page_owners import ENTRIES, FIRST_MAP
from edgehub.store.salvage.pages import INNER, TABLE_LEAF, PageFile, RecordReader, children

if TYPE_CHECKING:
    import random
    from pathlib import Path

Content = tuple[object, ...]
PLAIN = "offset, enqueued_ms, expires_ms, size, attempts, fresh_until_ms, creation"


def spoil(path: Path, number: int, content: bytes = bytes(PAGE_BYTES), start: int = 0) -> None:
    """Overwrite one page, or a part of it; the first is number 1."""
    with path.open("r+b") as file:
        file.seek((number - 1) * PAGE_BYTES + start)
        file.write(content)


def roots_of(path: Path) -> dict[str, int]:
    """Return the first page of each table and index."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(
            connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0")
        )


def queue_rows(path: Path) -> dict[tuple[str, int], dict[int, Content]]:
    """Read all queues with plain SQL: endpoint and priority -> offset -> what is in the row."""
    found: dict[tuple[str, int], dict[int, Content]] = {}
    with closing(sqlite3.connect(path)) as connection:
        for number, *queue in connection.execute("SELECT number, endpoint_id, priority FROM queue"):
            sql = (
                f"SELECT {PLAIN}, coalesce(q.header, b.header), coalesce(q.body, b.body)"
                f" FROM q_{number} AS q LEFT JOIN body AS b ON b.id = q.body_id"
            )
            found[queue[0], queue[1]] = {
                # Without the source, which may be a label in a table of its own.
                offset: (offset, *rest, *orjson.loads(header)[:2], body)
                for offset, *rest, header, body in connection.execute(sql)
            }
    return found


@dataclass
class Whole:
    """A file before it is damaged.

    Attributes:
        rows: See `queue_rows`.
        pages: Offset -> the pages of the row, and of the body it shares.
        above: Offset -> the inner pages over its leaves.
        count: Pages of the file.
    """

    rows: dict[tuple[str, int], dict[int, Content]]
    pages: dict[int, set[int]] = field(default_factory=dict)
    above: dict[int, set[int]] = field(default_factory=dict)
    count: int = 0

    @classmethod
    def of(cls, path: Path) -> Whole:
        """Look through a file, which must have no log."""
        whole = cls(queue_rows(path))
        roots = roots_of(path)
        with PageFile(path) as file:
            whole.count = file.count
            bodies = whole._places(file, roots["body"])
            for name, root in roots.items():
                if not name.removeprefix("q_").isdigit():
                    continue
                for offset, (pages, above, values) in whole._places(file, root).items():
                    assert offset not in whole.pages
                    whole.pages[offset], whole.above[offset] = pages, above
                    if values[11] is not None:
                        whole.pages[offset] |= bodies[values[11]][0]
                        whole.above[offset] |= bodies[values[11]][1]
        assert whole.pages.keys() == {o for rows in whole.rows.values() for o in rows}
        return whole

    def _places(self, file: PageFile, root: int) -> dict[int, tuple[set[int], set[int], Content]]:
        """Walk one tree down from its first page, as SQLite would."""
        found: dict[int, tuple[set[int], set[int], Content]] = {}
        waiting: list[tuple[int, set[int]]] = [(root, set())]
        while waiting:
            number, above = waiting.pop()
            page = file.page(number)
            if page[0] in INNER:
                waiting += [(child, above | {number}) for child in children(page, file.count)]
                continue
            assert page[0] == TABLE_LEAF
            read: list[int] = []
            recording = _Recording(file, read)
            for key, values in RecordReader(recording).records(number, page):
                found[key] = ({number, *read}, above, values)
                read.clear()
        return found

    def must_survive(self, offset: int, spoilt: set[int]) -> bool:
        """Return whether a row's pages are whole, and either its maps or all pages above are."""
        pages = self.pages[offset]
        maps = {map_of(page) for page in pages | self.above[offset]}
        return not pages & spoilt and not (maps & spoilt and self.above[offset] & spoilt)


class _Recording(PageFile):
    """Notes which pages are read."""

    def __init__(self, file: PageFile, read: list[int]) -> None:
        self._below = file
        self._read = read
        self.count = file.count

    def page(self, number: int) -> bytes:
        self._read.append(number)
        return self._below.page(number)


def map_of(page: int) -> int:
    """Return the page of the map that tells of a page."""
    return (page - FIRST_MAP) // (ENTRIES + 1) * (ENTRIES + 1) + FIRST_MAP


def spoil_some(path: Path, rng: random.Random, count: int) -> set[int]:
    """Damage a few pages, single ones and runs, by one of the ways in which disks do; say which."""
    spoilt: set[int] = set()
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        first = rng.choice(
            [1, rng.randint(1, 40), rng.randint(1, count), map_of(rng.randint(3, count))]
        )
        for page in range(first, min(first + rng.choice([1, 1, 1, 2, 8, 64]), count + 1)):
            half = PAGE_BYTES // 2
            start, size = rng.choice([(0, PAGE_BYTES), (0, half), (half, half), (0, 512)])
            content = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
            spoil(path, page, content, start)
            spoilt.add(page)
    return spoilt
