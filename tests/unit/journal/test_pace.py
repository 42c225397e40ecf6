"""The journal leaves time to messages, but for the one who waits for all lines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgehub.clock import ManualClock
from edgehub.journal.pace import BYTES_ENOUGH, MANY_BYTES, PAUSE_LONG, PAUSE_SHORT, Pace


class _Source:
    """Where events wait: figures alone."""

    def __init__(self) -> None:
        self.bytes_waiting = 0
        self.waiting_ms = 0
        self.recorded_total = 0


def a_pace() -> tuple[Pace, Any, ManualClock]:
    """Return a pace, its source and its clock."""
    source: Any = _Source()
    clock = ManualClock()
    return Pace(source, clock), source, clock


@pytest.mark.parametrize(
    ("waiting", "share"),
    [(0, PAUSE_LONG), (BYTES_ENOUGH, PAUSE_LONG), (MANY_BYTES, PAUSE_SHORT)],
)
async def test_a_pause_is_a_multiple_of_the_time_that_was_spent(waiting: int, share: float) -> None:
    """Many blobs make the multiple smaller."""
    pace, source, clock = a_pace()
    source.bytes_waiting = waiting
    pause = asyncio.create_task(pace.pause(0.1, paced=True))
    await clock.advance(0.1 * share - 0.01)
    assert not pause.done()
    await clock.advance(0.02)
    assert pause.done()


async def test_no_pause_is_made_while_all_lines_are_waited_for() -> None:
    """The last write before a stop, and an export, are not slowed down."""
    pace, source, clock = a_pace()
    source.bytes_waiting = BYTES_ENOUGH
    with pace.without_pauses():
        pause = asyncio.create_task(pace.pause(10.0, paced=True))
        await clock.advance(0)
        assert pause.done()
    slow = asyncio.create_task(pace.pause(10.0, paced=True))
    await clock.advance(1)
    assert not slow.done()
    slow.cancel()


async def test_a_pause_under_way_ends_when_all_lines_are_waited_for() -> None:
    """Its step holds the turn that the last write waits for."""
    pace, _, clock = a_pace()
    pause = asyncio.create_task(pace.pause(10.0, paced=True))
    await clock.advance(1)
    assert not pause.done()
    with pace.without_pauses():
        await clock.advance(0)
        assert pause.done()
