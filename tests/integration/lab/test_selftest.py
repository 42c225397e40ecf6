"""The self-test's parts on real files and a real hub process."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from typing import TYPE_CHECKING

import pytest
import uvloop

from edgehub.clock import SystemClock
from edgehub.lab.selftest.device import Device
from edgehub.lab.selftest.evidence import present
from edgehub.lab.selftest.hub_process import HubProcess
from edgehub.lab.selftest.judge import Judge
from edgehub.lab.selftest.latency import measure_disk
from edgehub.lab.selftest.ledger import Ledger
from edgehub.lab.selftest.scratch import SETTINGS, SelfTestError, scratch_folder
from edgehub.store import Store, StoreOptions
from tests.support.process_tree import processes_that_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from edgehub.lab.selftest.judge import Findings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

LIFE_S = 0.7


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> Iterator[Path]:
    """Return a prepared scratch folder."""
    with scratch_folder(tmp_path, free_bytes_min=0) as folder:
        yield folder


async def _one_kill(folder: Path, between: Callable[[], None]) -> tuple[Findings, tuple[str, ...]]:
    """Load, kill, do something to the files, start again, stop, judge."""
    clock = SystemClock()
    ledger = Ledger("device-1", "device-2")
    rng = random.Random(1)
    async with asyncio.TaskGroup() as group:
        hub = HubProcess(folder, group, clock)
        devices = [Device(name, hub, ledger, clock=clock, rng=rng) for name in ledger.devices]
        try:
            await hub.start()
            senders = [group.create_task(device.run()) for device in devices]
            await hub.outlives(LIFE_S)
            await hub.kill()
            await asyncio.to_thread(between)
            await hub.start()
            for device in devices:
                device.stop()
            await asyncio.wait(senders)
            await hub.stop()
        finally:
            await hub.close()
    judge = Judge(ledger)
    integrity = await present(folder, judge, clock)
    return judge.findings(), integrity


async def test_a_killed_hub_is_found_whole(folder: Path):
    """Nobody touched its files: everything acknowledged is there, in order."""
    found, integrity = await _one_kill(folder, lambda: None)
    assert found.faults() == []
    assert integrity == ()
    assert found.acknowledged > 50
    assert found.unacknowledged == 0
    assert found.delivered > 10
    assert found.waiting > 10


async def test_rows_that_vanish_between_two_starts_are_lost(folder: Path):
    """Three stored rows are deleted behind the hub's back: three losses, by name."""

    def delete_rows() -> None:
        connection = sqlite3.connect(folder / "hub" / "queue.db", isolation_level=None)
        try:
            sql = "SELECT number FROM queue WHERE endpoint_id LIKE 'modules/%'"
            (number,) = connection.execute(sql).fetchone()
            oldest = f"SELECT offset FROM q_{number} ORDER BY offset LIMIT 3"
            connection.execute(f"DELETE FROM q_{number} WHERE offset IN ({oldest})")
        finally:
            connection.close()

    found, _ = await _one_kill(folder, delete_rows)
    assert found.lost == 3
    assert len(found.lost_examples) == 3
    assert found.faults() == ["3 acknowledged messages are lost"]


async def test_a_hub_that_does_not_start_is_quoted(folder: Path):
    """The error holds the hub's own words."""
    (folder / SETTINGS).write_text("nonsense = 1\n", "utf-8")
    async with asyncio.TaskGroup() as group:
        hub = HubProcess(folder, group, SystemClock())
        with pytest.raises(SelfTestError, match=r"exit code 78\n.*nonsense"):
            await hub.start()


async def test_a_hub_that_ends_by_itself_ends_the_test(folder: Path):
    """It is not taken for one of the kills."""
    async with asyncio.TaskGroup() as group:
        hub = HubProcess(folder, group, SystemClock())
        try:
            await hub.start()
            await hub.stop()
            with pytest.raises(SelfTestError, match="ended by itself with exit code 0"):
                await hub.outlives(20)
        finally:
            await hub.close()


async def _start(folder: Path) -> None:
    async with asyncio.TaskGroup() as group:
        hub = HubProcess(folder, group, SystemClock())
        try:
            await hub.start()
        finally:
            await hub.close()


@pytest.mark.parametrize("turns", [(0, 1), (1, 1), (2, 1), (4, 2), (6, 3)], ids=str)
def test_an_impatient_operator_leaves_no_hub(folder: Path, turns: tuple[int, int]):
    """Ctrl-C, and again, while a hub is being started: it is gone before its folder is."""

    async def press() -> None:
        starting = asyncio.create_task(_start(folder))
        for turns_before in turns:
            for _ in range(turns_before + 1):
                await asyncio.sleep(0)
            starting.cancel()
        done, _ = await asyncio.wait({starting}, timeout=20)
        assert done
        assert processes_that_name(str(folder)) == []
        assert starting.cancelled()

    # The loop of the command itself, whose processes begin in other turns than asyncio's.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(press())


async def test_the_disk_is_measured(folder: Path):
    """Syncs and commits, each at least once, in a believable order."""
    probe = folder / "probe"
    probe.mkdir()
    latency = await measure_disk(probe, SystemClock())
    for each in (latency.fsync, latency.fdatasync, latency.commit, latency.group_commit):
        assert each.count >= 1
        assert 0 <= each.median_ms <= each.p99_ms <= each.max_ms
    assert latency.rate_group_per_s > latency.rate_single_per_s


async def test_a_database_that_contradicts_itself_is_reported(folder: Path):
    """What SQLite's integrity check says is handed on."""
    path = folder / "hub" / "queue.db"
    store = await Store.open(path, clock=SystemClock(), options=StoreOptions())
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE extra (positive CHECK (positive > 0))")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("INSERT INTO extra VALUES (-1)")
    connection.close()
    (complaint,) = await present(folder, Judge(Ledger()), SystemClock())
    assert "CHECK constraint failed in extra" in complaint


async def test_a_database_that_is_none_any_more_is_named(folder: Path):
    """The test ends with the reason."""
    (folder / "hub").mkdir()
    (folder / "hub" / "queue.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(SelfTestError, match=r"database cannot be read any more: .*queue\.db"):
        await present(folder, Judge(Ledger()), SystemClock())


async def test_a_delivered_file_that_holds_something_else_is_named(folder: Path):
    """With the line, not with a traceback."""
    (folder / "delivered.jsonl").write_text('{"id": "x"}\n', "utf-8")
    with pytest.raises(SelfTestError, match="line 1 of the delivered messages"):
        await present(folder, Judge(Ledger()), SystemClock())


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path):
    """How much there is, how much is wanted, what to do; nothing stays."""
    with (
        pytest.raises(SelfTestError, match=r"MiB free, the test wants \d+ MiB \(free some") as why,
        scratch_folder(tmp_path, free_bytes_min=2**62),
    ):
        pass
    assert str(tmp_path) in str(why.value)
    assert list(tmp_path.iterdir()) == []


def test_the_scratch_folder_is_removed_after_a_failure(tmp_path: Path):
    """Whatever was in it."""

    def interrupted() -> None:
        with scratch_folder(tmp_path, free_bytes_min=0) as folder:
            (folder / "hub").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
