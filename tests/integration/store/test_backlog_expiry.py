"""A long backlog whose time is up: it goes in time, and nobody who hands a message in waits."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from edgehub.clock import ManualClock
from edgehub.store import StoreOptions
from edgehub.store.caps import Caps
from tests.support.backlog import fill
from tests.support.stores import P0, P7, a_result, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.scaled]

SOAK = bool(os.environ.get("EDGEHUB_SOAK"))
ROWS = 2_000_000 if SOAK else 60_000
TTL_S = 60
P99_S = 0.05 if SOAK else 0.25
"""Beside other tests a single fsync may take as long as a whole step."""


class ElapsingClock(ManualClock):
    """Timers wait for the test; between them real time passes, as for the length of a step."""

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        super().__init__()
        self._began_s = time.perf_counter()

    def monotonic(self) -> float:
        """See `Clock`."""
        return super().monotonic() + time.perf_counter() - self._began_s


@pytest.mark.alone
@pytest.mark.timeout(900 if SOAK else 60)
async def test_a_sweep_ends_in_time_and_blocks_nothing(tmp_path: Path) -> None:
    """T-06: gone within 120 s of its deadline; meanwhile 99 of 100 messages are durable soon."""
    options = StoreOptions(caps=Caps(bytes=4 << 30))
    waits: list[float] = []
    lags: list[float] = []
    async with running(tmp_path / "q.db", clock=ElapsingClock(), options=options) as hub:
        await fill(hub.store, ROWS, a_result(P7, ttl_s=TTL_S))
        queue = hub.queue(P7)
        began = time.perf_counter()
        await hub.clock.advance(TTL_S + 6)
        while queue.statistics().depth:
            lags.append(hub.store.statistics().expiry_lag_seconds)
            handed_in = time.perf_counter()
            hub.send(None, a_result(P0))
            await hub.until_settled(len(hub.sent))
            waits.append(time.perf_counter() - handed_in)
        took_s = time.perf_counter() - began
        await hub.clock.advance(12)
        await hub.store.writer.flush()
        assert queue.statistics().expired_total == ROWS
        assert await hub.count(queue) == (0, 0)
        assert hub.store.statistics().expiry_lag_seconds == 0
    p99_s = sorted(waits)[len(waits) * 99 // 100]
    print(f"{ROWS} rows in {took_s:.1f} s, {len(waits)} enqueued, p99 {p99_s * 1e3:.1f} ms")
    assert took_s <= 120
    # Ingest has a turn after each step, of 5 000 rows at most.
    assert len(waits) >= ROWS // 10_000
    assert p99_s <= P99_S
    assert min(lags) >= 6
