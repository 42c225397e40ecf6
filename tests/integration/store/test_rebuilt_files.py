"""Files that a person has made anew with SQLite's own tools while the hub was stopped."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from edgehub.store.salvage.file_header import header_fault
from tests.support.stores import LAB, P0, P2, a_message, a_result, bodies, read_all, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = pytest.mark.integration

QUEUES = [(P0, LAB), (P2, LAB), (P2, a_result().endpoint_id)]


def run(path: Path, *statements: str) -> None:
    """Have SQLite do something to the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


def load_dump(path: Path) -> None:
    """Write all of it as SQL, and make a file of that."""
    with closing(sqlite3.connect(path)) as connection:
        script = "\n".join(connection.iterdump())
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def pack_into(path: Path) -> None:
    """Write a packed copy, and put it in place."""
    packed = path.with_name("packed.db")
    run(path, f"VACUUM INTO '{packed}'")
    packed.rename(path)


LIKE_OURS: dict[str, Callable[[Path], None]] = {
    "packed": lambda path: run(path, "VACUUM"),
    "a packed copy": pack_into,
    "without a log": lambda path: run(path, "PRAGMA journal_mode = DELETE", "VACUUM"),
    "with statistics": lambda path: run(path, "ANALYZE"),
}
NOT_LIKE_OURS: dict[str, Callable[[Path], None]] = {
    "from a dump": load_dump,
    "without maps": lambda path: run(path, "PRAGMA auto_vacuum = NONE", "VACUUM"),
    "with other pages": lambda path: run(
        path, "PRAGMA journal_mode = DELETE", "PRAGMA page_size = 8192", "VACUUM"
    ),
}


async def contents(hub: Harness) -> list[list[bytes]]:
    """Return all that waits."""
    return [bodies(await read_all(hub.queue(*queue))) for queue in QUEUES]


async def fill(path: Path) -> list[list[bytes]]:
    """Make queues that have drained in part, with a shared body; gives what waits."""
    async with running(path) as hub:
        await hub.stored(600, a_result(P2))
        await hub.stored(200, a_result(P0, endpoint_id=LAB))
        for number in range(20):
            body = b"shared-%d|" % number + bytes(9000)
            hub.send(a_message(body=body), a_result(P2), a_result(P2, endpoint_id=LAB))
        await hub.store.writer.flush()
        hub.queue().confirm((await read_all(hub.queue()))[:400])
        await hub.store.writer.flush()
    async with running(path) as hub:
        return await contents(hub)


@pytest.mark.parametrize("how", LIKE_OURS)
async def test_a_sound_file_stays(tmp_path: Path, how: str) -> None:
    """Nothing is taken for damaged."""
    path = tmp_path / "q.db"
    before = await fill(path)
    LIKE_OURS[how](path)
    async with running(path) as hub:
        assert hub.store.damage is None
        assert await contents(hub) == before
    assert not header_fault(path)


@pytest.mark.parametrize("how", NOT_LIKE_OURS)
async def test_a_sound_file_of_another_make_keeps_every_row(tmp_path: Path, how: str) -> None:
    """Its header is not as the hub makes it: a file of the hub's own takes its place."""
    path = tmp_path / "q.db"
    before = await fill(path)
    NOT_LIKE_OURS[how](path)
    assert header_fault(path)
    async with running(path) as hub:
        damage = hub.store.damage
        assert damage is not None
        assert (damage.lost, damage.is_exact, damage.tables) == ([], True, [])
        assert damage.salvaged_rows == sum(map(len, before))
        assert await contents(hub) == before
    assert not header_fault(path)


async def test_words_about_the_file_that_are_no_text(tmp_path: Path) -> None:
    """SQLite quotes a spoilt list of tables, and that cannot be read: it is damage like another."""
    path = tmp_path / "q.db"
    before = await fill(path)
    content = bytearray(path.read_bytes())
    content[68:72] = b"abcd"
    place = content.index(b"CREATE TABLE zone") + len("CREATE ")
    content[place] = 0xE9
    path.write_bytes(content)
    async with running(path) as hub:
        assert hub.store.damage is not None
        assert await contents(hub) == before
