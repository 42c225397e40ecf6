"""Back-off on a manual clock."""

from __future__ import annotations

import asyncio
import random

import pytest

from edgehub.clock import ManualClock
from edgehub.endpoints.backoff import MAX_S, Backoff, RetryWait, delay_s


def test_waits_double_to_the_maximum() -> None:
    """1, 2, 4, ... seconds with jitter, never above a minute, however often."""
    backoff = Backoff(random.Random(1))
    waits = [backoff.next_s() for _ in range(100)]
    for wait_s, expected in zip(waits, [1, 2, 4, 8, 16, 32], strict=False):
        assert wait_s == pytest.approx(expected, rel=0.21)
    assert max(waits) <= MAX_S
    assert min(waits[6:]) > 0.8 * MAX_S


def test_success_starts_again() -> None:
    """After a reset the first wait is about a second."""
    backoff = Backoff(random.Random(1))
    for _ in range(10):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() < 1.3


def test_jitter_spreads_hubs() -> None:
    """Two hubs that failed together do not come back together."""
    assert delay_s(6, random.Random(1)) != delay_s(6, random.Random(2))


@pytest.mark.parametrize(
    ("action", "ends_after"), [("none", 40.0), ("cut", 15.0), ("cut_late", 40.0), ("end", 10.0)]
)
async def test_a_wait_can_be_cut_but_not_lengthened(action: str, ends_after: float) -> None:
    """At 10 s of a wait of 40 s: cut to 5 s more, cut to 50 s more (nothing), or ended."""
    clock = ManualClock()
    retry = RetryWait(clock)
    started = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(retry.wait(40))
        await clock.advance(10)
        clock.step_wall(-7_200_000)
        match action:
            case "cut":
                retry.cut(5)
            case "cut_late":
                retry.cut(50)
            case "end":
                retry.end()
        while not task.done():
            await clock.advance(0.5 if action != "end" else 0)
    assert clock.monotonic() - started == pytest.approx(ends_after)


async def test_cutting_without_a_wait_changes_nothing() -> None:
    """A hint that comes too early is not remembered."""
    clock = ManualClock()
    retry = RetryWait(clock)
    retry.cut(1)
    retry.end()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(retry.wait(10))
        await clock.advance(9)
        assert not task.done()
        await clock.advance(1)
        assert task.done()
