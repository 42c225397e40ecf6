"""The warning before the oldest row of a queue expires: once per episode, bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from edgehub.clock import ManualClock
from edgehub.errors import StoreError
from edgehub.message import NEVER_MS, QueueId
from edgehub.operations.forecast.expiry import WARNINGS_PER_LOOK, ExpiryWatch, OldestRow

if TYPE_CHECKING:
    from collections.abc import Mapping

BULK = QueueId("upstream_Pri7")


class Bench:
    """A watch on heads that the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.now_ms = 0
        self.heads: Mapping[QueueId, OldestRow] = {}
        self.fails = False
        self.watch = ExpiryWatch(
            self.clock,
            now_ms=lambda: self.now_ms,
            heads=self._heads,
            describe=lambda _queue: {"waiting": 5},
        )

    async def look(self, now_s: float) -> list[str]:
        """Look at a time; gives the queues that a warning was about."""
        self.now_ms = round(now_s * 1000)
        with capture_logs() as lines:
            await self.watch.look()
        return [line["queue_id"] for line in lines if line["log_level"] == "warning"]

    async def _heads(self) -> Mapping[QueueId, OldestRow]:
        if self.fails:
            msg = "busy"
            raise StoreError(msg)
        return self.heads


@pytest.fixture
def bench() -> Bench:
    """Return a watch."""
    return Bench()


async def test_a_warning_comes_once_while_the_oldest_row_nears_its_end(bench: Bench) -> None:
    """At a fifth of the time to live left, not before and not again; an episode ends at half."""
    bench.heads = {BULK: OldestRow(enqueued_ms=0, expires_ms=100_000)}
    assert await bench.look(79) == []
    assert await bench.look(80) == [BULK]
    assert list(bench.watch.near()) == [BULK]
    assert await bench.look(95) == []
    bench.heads = {BULK: OldestRow(enqueued_ms=30_000, expires_ms=130_000)}
    assert await bench.look(100) == []
    bench.heads = {BULK: OldestRow(enqueued_ms=60_000, expires_ms=160_000)}
    assert await bench.look(110) == []
    assert list(bench.watch.near()) == []
    assert await bench.look(141) == [BULK]


async def test_an_empty_queue_ends_the_episode(bench: Bench) -> None:
    """What comes later is warned of anew; rows that never expire are not warned of."""
    bench.heads = {BULK: OldestRow(enqueued_ms=0, expires_ms=10_000)}
    assert await bench.look(9) == [BULK]
    bench.heads = {}
    assert await bench.look(10) == []
    assert list(bench.watch.near()) == []
    bench.heads = {BULK: OldestRow(enqueued_ms=0, expires_ms=NEVER_MS)}
    assert await bench.look(10**9) == []
    assert bench.watch.head(BULK) is not None
    bench.heads = {BULK: OldestRow(enqueued_ms=0, expires_ms=10_000)}
    assert await bench.look(9) == [BULK]


async def test_many_queues_are_reported_a_few_at_a_time(bench: Bench) -> None:
    """No look logs more than the bound, and none is forgotten."""
    queues = [QueueId(f"modules/m{n}/inputs/x") for n in range(WARNINGS_PER_LOOK + 3)]
    bench.heads = {queue: OldestRow(enqueued_ms=0, expires_ms=1000) for queue in queues}
    first = await bench.look(0.9)
    assert len(first) == WARNINGS_PER_LOOK
    assert sorted(first + await bench.look(0.95)) == sorted(queues)


async def test_a_disk_that_does_not_answer_is_borne(bench: Bench) -> None:
    """What was seen last stays; the next look tries again."""
    bench.heads = {BULK: OldestRow(enqueued_ms=0, expires_ms=10_000)}
    await bench.look(1)
    bench.fails = True
    assert await bench.look(9) == []
    bench.fails = False
    assert await bench.look(9) == [BULK]
