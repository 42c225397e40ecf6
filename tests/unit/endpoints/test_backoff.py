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


@pytest.mark.parametrize(
    ("action", "patient", "waits_s"),
    [
        ("none", False, 40.0),
        ("end", False, 0.0),
        ("cut", False, 3.0),
        ("end", True, 0.0),
        ("cut", True, 40.0),
        ("forget", False, 40.0),
    ],
)
async def test_a_hint_during_a_try_holds_for_the_next_wait_only(
    action: str, patient: bool, waits_s: float
) -> None:
    """Asked 2 s before the wait: at once, or 5 s after the word; a person's wait is not cut."""
    clock = ManualClock()
    retry = RetryWait(clock)
    if action != "none":
        retry.cut(5)
    if action in {"end", "forget"}:
        retry.end()
    if action == "forget":
        retry.forget()
    await clock.advance(2)
    for expected_s in (waits_s, 40.0):
        started = clock.monotonic()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(retry.wait(40, patient=patient))
            while not task.done():
                await clock.advance(0.5 if expected_s else 0)
        assert clock.monotonic() - started == pytest.approx(expected_s)


async def test_a_patient_wait_is_ended_but_not_cut() -> None:
    """New rows do not hurry a wait for a person; a reload does."""
    clock = ManualClock()
    retry = RetryWait(clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(retry.wait(40, patient=True))
        await clock.advance(1)
        retry.cut(1)
        await clock.advance(10)
        assert not task.done()
        retry.end()
