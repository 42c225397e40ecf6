"""Rows of a file whose list of tables, or whose upper pages, cannot be read any more.

Finds the first page of each table: from the readable part of the list of tables, from the copy next
to the file, and, where both lack it, from the layout of the hub's files. Then reads the pages of a
table one by one, whatever is above them. Invariant: only pages in use are read; free pages contain
rows that were delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from edgehub.store.salvage.page_owners import PageOwners
from edgehub.store.salvage.pages import (
    INNER,
    KEYS_INNER,
    KEYS_LEAF,
    KINDS,
    TABLE_INNER,
    TABLE_LEAF,
    PageError,
    RecordReader,
    children,
    first_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from edgehub.store.salvage.pages import PageFile, Record

SCHEMA_ROOT: Final = 1
SCHEMA_COLUMNS: Final = 5  # type, name, table, first page, SQL
SCHEMA_KINDS: Final = frozenset({"table", "index", "trigger"})
TABLE_KINDS: Final = frozenset({TABLE_INNER, TABLE_LEAF})
KEYS_KINDS: Final = frozenset({KEYS_INNER, KEYS_LEAF})


class PageRecovery:
    """The rows of one file, read page by page.

    Attributes:
        roots: First page by name of table or index, as far as known.
    """

    def __init__(self, pages: PageFile, listed: Mapping[str, int], made: Mapping[str, int]) -> None:
        """Find the tables.

        Args:
            pages: The file.
            listed: First pages by the copy next to the file.
            made: First pages that a new file has: the same, as they are made in the same order.
        """
        self._pages = pages
        self.roots: dict[str, int] = {}
        self._owners = PageOwners(pages, listed.values())
        self._take(self._stored_roots(self._owners.of(SCHEMA_ROOT)))
        self._take(listed)
        # Where the map that covers them is damaged as well; an old page of the list is right, too,
        # because the first page of a table never moves.
        self._take(self._stored_roots(self._owners.unowned))
        self._known = set(self.roots.values())
        self._take(made)
        if not set(self.roots.values()) <= set(self._owners.roots):
            self._owners = PageOwners(pages, self.roots.values())

    def table(self, name: str, *, has_rowid: bool = True) -> RecoveredTable | None:
        """Return a table or index by its name, None = its first page is unknown."""
        root = self.roots.get(name)
        return None if root is None else self.tree(root, has_rowid=has_rowid)

    def tree(self, root: int, *, has_rowid: bool = True) -> RecoveredTable:
        """Return a table or index by its first page."""
        return RecoveredTable(self._pages, self._owners, root, has_rowid=has_rowid)

    def nameless(self) -> list[int]:
        """List the first pages of tables whose names are lost, in the order they were made.

        Those among them whose name only follows from that order: in a file that was brought from
        one schema to another that may be wrong.
        """
        roots = self._owners.roots
        return [root for root in roots if root not in self._known and self._is_table(root)]

    @property
    def has_unowned(self) -> bool:
        """Return whether there are pages of unknown tables."""
        return bool(self._owners.unowned)

    def unowned_rows(self) -> Iterator[list[tuple[int, Record]]]:
        """Yield the rows of each leaf whose table is unknown, or that may be free."""
        for number in self._owners.unowned:
            try:
                page = self._pages.page(number)
            except PageError:
                continue
            if page[0] == TABLE_LEAF:
                yield list(RecordReader(self._pages).records(number, page))

    def _take(self, roots: Mapping[str, int]) -> None:
        """Add what is not known yet and does not contradict what is."""
        taken = set(self.roots.values())
        for name, root in roots.items():
            if name not in self.roots and root not in taken:
                self.roots[name] = root

    def _stored_roots(self, numbers: Iterable[int]) -> dict[str, int]:
        """Read the list of tables itself, as far as its pages are there."""
        found: dict[str, int] = {}
        reader = RecordReader(self._pages)
        count = self._pages.count
        for number in numbers:
            try:
                page = self._pages.page(number)
            except PageError:
                continue
            if page[0] != TABLE_LEAF:
                continue
            for _, record in reader.records(number, page):
                if len(record) != SCHEMA_COLUMNS or record[0] not in SCHEMA_KINDS:
                    break
                _, name, _, root, _ = record
                # Triggers have no page.
                if isinstance(name, str) and isinstance(root, int) and 1 < root <= count:
                    found[name] = root
        return found

    def _is_table(self, root: int) -> bool:
        for number in self._owners.of(root):
            try:
                kind = self._pages.page(number)[0]
            except PageError:
                continue
            if kind in KINDS:
                return kind in TABLE_KINDS
        return False


class RecoveredTable:
    """The records of one table, in the order of their keys as far as possible.

    Attributes:
        is_whole: All that was read so far was as it should be, and nothing seemed to be missing.
    """

    def __init__(self, pages: PageFile, owners: PageOwners, root: int, *, has_rowid: bool) -> None:
        self._pages = pages
        self._owners = owners
        self._root = root
        self._has_rowid = has_rowid
        self.is_whole = True

    def __iter__(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Return key (0 without rowid) and values of each record that can be read."""
        reader = RecordReader(self._pages)
        for number in self._in_order():
            page = self._page(number)
            if page is not None:
                yield from reader.records(number, page)
        if reader.failures:
            self.is_whole = False

    def _in_order(self) -> Iterable[int]:
        """Sort the leaves by their first rows: rows that come in order cost the new file less."""
        numbers = self._owners.of(self._root)
        if not numbers:
            self.is_whole = False
        if not self._has_rowid:
            return numbers
        keys: list[int] = []
        for number in numbers:
            page = self._page(number)
            if page is not None and page[0] == TABLE_LEAF:
                keys.append(first_key(page) << 32 | number)
        keys.sort()
        return (key & 0xFFFFFFFF for key in keys)

    def _page(self, number: int) -> bytes | None:
        """Read a page of the tree, None = it is no whole one of its kind."""
        page: bytes | None = None
        try:
            found = self._pages.page(number)
            if found[0] not in (TABLE_KINDS if self._has_rowid else KEYS_KINDS):
                raise PageError  # noqa: TRY301 - the same as for one that cannot be read
            # One of keys has records of its own, whatever it leads to.
            page = found
            if page[0] in INNER:
                children(page, self._pages.count)
        except PageError:
            # An inner page of rows only leads to others, which the maps name as well.
            leads = self._has_rowid and self._owners.has_pages_below(number)
            if not leads or self._owners.unowned:
                self.is_whole = False
        return page
