"""The copy of a shared table on the disk: what a start without the storage makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgehub.clock import SystemClock
from edgehub.routes.manifest import DEFAULT_MANIFEST
from edgehub.storage.state_file import StateFile
from edgehub.sync.disk_copy import DiskCopy
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.memory import MemoryStorage, MemoryTable
from edgehub.sync.sqlite import SCRIPT
from tests.support.route_tables import make_table, running

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
    """Give the hub's state file."""
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
