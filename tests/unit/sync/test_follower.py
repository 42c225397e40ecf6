"""How long a hub waits before it asks a storage again that was away."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from edgehub.clock import ManualClock
from edgehub.sync.faults import StorageUnavailableError
from edgehub.sync.follower import RETRY_S
from edgehub.sync.storage import Stored, WriteResult
from tests.support.memory_table import MemoryStorage, MemoryTable
from tests.support.route_tables import make_table, until

HEARD_S = 0.3


class Waits(ManualClock):
    """A clock on which waits are over at once, and written down."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        self.waits.append(seconds)
        self._elapsed_s += seconds
        await asyncio.sleep(0)


class Cut(MemoryStorage):
    """A storage whose log breaks off, after some time or at once."""

    def __init__(self, table: MemoryTable, clock: Waits, heard_s: float) -> None:
        super().__init__(table, instance="i1")
        self.clock = clock
        self.heard_s = heard_s

    async def follow(self, after, wait_s):
        """See `TableStorage`."""
        del after, wait_s
        self.clock._elapsed_s += self.heard_s  # noqa: SLF001 - time goes by
        await asyncio.sleep(0)
        raise StorageUnavailableError("it broke off")


async def waits(heard_s: float) -> list[float]:
    """Return the waits between attempts."""
    clock = Waits()
    table = make_table(Cut(MemoryTable(clock), clock, heard_s), "i1", clock=clock)
    await table.open()
    clock.waits.clear()
    task = asyncio.create_task(table._follower.run())  # noqa: SLF001 - the harness
    await until(lambda: len(clock.waits) >= 20)
    task.cancel()
    await asyncio.wait([task])
    return clock.waits


async def test_a_storage_that_is_away_is_asked_ever_less() -> None:
    """The waits double up to the longest."""
    found = await waits(0.0)
    assert found[0] <= RETRY_S[0]
    assert max(found[10:]) > RETRY_S[1] / 2


async def test_a_connection_that_is_cut_often_is_made_again_at_once() -> None:
    """As long as the storage was there in between."""
    assert max(await waits(HEARD_S)) <= RETRY_S[0]


async def test_a_write_into_another_table_does_not_move_the_position() -> None:
    """Its revision may follow on by chance; the other table has to be read whole."""
    clock = Waits()
    table = make_table(MemoryStorage(MemoryTable(clock), instance="i1"), "i1", clock=clock)
    await table.open()
    follower = table._follower  # noqa: SLF001 - the harness
    before = follower.position
    stored = (Stored(row=None, created=False, changed=True),)
    other = WriteResult(epoch=before.epoch + 1, revision=before.revision + 1, stored=stored)
    follower.wrote("s1", other)
    assert follower.position == before
    follower.wrote("s2", replace(other, epoch=before.epoch))
    assert follower.position.revision == before.revision + 1
