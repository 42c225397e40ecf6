"""Pages and records read without SQLite, held against what SQLite wrote and reads."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.storage.sqlite_log import PAGE_BYTES
from edgehub.store.salvage.damaged_file import Table, row_of
from edgehub.store.salvage.page_owners import PageOwners
from edgehub.store.salvage.pages import (
    INNER,
    TABLE_INNER,
    PageError,
    PageFile,
    RecordReader,
    children,
)
from tests.support.database_damage import roots_of, spoil

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

RECORDS = [0x0D, 0x0A, 0x02]
"""Kinds of pages that hold records."""

EDGES = [0, 1, 2, 127, 128, 255, 256, 32767, 32768, 2**23, 2**31, 2**47, 2**62, 2**63 - 1]
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(EDGES + [-edge for edge in EDGES]),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.binary(max_size=300),
    # On the page to the last byte, or with a chain of pages behind it.
    st.sampled_from([4040, 4050, 4057, 4058, 4061, 4062, 8150, 8160, 20_000]).map(bytes),
)
KEYS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(EDGES))


def a_database(path: Path) -> sqlite3.Connection:
    """Make an empty database as the hub does."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def read_tree(path: Path, root: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Read all records of a tree by its pages."""
    with PageFile(path) as pages:
        owners = PageOwners(pages, [root])
        reader = RecordReader(pages)
        found = [
            record
            for number in owners.of(root)
            for record in reader.records(number, pages.page(number))
        ]
        assert reader.failures == 0
        assert not owners.unowned
    return found


@given(st.dictionaries(KEYS, st.tuples(VALUES, VALUES), max_size=40))
def test_what_sqlite_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[int, tuple[Any, Any]]
) -> None:
    """Rows and keys of every type and size, from the log and from the file."""
    path = tmp_path_factory.getbasetemp() / "pages.db"
    with closing(a_database(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
        connection.execute("CREATE TABLE k (id, a, b, PRIMARY KEY (id)) WITHOUT ROWID")
        for name in ("t", "k"):
            connection.executemany(
                f"INSERT INTO {name} VALUES (?, ?, ?)", [(key, *row) for key, row in rows.items()]
            )
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema"))
        in_log = read_tree(path, roots["t"]), read_tree(path, roots["k"])
    assert not path.with_name("pages.db-wal").exists()
    assert (read_tree(path, roots["t"]), read_tree(path, roots["k"])) == in_log
    assert sorted(in_log[0], key=lambda record: record[0]) == [
        (key, (None, *rows[key])) for key in sorted(rows)
    ]
    # SQLite keeps a whole float as an integer, which is equal.
    assert sorted(record[0] for _, record in in_log[1]) == sorted(rows)
    assert {record[0]: record[1:] for _, record in in_log[1]} == rows


@pytest.mark.parametrize("pages", [1, 3])
def test_free_pages_at_the_end_are_known_by_the_list_of_free_pages(
    tmp_path: Path, pages: int
) -> None:
    """Its first page may be the last of the file; without the map nothing else tells of it."""
    path = tmp_path / "free.db"
    with closing(a_database(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
        connection.execute("INSERT INTO t VALUES (1, 'kept')")
        connection.execute("INSERT INTO t VALUES (2, zeroblob(?))", (pages * (PAGE_BYTES - 4),))
        connection.execute("DELETE FROM t WHERE id = 2")
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema").fetchone()
    last = path.stat().st_size // PAGE_BYTES
    with path.open("rb") as file:
        first_free = int.from_bytes(file.read(36)[32:])
    assert first_free == last or pages > 1
    spoil(path, 2)
    with PageFile(path) as file:
        assert file.count == last == root + pages
        owners = PageOwners(file, [root])
        assert list(owners.of(root)) == [root]
        assert list(owners.unowned) == []


def test_a_wrong_list_of_free_pages_takes_no_page_from_its_table(tmp_path: Path) -> None:
    """It may name pages that the file does not have, or that are known to be in use."""
    path = tmp_path / "free.db"
    with closing(a_database(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
        connection.execute("INSERT INTO t VALUES (1, 'kept')")
        connection.execute("INSERT INTO t VALUES (2, zeroblob(?))", (3 * (PAGE_BYTES - 4),))
        connection.execute("DELETE FROM t WHERE id = 2")
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema").fetchone()
    with path.open("r+b") as file:
        first_free = int.from_bytes(file.read(36)[32:])
        file.seek((first_free - 1) * PAGE_BYTES + 4)
        assert int.from_bytes(file.read(4)) == 2
        file.write(struct.pack(">2I", 2**32 - 1, root))
    spoil(path, 2)
    with PageFile(path) as file:
        assert list(PageOwners(file, [root]).of(root)) == [root]


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(40 if os.environ.get("EDGEHUB_SOAK") else 8))
def test_a_log_ends_where_sqlite_says(tmp_path: Path, seed: int) -> None:
    """Cut or spoilt anywhere: the pages are those that SQLite goes on with."""
    rng = random.Random(seed)
    path, copy = tmp_path / "log.db", tmp_path / "copy.db"
    connection = a_database(path)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    for round_number in range(3):
        for _ in range(rng.randint(2, 12)):
            connection.execute("BEGIN")
            for _ in range(rng.randint(1, 20)):
                row = (rng.randint(1, 300), rng.randbytes(rng.randint(0, 6000)))
                connection.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", row)
            connection.execute("DELETE FROM t WHERE id % 7 = ?", (rng.randint(0, 6),))
            connection.execute("COMMIT")
            connection.execute("PRAGMA incremental_vacuum").fetchall()
        if round_number < 2:
            # So frames of an older round stand behind those of the last one.
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    shutil.copyfile(path, copy)
    log = bytearray(path.with_name("log.db-wal").read_bytes())
    connection.close()
    match rng.choice(["whole", "cut", "spoilt", "header"]):
        case "cut":
            del log[rng.randint(0, len(log)) :]
        case "spoilt":
            log[rng.randrange(len(log))] ^= 1 << rng.randrange(8)
        case "header":
            log[rng.randrange(32)] ^= 255
    copy.with_name("copy.db-wal").write_bytes(log)
    with PageFile(copy) as pages:
        read = [pages.page(number) for number in range(1, pages.count + 1)]
    with closing(sqlite3.connect(copy)) as other:
        assert other.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = copy.read_bytes()
    assert b"".join(read) == content
    assert "t" in roots_of(copy)


def test_rows_from_before_a_column_get_its_default() -> None:
    """As SQLite gives them: a table may have got columns since; others are no rows of it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE t (a NOT NULL, id INTEGER PRIMARY KEY, b NOT NULL, c TEXT,"
            " d INTEGER NOT NULL DEFAULT 7, e TEXT NOT NULL DEFAULT 'x')"
        )
        table = Table(connection, "t")
    assert row_of(table, 5, table.padded((1, None, 2))) == (1, 5, 2, None, 7, "x")
    assert row_of(table, 5, table.padded((1, None, 2, 3, 4))) == (1, 5, 2, 3, 4, "x")
    assert row_of(table, 5, table.padded((1, None))) is None
    assert row_of(table, 5, table.padded((1, 5, 2, 3, 4, 5))) is None
    assert row_of(table, -5, table.padded((1, None, 2))) is None
    assert row_of(table, 5, table.padded((1, None, 2, 3, 4, 5, 6))) is None


def test_pages_before_a_cut_have_their_tree(tmp_path: Path) -> None:
    """Though the pages between them and the first one were behind the cut."""
    path = tmp_path / "cut.db"
    with closing(a_database(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
        rows = [(number, bytes(3000)) for number in range(700)]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    root = roots_of(path)["t"]
    with PageFile(path) as pages:
        before = list(PageOwners(pages, ()).of(root))
        inner = [number for number in before if pages.page(number)[0] in INNER]
    assert len(inner) > 2, "the first page, and others"
    cut = max(inner)
    os.truncate(path, (cut - 1) * PAGE_BYTES)
    with PageFile(path) as pages:
        owners = PageOwners(pages, ())
        assert list(owners.of(root)) == [number for number in before if number < cut]
        assert not owners.unowned


@st.composite
def bad_pages(draw: st.DrawFn) -> tuple[bytes, int, list[int]]:
    """Make a page of any bytes; gives it, where its cells begin at the earliest, and the cells."""
    kind = draw(st.sampled_from([*RECORDS, TABLE_INNER]))
    content = draw(st.binary(min_size=1, max_size=PAGE_BYTES))
    page = bytearray(bytes([kind]) + content[1:].ljust(PAGE_BYTES - 1, content[-1:]))
    start = 12 if kind in INNER else 8
    if draw(st.booleans()):
        # A list of cells that may be whole, and in them short records that may be.
        cells = draw(st.lists(st.integers(0, PAGE_BYTES), max_size=6))
        for cell in cells:
            record = bytes(draw(st.lists(st.integers(0, 20), max_size=12)))
            page[cell : cell + len(record)] = record
        del page[PAGE_BYTES:]
        page[:5] = bytes([kind, 0, 0]) + len(cells).to_bytes(2)
        struct.pack_into(f">{len(cells)}H", page, start, *cells)
    count = int.from_bytes(page[3:5])
    end = start + 2 * count
    whole = end <= PAGE_BYTES
    return bytes(page), end, list(struct.unpack_from(f">{count}H", page, start)) if whole else [0]


@given(bad_pages())
def test_no_page_is_too_bad(
    tmp_path_factory: pytest.TempPathFactory, bad: tuple[bytes, int, list[int]]
) -> None:
    """Whatever stands on a page, reading it ends, and each cell is a record or a failure."""
    page, end, cells = bad
    path = tmp_path_factory.getbasetemp() / "bad.db"
    path.write_bytes(page * 3)
    is_whole = all(end <= cell < PAGE_BYTES for cell in cells)
    with PageFile(path) as pages:
        PageOwners(pages, [3])
        reader = RecordReader(pages)
        records = list(reader.records(3, pages.page(3)))
        if page[0] == TABLE_INNER:
            assert (records, reader.failures) == ([], 0)
        elif is_whole:
            assert len(records) + reader.failures == len(cells)
        else:
            assert (records, reader.failures) == ([], 1)
        assert all(values for _, values in records)
        if page[0] in INNER and is_whole:
            with contextlib.suppress(PageError):
                assert len(set(children(page, 3)) & {1, 2, 3}) == len(cells) + 1
        else:
            with pytest.raises(PageError):
                children(page, 3)


def inner_page(*cells: tuple[int, int], last: int) -> bytes:
    """Build an inner page of a table from pairs of a child and its largest key below 128."""
    page = bytearray(PAGE_BYTES)
    places = range(PAGE_BYTES - 5, PAGE_BYTES - 5 - 5 * len(cells), -5)
    struct.pack_into(">B2xHxxxI", page, 0, TABLE_INNER, len(cells), last)
    struct.pack_into(f">{len(cells)}H", page, 12, *places)
    for place, (child, key) in zip(places, cells, strict=True):
        struct.pack_into(">IB", page, place, child, key)
    return bytes(page)


def test_pages_below_an_inner_page_are_read_only_where_it_is_whole() -> None:
    """Numbers that a half overwritten page has by chance lead to rows of other tables."""
    assert children(inner_page((7, 1), (3, 5), last=9), 9) == [7, 3, 9]
    for damaged, count in [
        (inner_page((7, 1), (3, 5), last=9), 8),
        (inner_page((0, 1), (3, 5), last=9), 9),
        (inner_page((3, 1), (3, 5), last=9), 9),
        (inner_page((7, 5), (3, 1), last=9), 9),
        (inner_page((7, 5), (3, 5), last=9), 9),
    ]:
        with pytest.raises(PageError):
            children(damaged, count)
