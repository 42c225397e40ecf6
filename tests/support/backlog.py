"""Long backlogs, made through the store itself: as many rows as a test asks for, up to millions."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from edgehub.clock import ManualClock
from edgehub.message import DEFAULT_PRIORITY, Recency
from edgehub.store import Store, StoreOptions
from tests.support.stores import P2, P7, a_message, a_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgehub.message import RouteResult

BODY = b"|".ljust(200, b"x")
WEEK_S = 7 * 86_400
AGE_S = 3600
"""So long ago, by the wall clock, the rows were stored."""
PIECE_ROWS = 20_000
"""Handed in before their commits are waited for: some 6 MB."""

PLAIN = a_result(DEFAULT_PRIORITY, ttl_s=WEEK_S)
"""What waits longest, for want of a priority."""
STALE = a_result(P2, ttl_s=WEEK_S, recency=Recency(seconds=600, fallback_priority=P7))
"""Fresh when it is stored, and stale by the time at which it is looked at."""


def hour_old_clock() -> ManualClock:
    """Return the clock of a machine that went off an hour ago."""
    return ManualClock(wall_ms=round(time.time() * 1000) - AGE_S * 1000)


async def fill(store: Store, rows: int, *results: RouteResult, body: bytes = BODY) -> None:
    """Hand in rows for each of the results in turn and wait until all are on disk."""
    choices: Sequence[list[RouteResult]] = [[result] for result in results]
    number = 0
    for start in range(0, rows, PIECE_ROWS):
        for number in range(start, min(start + PIECE_ROWS, rows)):
            message = a_message(f"dev-{number % 100}", body, properties={"kind": "bulk"})
            store.appender.append(message, choices[number % len(choices)], _settled, number)
            if number % 1024 == 0:
                await asyncio.sleep(0)
        await store.writer.flush()


async def make_backlog(path: Path, rows: int, *results: RouteResult) -> None:
    """Make a file whose rows were stored an hour ago, by a hub that then stopped in order."""
    store = await Store.open(path, clock=hour_old_clock(), options=StoreOptions())
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(store.run())
        await fill(store, rows, *results)
        task.cancel()
    await store.close()


def _settled(token: int, refusal: object) -> None:
    assert refusal is None, (token, refusal)
