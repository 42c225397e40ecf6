"""A message costs the same however many rows wait: to store, to read, to delete, to expire."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest

from edgehub.message import DEFAULT_PRIORITY
from edgehub.store import StoreOptions
from tests.support.backlog import PLAIN, STALE, fill, hour_old_clock, make_backlog
from tests.support.stores import a_message, a_result, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgehub.message import Row
    from tests.support.stores import Harness

pytestmark = [pytest.mark.integration, pytest.mark.scaled]

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
ROWS = 10_000_000 if SOAK else 60_000
FEW_ROWS = 1000
PIECE_ROWS = 1000
BRIEF_ROWS = 4000
"""Rows that expire in one round of clean-up, which itself costs half a millisecond with 10 million
rows: what 800 messages a second leave in 5 s."""
ROUNDS = 24 if SOAK else 10
RATIO_MAX = 1.3 if SOAK else 1.6
"""A short measurement beside other tests sees what grows with the backlog, but no tenths."""
BRIEF = a_result(DEFAULT_PRIORITY, ttl_s=5, routes=("brief",))
ALONE_MAX = 1.5 if SOAK else RATIO_MAX
"""For one operation by itself: a deletion takes 1.6 µs, a sixth of what a message costs."""
OPERATIONS = ("enqueue", "fetch", "delete", "expire")
LIVES = {"delivered": ("enqueue", "fetch", "delete"), "expired": ("enqueue", "expire")}


class Meter:
    """Processor time of both threads by operation, the least of all rounds."""

    def __init__(self) -> None:
        self.least = dict.fromkeys(OPERATIONS, 1e9)

    @contextlib.contextmanager
    def measure(self, operation: str, rows: int = PIECE_ROWS) -> Iterator[None]:
        """Take the time of one piece."""
        before = time.process_time()
        yield
        spent = (time.process_time() - before) / rows
        self.least[operation] = min(self.least[operation], spent)


async def one_round(hub: Harness, meter: Meter) -> None:
    """Let some rows join at the end and leave from the head, and others expire."""
    queue = hub.queue(DEFAULT_PRIORITY)
    depth = queue.statistics().depth
    with meter.measure("enqueue"):
        await fill(hub.store, PIECE_ROWS, PLAIN)
    rows: list[Row] = []
    with meter.measure("fetch"):
        while len(rows) < PIECE_ROWS:
            rows += await queue.read_batch(PIECE_ROWS - len(rows), 1 << 20)
    with meter.measure("delete"):
        queue.confirm(rows)
        await hub.store.writer.flush()
    for number in range(BRIEF_ROWS):
        hub.send(a_message(f"dev-{number}", b"brief"), BRIEF)
    await hub.store.writer.flush()
    with meter.measure("expire", BRIEF_ROWS):
        await hub.clock.advance(11)  # a round of clean-up comes between 5 and 10
        await hub.until(lambda: queue.statistics().depth == depth)
    hub.sent.clear()


@pytest.mark.timeout(3600 if SOAK else 60)
async def test_costs_do_not_grow_with_the_backlog(tmp_path: Path) -> None:
    """R-06, T-06: with all these rows waiting each operation costs at most 1.3 times as much."""
    options = StoreOptions(cache_bytes_max=1)  # each row is read from the file
    for name, rows in (("few", FEW_ROWS), ("many", ROWS)):
        await make_backlog(tmp_path / name / "q.db", rows, PLAIN, STALE)
    few, many = Meter(), Meter()
    async with (
        running(tmp_path / "few" / "q.db", clock=hour_old_clock(), options=options) as little,
        running(tmp_path / "many" / "q.db", clock=hour_old_clock(), options=options) as much,
    ):
        for _ in range(ROUNDS):
            await one_round(little, few)
            await one_round(much, many)
        assert sum(queue.zones.depth for queue in much.store.queues.all()) == ROWS
    ratios = {name: round(many.least[name] / few.least[name], 2) for name in OPERATIONS}
    print(ROWS, ratios, {name: round(many.least[name] * 1e6, 2) for name in OPERATIONS})
    lives = {
        name: round(
            sum(many.least[each] for each in parts) / sum(few.least[each] for each in parts), 2
        )
        for name, parts in LIVES.items()
    }
    print(lives)
    assert max(lives.values()) <= RATIO_MAX, lives
    assert max(ratios.values()) <= ALONE_MAX, ratios
