"""The records of a damaged database file: by SQL as far as SQLite gets, by its pages where not.

Owns a connection to the file, which is only read. SQLite comes first, because it is the authority
and the faster one; from a table at which it fails, all pages are read again one by one. Invariant:
no record of a free page is returned.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from edgehub.store.database import Fault, classify
from edgehub.store.salvage.file_header import header_fault
from edgehub.store.salvage.page_recovery import PageRecovery
from edgehub.store.salvage.pages import PageFile
from edgehub.store.salvage.table_list import read_table_list
from edgehub.store.transaction import create_queue_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from edgehub.store.salvage.row_validation import Record
    from edgehub.store.salvage.table_list import TableList

KEY_MAX: Final = 2**62
SQLITE_DAMAGE: Final = (Fault.DAMAGE, Fault.BUG)
"""In addition to SQLite's own errors: texts that are not UTF-8, columns of the wrong type."""
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""The second where SQLite's words quote a text of the file that is none."""


class Table:
    """A table as this program makes it.

    Attributes:
        name: Its name.
        columns: Names of its columns, in order.
        has_rowid: It is a tree of rows, not of keys.
        alias: Place of the column that is the key of the tree, -1 = none is.
        defaults: What the last columns hold in rows that are older than these columns.
    """

    __slots__ = ("alias", "columns", "defaults", "has_rowid", "name")

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        """Look it up in a database of this program."""
        self.name = name
        info = connection.execute(f"PRAGMA table_info({name})").fetchall()
        (sql,) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = ?", (name,)
        ).fetchone()
        self.columns = [row[1] for row in info]
        self.has_rowid = "WITHOUT ROWID" not in sql
        keys = [row for row in info if row[5]]
        alone = self.has_rowid and len(keys) == 1 and keys[0][2] == "INTEGER"
        self.alias: int = keys[0][0] if alone else -1
        self.defaults: list[Any] = []
        for _, _, _, is_needed, default, key in reversed(info):
            if key or (is_needed and default is None):
                break
            value = "NULL" if default is None else default
            self.defaults.insert(0, connection.execute(f"SELECT {value}").fetchone()[0])

    def padded(self, values: Record) -> Record:
        """Complete a record that was written before the last columns were added."""
        missing = len(self.columns) - len(values)
        if not 0 < missing <= len(self.defaults):
            return values
        return (*values, *self.defaults[-missing:])


def queue_shape() -> Table:
    """Return what all tables of queues look like."""
    with closing(sqlite3.connect(":memory:")) as connection:
        create_queue_table(connection, 0)
        return Table(connection, "q_0")


class DamagedFile:
    """The records of one damaged database file.

    Attributes:
        listed: The copy of the list of tables, None = there is no complete one.
        names: Tables of which something may be read.
    """

    def __init__(
        self, connection: sqlite3.Connection, pages: PageFile, path: Path, made: Mapping[str, int]
    ) -> None:
        """Begin; `made` are the first pages of a new file's tables and indexes, by name."""
        self._connection = connection
        self._pages = pages
        self._made = made
        self.listed: TableList | None = read_table_list(path)
        self._failures = 0
        self._is_header_sound = not header_fault(path)
        # With a header that is wrong SQLite may read nonsense, and not see it; unless all fits, as
        # in a file that an operator has loaded from a dump or vacuumed.
        self._by_sql = self._is_header_sound or _is_consistent(path, made)
        # The first lets SQLite read a truncated file, or one whose schema has gaps.
        self._try("PRAGMA writable_schema = ON")
        self._try("PRAGMA cell_size_check = ON")
        # Where part of the schema is lost, this fails; what comes after it sees the other part.
        self._try("SELECT count(*) FROM sqlite_schema")
        self._failures = 0
        found = self._try("SELECT type, name FROM sqlite_schema WHERE rootpage > 0")
        self._known = {name for kind, name in found if kind == "table"}
        self.names = set(self._known)
        listed = self.listed.roots if self.listed is not None else {}
        if self._failures or not {name for _, name in found} >= {*made, *listed}:
            self.names |= self.page_recovery.roots.keys()

    @cached_property
    def page_recovery(self) -> PageRecovery:
        """The pages, once they are needed."""
        return PageRecovery(self._pages, self.listed.roots if self.listed else {}, self._made)

    @property
    def has_recovered_pages(self) -> bool:
        """Return whether SQLite was not enough."""
        return "page_recovery" in self.__dict__

    def is_sound(self) -> bool:
        """Return whether the header is ours; let SQLite look how the pages hang together."""
        return self._is_header_sound and self._try("PRAGMA quick_check(1)") == [("ok",)]

    def records(self, table: Table, *, root: int = 0) -> Records:
        """Return the records of a table; `root` is its first page where its name is lost."""
        return Records(self, table, root)

    def by_sql(self, table: Table) -> Iterator[Record]:
        """Return records in the order of their keys.

        Raises:
            sqlite3.Error: SQLite does not know the table, or cannot read on.
            LookupError: The tree leads back, which SQLite does not see.
        """
        if not self._by_sql or table.name not in self._known:
            raise LookupError(table.name)
        columns = ", ".join(table.columns)
        if not table.has_rowid:
            yield from self._connection.execute(f"SELECT {columns} FROM {table.name}")  # noqa: S608 - our names
            return
        sql = f"SELECT rowid, {columns} FROM {table.name} NOT INDEXED ORDER BY rowid"  # noqa: S608 - our names
        before: int | None = None
        for key, *record in self._connection.execute(sql):
            if before is not None and key <= before:
                raise LookupError(table.name)
            before = key
            yield record

    def _try(self, sql: str) -> list[tuple[Any, ...]]:
        """Read what may be had of a small result."""
        found: list[tuple[Any, ...]] = []
        if self._by_sql:
            try:
                found.extend(self._connection.execute(sql))
            except SQLITE_ERRORS as exc:
                only_damage(exc)
                self._failures += 1
        else:
            self._failures += 1
        return found


class Records:
    """The records of one table, some of them maybe twice.

    Attributes:
        is_whole: None was missing; known at the end.
    """

    def __init__(self, file: DamagedFile, table: Table, root: int) -> None:
        self._file = file
        self._table = table
        self._root = root
        self.is_whole = True

    def __iter__(self) -> Iterator[Record]:
        """Return the values of each record, in the order of the columns."""
        if not self._root:
            try:
                yield from self._file.by_sql(self._table)
            except SQLITE_ERRORS as exc:
                only_damage(exc)
            except LookupError:
                pass
            else:
                return
        yield from self._by_pages()

    def _by_pages(self) -> Iterator[Record]:
        table, page_recovery = self._table, self._file.page_recovery
        recovered = (
            page_recovery.tree(self._root)
            if self._root
            else page_recovery.table(table.name, has_rowid=table.has_rowid)
        )
        if recovered is None:
            self.is_whole = False
            return
        for key, values in recovered:
            # A tree without a name is of the shape that is looked for, or another table.
            record = row_of(table, key, values if self._root else table.padded(values))
            if record is None:
                self.is_whole = False
            else:
                yield record
        self.is_whole &= recovered.is_whole


def row_of(table: Table, key: int, values: Record) -> Record | None:
    """Return a record of a page as a row of a table, None = it is none."""
    if len(values) != len(table.columns):
        return None
    if table.alias < 0:
        return values
    if values[table.alias] is not None or not 0 < key <= KEY_MAX:
        return None
    return (*values[: table.alias], key, *values[table.alias + 1 :])


@contextmanager
def damaged_file(path: Path, made: Mapping[str, int]) -> Iterator[DamagedFile]:
    """Open a damaged file for reading; see `DamagedFile`."""
    connection = sqlite3.connect(_uri(path), uri=True)
    with closing(connection), PageFile(path) as pages:
        connection.isolation_level = None
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        yield DamagedFile(connection, pages, path, made)


def _is_consistent(path: Path, names: Collection[str]) -> bool:
    """Return whether SQLite finds these tables and indexes in a file, and nothing wrong with it."""
    try:
        with closing(sqlite3.connect(_uri(path), uri=True)) as connection:
            found = connection.execute("SELECT name FROM sqlite_schema").fetchall()
            if not {name for (name,) in found}.issuperset(names):
                return False
            return connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except SQLITE_ERRORS as exc:
        only_damage(exc)
        return False


def _uri(path: Path) -> str:
    return f"file:{quote(str(path))}?mode=ro"


def only_damage(error: sqlite3.Error | UnicodeDecodeError) -> None:
    """Ignore damage; raise a full disk, a lock or lack of memory."""
    if classify(error) not in SQLITE_DAMAGE:
        raise error
