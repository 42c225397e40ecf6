"""A table that takes long to be read: what is changed meanwhile, here and elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from edgehub.clock import SystemClock
from edgehub.sync.faults import StorageUnavailableError
from tests.support.memory_table import MemoryStorage, MemoryTable
from tests.support.route_tables import make_table, running, until

ROUTE = {"route": "FROM /messages/* INTO $upstream"}
OTHER = {"route": "FROM /messages/modules/* INTO $upstream"}


class SlowStorage(MemoryStorage):
    """A storage whose rows are handed over once `gate` is set, as they were before."""

    def __init__(self, table: MemoryTable, *, instance: str) -> None:
        super().__init__(table, instance=instance)
        self.gate = asyncio.Event()
        self.scanning = asyncio.Event()
        self.fails = False

    async def scan(self):
        """Take the rows now, return them later."""
        pages = [page async for page in super().scan()]
        self.scanning.set()
        await self.gate.wait()
        if self.fails:
            raise StorageUnavailableError("it went away")
        for page in pages:
            yield page


@pytest.fixture
def shared():
    """Return the table of two hubs."""
    return MemoryTable(SystemClock())


async def test_changes_are_applied_while_the_table_is_read(shared):
    """A hub that starts does not lose the notices of that time, and applies them at once."""
    storage = SlowStorage(shared, instance="i2")
    one, two = make_table(MemoryStorage(shared, instance="i1"), "i1"), make_table(storage, "i2")
    async with running(one), asyncio.TaskGroup() as group:
        await one.put("r1", ROUTE)
        opening = group.create_task(two.open())
        await storage.scanning.wait()
        await one.put("r2", OTHER)
        await until(lambda: {key.id for key in two.live.ids()} == {"r2"})
        assert two.ready == (False, "table stale: it has not been read yet")
        await one.delete("r1")
        storage.gate.set()
        await opening
        assert ({key.id for key in two.live.ids()}, two.ready[0]) == ({"r2"}, True)
        assert two.statistics().applied_revision == shared.revision
        await two.close()


async def test_a_reading_that_fails_leaves_the_table_unread(shared):
    """Whatever was applied while it lasted: the hub is not ready, and reads the table again."""
    storage = SlowStorage(shared, instance="i2")
    one, two = make_table(MemoryStorage(shared, instance="i1"), "i1"), make_table(storage, "i2")
    async with running(one), asyncio.TaskGroup() as group:
        await one.put("r1", ROUTE)
        opening = group.create_task(two.open())
        await storage.scanning.wait()
        await one.put("r2", OTHER)
        await until(lambda: two.live.live_count == 1)
        storage.fails = True
        storage.gate.set()
        await opening
        assert not two.ready[0]
        storage.fails = False
        following = group.create_task(two.run())
        await until(lambda: two.ready[0] and not two.busy)
        assert {key.id for key in two.live.ids()} == {"r1", "r2"}
        following.cancel()


async def test_a_write_during_a_look_at_the_position_reads_no_table(shared):
    """The answer is older than the write of this hub, not the table of an earlier time."""

    class Late(MemoryStorage):
        write_now = None

        async def position(self):
            position = await super().position()
            if self.write_now is not None:
                write, self.write_now = self.write_now, None
                await write()
            return position

    storage = Late(shared, instance="i1")
    table = make_table(storage, "i1", check_s=0.01)
    async with running(table):
        await table.put("r1", ROUTE)
        before = table.statistics().reloads_total
        written = asyncio.Event()

        async def write() -> None:
            await table.put("r2", OTHER)
            written.set()

        storage.write_now = write
        await written.wait()
        looks = table._follower.notices_total  # noqa: SLF001 - the harness
        await table.put("r3", ROUTE)
        await until(lambda: table._follower.notices_total > looks)  # noqa: SLF001 - the harness
        assert table.statistics().reloads_total == before
