"""The copy of a shared table on the disk: what a start without the storage makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.routes.manifest import DEFAULT_MANIFEST
from edgehub.storage.state_file import StateError, StateFile
from edgehub.sync.disk_copy import DiskCopy
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.sqlite import SCRIPT
from tests.support.memory_table import MemoryStorage, MemoryTable
from tests.support.route_tables import make_table, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.integration

ROUTE = "FROM /messages/* INTO $upstream"


class Away(MemoryStorage):
    """A storage that does not answer."""

    async def position(self):
        """See `TableStorage`."""
        raise StorageUnavailableError("it is away")


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[StateFile]:
    """Return the hub's state file."""
    opened = await StateFile.open(tmp_path / "state.db", [SCRIPT])
    yield opened
    await opened.close()


async def ids_after(storage, file: StateFile, *changes) -> set[str]:
    """Run a hub that does some changes, and give the ids of what runs in the end."""
    table = make_table(storage, "h", manifest=DEFAULT_MANIFEST)
    clock = SystemClock()
    table.copy_to(lambda known: DiskCopy(file, known, clock, table="t"))
    async with running(table):
        for name, *rest in changes:
            await getattr(table, name)(*rest)
        return {key.id for key in table.live.ids()}


async def test_what_went_while_the_hub_was_off_does_not_come_back(file: StateFile):
    """The copy of a later run has none of it."""
    shared = MemoryTable(SystemClock())
    mine, other = MemoryStorage(shared, instance="h"), MemoryStorage(shared, instance="o")
    started = await ids_after(mine, file, ("put", "r1", ROUTE), ("put", "r2", ROUTE))
    assert started == {"upstream", "r1", "r2"}
    table = make_table(other, "o")
    async with running(table):
        await table.delete("r1")
    assert await ids_after(mine, file) == {"upstream", "r2"}
    assert await ids_after(Away(shared, instance="h"), file) == {"upstream", "r2"}


async def test_a_copy_that_could_not_be_written_is_made_whole_later(tmp_path: Path):
    """A full disk at the start: what went while the hub was off does not come back either."""

    class Full(StateFile):
        is_full = False

        async def run(self, job):
            if self.is_full:
                raise StateError("no space")
            return await super().run(job)

    shared = MemoryTable(SystemClock())
    mine, other = MemoryStorage(shared, instance="h"), MemoryStorage(shared, instance="o")
    file = await Full.open(tmp_path / "state.db", [SCRIPT])
    try:
        await ids_after(mine, file, ("put", "r1", ROUTE), ("put", "r2", ROUTE))
        table = make_table(other, "o")
        async with running(table):
            await table.delete("r1")
        table = make_table(mine, "h", manifest=DEFAULT_MANIFEST)
        copies = []

        def make(known):
            copies.append(DiskCopy(file, known, SystemClock(), table="t"))
            return copies[0]

        table.copy_to(make)
        async with running(table):
            file.is_full = True
            await copies[0].write()
            file.is_full = False
        assert await ids_after(Away(shared, instance="h"), file) == {"upstream", "r2"}
    finally:
        await file.close()


async def test_a_change_right_after_the_return_of_an_emptied_storage_costs_no_route(
    file: StateFile,
):
    """The hub knows the table by its copy: it puts that back before it writes into the new one."""

    class Late(MemoryStorage):
        is_away = True

        async def position(self):
            if self.is_away:
                raise StorageUnavailableError("it is away")
            return await super().position()

    before = MemoryTable(SystemClock())
    await ids_after(MemoryStorage(before, instance="h"), file, ("put", "r1", ROUTE))
    storage = Late(MemoryTable(SystemClock()), instance="h")
    table = make_table(storage, "h", manifest=DEFAULT_MANIFEST)
    table.copy_to(lambda known: DiskCopy(file, known, SystemClock(), table="t"))
    async with running(table):
        storage.is_away = False
        await table.put("r2", ROUTE)
        await until(lambda: table.ready[0] and not table.busy)
        assert {key.id for key in table.live.ids()} == {"upstream", "r1", "r2"}


async def test_a_table_that_was_never_read_leaves_no_copy(file: StateFile):
    """The second start without it has the manifest again, and what was copied before stays."""
    shared = MemoryTable(SystemClock())
    away = Away(shared, instance="h")
    for _ in range(2):
        assert await ids_after(away, file) == {"upstream"}
    await ids_after(MemoryStorage(shared, instance="h"), file, ("put", "r1", ROUTE))
    for _ in range(2):
        assert await ids_after(away, file) == {"upstream", "r1"}


@pytest.mark.parametrize("name", ["root", "epoch", "server", "revision"])
async def test_a_copy_that_lost_a_row_counts_as_none(file: StateFile, name: str):
    """As after damage of the file: the start goes on with the manifest."""
    shared = MemoryTable(SystemClock())
    await ids_after(MemoryStorage(shared, instance="h"), file, ("put", "r1", ROUTE))
    await file.run(lambda c: c.execute("DELETE FROM route_copy_of WHERE name = ?", (name,)).close())
    assert await ids_after(Away(shared, instance="h"), file) == {"upstream"}
