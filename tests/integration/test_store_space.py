"""The store on a disk of a few megabytes: a real file system that really becomes full."""

from __future__ import annotations

import os
import subprocess
from shutil import disk_usage
from typing import TYPE_CHECKING

import pytest

from tests.support.stores import P2, a_message, a_result, bodies, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]

BODY_BYTES = 2000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount an empty disk of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


async def test_the_log_alone_never_fills_a_small_disk(disk: Path) -> None:
    """Twice the disk's size passes through, nothing waits, and no commit ever fails."""
    async with running(disk / "q.db") as hub:
        for number in range(80):
            for _ in range(100):
                hub.send(a_message(body=bytes(BODY_BYTES)), a_result(P2))
            await hub.store.flush()
            queue = hub.queue()
            while rows := await queue.read_batch(100, 1 << 20):
                queue.confirm(rows)
            await hub.store.flush()
            statistics = hub.store.statistics()
            assert statistics.commit_failures_total == 0, number
        assert len(hub.accepted) == 8000


async def test_a_full_disk_is_left_by_itself_once_there_is_space(disk: Path) -> None:
    """S-11: a foreign file takes all space; nobody is told a lie, and the hub goes on after it."""
    async with running(disk / "q.db") as hub:
        await hub.stored(50, a_result(P2))
        foreign = disk / "foreign"
        foreign.write_bytes(bytes(disk_usage(disk).free // 4096 * 4096))
        for number in range(2000):
            hub.send(a_message(body=b"%d" % number + bytes(BODY_BYTES)), a_result(P2))
        await hub.until(lambda: hub.store.statistics().failing is not None, tick_s=0.1)
        acknowledged = len(hub.accepted)
        assert acknowledged < 2050
        foreign.unlink()
        await hub.until(lambda: len(hub.accepted) == 2050, tick_s=0.5)
        assert hub.store.statistics().failing is None
        queue = hub.queue()
        assert await hub.count(queue) == (2050, queue.statistics().bytes)
        rows = await queue.read_batch(3000, 1 << 30)
        numbers = [int(body.split(b"\0")[0]) for body in bodies(rows)[50:]]
        assert numbers == list(range(2000))
