"""Flags, reading position and ledger of devices, in the store's own commits."""

from __future__ import annotations

import asyncio
import gc

import pytest
from structlog.testing import capture_logs

from edgehub.devices.affinity.flags import (
    Cause,
    Flag,
    Ownership,
    OwnershipChange,
    StoredAffinity,
)
from edgehub.devices.affinity.table import LEDGER_ROWS_MAX, AffinityTable
from tests.support.stores import a_message, a_result, running

pytestmark = pytest.mark.integration


def owned(epoch: int) -> Flag:
    """Return the flag of a device that this hub owns."""
    return Flag(ownership=Ownership.OWNER, epoch=epoch)


def lost(epoch: int) -> Flag:
    """Return the flag of a device that another hub owns."""
    return Flag(ownership=Ownership.LOSER, epoch=epoch)


def regained(device_id: str, epoch: int) -> OwnershipChange:
    """Return a change of ownership."""
    return OwnershipChange(
        device_id=device_id,
        former=Ownership.LOSER,
        flag=owned(epoch),
        cause=Cause.OWNER_SILENT,
        other="h2",
    )


async def test_flags_and_position_are_there_after_a_restart(tmp_path):
    """The last one of each device; nothing had to be waited for."""
    async with running(tmp_path / "queue.db") as bench:
        table = AffinityTable(bench.store)
        assert await table.load() == StoredAffinity()
        table.save_flag("d", owned(3))
        table.save_flag("d", lost(4))
        table.save_flag("e", owned(5))
        table.save_flag("f", owned(6))
        table.forget_flag("f")
        table.save_position("one-7")
    async with running(tmp_path / "queue.db") as bench:
        stored = await AffinityTable(bench.store).load()
        assert stored.flags == {"d": lost(4), "e": owned(5)}
        assert stored.position == "one-7"


async def test_a_flag_joins_the_commit_of_its_message(tmp_path):
    """It costs none of its own."""
    async with running(tmp_path / "queue.db") as bench:
        table = AffinityTable(bench.store)
        await bench.store.writer.flush()
        before = bench.store.statistics().commits_total
        table.save_flag("d", owned(1))
        bench.store.appender.append(a_message(), [a_result()], lambda _token, _refusal: None, 0)
        await bench.store.writer.flush()
        assert bench.store.statistics().commits_total - before <= 2
        assert (await table.load()).flags == {"d": owned(1)}


async def test_what_changes_while_a_commit_runs_is_in_the_next(tmp_path):
    """Nothing else has to change for it."""
    async with running(tmp_path / "queue.db") as bench:
        table = AffinityTable(bench.store)
        table.save_flag("d", owned(1))
        await asyncio.sleep(0)  # its commit begins
        table.save_flag("e", owned(1))
        for _ in range(2):
            await bench.store.writer.flush()
        assert (await table.load()).flags.keys() == {"d", "e"}


async def test_the_ledger_is_bounded_and_read_by_device(tmp_path):
    """The oldest entries leave; the newest come last."""
    async with running(tmp_path / "queue.db") as bench:
        table = AffinityTable(bench.store)
        for number in range(LEDGER_ROWS_MAX + 50):
            table.record(regained("d" if number % 1000 == 0 else "e", number))
        await bench.store.writer.flush()
        rows = await table.ledger(None)
        assert len(rows) == LEDGER_ROWS_MAX
        assert rows[-1].epoch == LEDGER_ROWS_MAX + 49
        assert rows[0].epoch == 50
        own = await table.ledger("d", limit=3)
        assert [row.epoch for row in own] == [8000, 9000, 10_000]
        assert await table.ledger(None, since_ms=rows[-1].at_ms + 1) == []


async def test_changes_after_the_end_disturb_nothing(tmp_path):
    """The store is closed: no error, no log line, nothing in the file."""
    async with running(tmp_path / "queue.db") as bench:
        table = AffinityTable(bench.store)
        table.save_flag("d", lost(1))
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    with capture_logs() as lines:
        for epoch in (2, 3):
            # The second one finds the commit of the first under way, or ended.
            table.save_flag("d", owned(epoch))
            table.forget_flag("e")
            table.save_position("x-1")
            table.record(regained("d", epoch))
            for _ in range(5):
                await asyncio.sleep(0)
        gc.collect()  # a future whose error nobody took complains then
        await asyncio.sleep(0)
    assert (errors, lines) == ([], [])
    async with running(tmp_path / "queue.db") as bench:
        table = AffinityTable(bench.store)
        assert await table.load() == StoredAffinity(flags={"d": lost(1)})
        assert await table.ledger(None) == []
