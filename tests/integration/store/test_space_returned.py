"""Space that goes back to the disk once a backlog is gone, whichever way it has gone."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.hub.status import store_warnings
from edgehub.store import Caps, StoreOptions
from edgehub.store.wal import BYTES_MIN
from tests.support.stores import P0, P2, a_message, a_result, read_all, running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.stores import Harness

pytestmark = [pytest.mark.integration, pytest.mark.scaled]

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
ROWS = 60_000 if SOAK else 6000
TTL_S = 300
TICK_S = 0.1 if SOAK else 1.0
"""Hub time that passes while the store's thread does one thing: it has much to do here."""


async def drained(hub: Harness) -> None:
    """Deliver all."""
    queue = hub.queue()
    while rows := await queue.read_batch(1000, 1 << 30):
        queue.confirm(rows)
    await hub.store.writer.flush()


async def expired(hub: Harness) -> None:
    """Let the time to live end; clean-up follows."""
    await hub.clock.advance(TTL_S)
    await hub.until(lambda: not hub.store.statistics().rows, tick_s=TICK_S, within_s=60)


async def purged(hub: Harness) -> None:
    """Have a person remove all."""
    at: int | None = 0
    while at is not None:
        done = await hub.store.purger.take_out(
            hub.queue(), None, from_offset=at, through=hub.store.last_offset
        )
        at = done.next_offset


async def evicted(hub: Harness) -> None:
    """Let a lower limit be set, and something better come in."""
    hub.store.adjust(check_entire_queue_on_cleanup=True, cache_bytes_max=0, caps=Caps(rows=10))
    await hub.stored(1, a_result(P0))
    await hub.until(lambda: hub.store.statistics().rows <= 10, tick_s=1, within_s=60)


@pytest.mark.timeout(600 if SOAK else 60)
@pytest.mark.parametrize("empty", [drained, expired, purged, evicted])
async def test_free_pages_go_back_to_the_disk(
    tmp_path: Path, empty: Callable[[Harness], Awaitable[None]]
) -> None:
    """S-02: within 15 minutes the file is less than a tenth of its peak, and the log is cut."""
    path = tmp_path / "q.db"
    log = tmp_path / "q.db-wal"
    async with running(path, options=StoreOptions(journal=True)) as hub:
        for number in range(ROWS):
            hub.send(a_message(body=bytes(2000)), a_result(P2, ttl_s=TTL_S))
            if number % 1000 == 0:
                await hub.store.writer.flush()
        await hub.store.writer.flush()
        peak = await hub.scalar("PRAGMA page_count") * 4096
        assert peak > ROWS * 2000
        assert log.stat().st_size > 2**20
        await empty(hub)
        # A look every 5 s, half a minute of rest, then 64 MiB with every look.
        await hub.until(
            lambda: path.stat().st_size < peak / 10 and log.stat().st_size <= 2**19,
            tick_s=TICK_S,
            within_s=900,
        )
        assert hub.store.statistics().rows <= 10
        hub.queue().confirm(await read_all(hub.queue()))
        await hub.stored(5)
        assert len(await read_all(hub.queue())) == 5
        assert await hub.scalar("PRAGMA integrity_check") == "ok"


async def test_pages_that_were_free_for_a_moment_alone_stay_in_the_file(tmp_path: Path) -> None:
    """Also a moment after others have gone: a queue that breathes does not move the file's end."""
    path = tmp_path / "q.db"
    async with running(path) as hub:

        async def breathe() -> int:
            hub.send(a_message(body=bytes(4_000_000)))
            await hub.store.writer.flush()
            size = path.stat().st_size + (tmp_path / "q.db-wal").stat().st_size
            await drained(hub)
            return size

        full = await breathe()
        with capture_logs() as logs:
            await hub.until(
                lambda: "store.space_given_back" in [line["event"] for line in logs], tick_s=1
            )
            await breathe()
            pages = await hub.scalar("PRAGMA page_count")
            for _ in range(4):
                await hub.clock.advance(5)
                await hub.store.writer.flush()
            assert await hub.scalar("PRAGMA page_count") == pages
        assert pages * 4096 < full


READER = """import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM boot").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


async def test_a_log_that_another_process_keeps_long_is_reported_and_emptied(
    tmp_path: Path,
) -> None:
    """While that process reads, the status says why the log grows; then it is short in a minute."""
    path = tmp_path / "q.db"
    log = tmp_path / "q.db-wal"
    async with running(path, options=StoreOptions(wal_bytes_max=BYTES_MIN)) as hub:
        await hub.stored(1)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", READER, path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"reading\n"
        with capture_logs() as logs:
            for _ in range(40):
                hub.send(a_message(body=bytes(100_000)))
                await hub.store.writer.flush()
            assert log.stat().st_size > 3_000_000
            (warning,) = store_warnings(hub.store.statistics())
            assert "another process reads queue.db" in warning
            written = hub.store.statistics().wal_bytes_total
            assert written < log.stat().st_size * 1.1
            for _ in range(20):
                await hub.clock.advance(5)
                await hub.store.writer.flush()
            assert [line["event"] for line in logs if "log" in line["event"]] == ["store.log_held"]
            assert hub.store.statistics().wal_held_for_s is not None
            process.stdin.close()
            assert await process.wait() == 0
            await hub.until(
                lambda: not store_warnings(hub.store.statistics()), tick_s=5, within_s=60
            )
            assert log.stat().st_size == 0
        assert "store.log_emptied" in [line["event"] for line in logs]
        await hub.stored(1)
