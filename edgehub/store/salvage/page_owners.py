"""Which tree each page of a database file belongs to.

A file with auto-vacuum has pointer maps of all its pages: the use of each, and the page above it.
So the tree of a leaf is known even where every page between the two is corrupt, and a free page is
known as free. Where a map is corrupt too, the inner pages are used. Only reads; about 14 bytes of
memory a page.

Source: https://www.sqlite.org/fileformat2.html, sections 1.5 (free pages), 1.8 (pointer maps).
"""

from __future__ import annotations

import struct
from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.salvage.pages import INNER, MAGIC, PageError, children

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.store.salvage.pages import PageFile

ENTRY: Final = struct.Struct(">BI")
ENTRIES: Final = PAGE_BYTES // ENTRY.size
FIRST_MAP: Final = 2
LOCK_PAGE: Final = (1 << 30) // PAGE_BYTES + 1
"""Holds nothing."""
DEPTH_MAX: Final = 20
FREE_LISTED_MAX: Final = PAGE_BYTES // 4 - 2


class Use(IntEnum):
    """The map entry of a page."""

    UNKNOWN = 0
    ROOT = 1
    FREE = 2
    FIRST_CHAINED = 3
    CHAINED = 4
    TREE = 5
    MAP = 6  # never in a map


class PageOwners:
    """The tree that each page of one file belongs to.

    Attributes:
        unowned: Pages of which it is unknown whether they are in use, and by which tree.
    """

    def __init__(self, pages: PageFile, roots: Iterable[int]) -> None:
        """Look through the maps.

        Args:
            pages: The file.
            roots: Pages that are known to be the first of a tree.
        """
        self._pages = pages
        count = pages.count
        # The last map also has entries of pages beyond a truncation.
        size = 1 + -(-count // (ENTRIES + 1)) * (ENTRIES + 1) + 1
        self._uses = bytearray(size)
        self._above = array("I", bytes(4 * size))
        self._read_maps()
        for page in (0, LOCK_PAGE):
            if page < size:
                self._uses[page] = Use.MAP
        for page in (1, *roots):
            if page <= count and self._uses[page] == Use.UNKNOWN:
                self._uses[page] = Use.ROOT
        if Use.UNKNOWN in self._uses[: count + 1]:
            self._read_free_list()
            self._read_trees()
        self.roots = [page for page in range(2, count + 1) if self._uses[page] == Use.ROOT]
        """The first pages of all trees but that of the list of tables, ascending."""
        self._by_root = self._grouped()
        self.unowned = self._by_root.pop(0, array("I"))
        self._is_above = bytearray(size)
        for page in range(1, count + 1):
            if self._uses[page] == Use.TREE:
                self._is_above[self._above[page]] = 1

    def of(self, root: int) -> array[int]:
        """Return the pages of a tree, ascending; those that were in use when the file was whole."""
        return self._by_root.get(root, array("I"))

    def has_pages_below(self, page: int) -> bool:
        """Return whether a page is above others; it need not be readable for that."""
        return bool(self._is_above[page])

    def _read_maps(self) -> None:
        for number in range(FIRST_MAP, self._pages.count + 1, ENTRIES + 1):
            self._uses[number] = Use.MAP
            try:
                page = self._pages.page(number)
            except PageError:
                continue
            entries = ENTRY.iter_unpack(page[: ENTRIES * ENTRY.size])
            for of, (use, above) in enumerate(entries, start=number + 1):
                if use in {Use.ROOT, Use.FREE}:
                    is_sound = above == 0
                else:
                    is_sound = Use.FREE < use <= Use.TREE and 0 < above < len(self._uses)
                if is_sound and of != above:
                    self._uses[of], self._above[of] = use, above

    def _read_free_list(self) -> None:
        """Take what page 1 and the pages it leads to say of free pages, as far as it goes."""
        uses, count = self._uses, self._pages.count
        try:
            first = self._pages.page(1)
            number = int.from_bytes(first[32:36]) if first.startswith(MAGIC) else 0
            for _ in range(count):
                if not 0 < number <= count or uses[number] not in {Use.UNKNOWN, Use.FREE}:
                    return
                page = self._pages.page(number)
                listed_count = int.from_bytes(page[4:8])
                if listed_count > FREE_LISTED_MAX:
                    return
                for free in (number, *struct.unpack_from(f">{listed_count}I", page, 8)):
                    if 0 < free <= count and uses[free] == Use.UNKNOWN:
                        uses[free] = Use.FREE
                number = int.from_bytes(page[:4])
        except PageError:
            return

    def _read_trees(self) -> None:
        """Assign pages without a map entry by the inner pages of known trees, from the top down."""
        waiting = [
            number
            for number in range(1, self._pages.count + 1)
            if self._uses[number] in {Use.ROOT, Use.TREE}
        ]
        while waiting:
            number = waiting.pop()
            try:
                page = self._pages.page(number)
                if page[0] not in INNER:
                    continue
                below = children(page, self._pages.count)
            except PageError:
                continue
            for child in below:
                if self._uses[child] == Use.UNKNOWN:
                    self._uses[child], self._above[child] = Use.TREE, number
                    waiting.append(child)

    def _grouped(self) -> dict[int, array[int]]:
        by_root: dict[int, array[int]] = {}
        for number in range(1, self._pages.count + 1):
            if self._uses[number] in {Use.ROOT, Use.TREE, Use.UNKNOWN}:
                root = self._root(number)
                if root not in by_root:
                    by_root[root] = array("I")
                by_root[root].append(number)
        return by_root

    def _root(self, number: int) -> int:
        """Return the first page of the tree, 0 = unknown."""
        for _ in range(DEPTH_MAX):
            if self._uses[number] == Use.ROOT:
                return number
            if self._uses[number] != Use.TREE:
                return 0
            number = self._above[number]
        return 0
