"""The pacer: bytes leave in order, at the rate, after the delay."""

from __future__ import annotations

import pytest

from edgehub.clock import ManualClock
from edgehub.lab.demo.thin_link import CREDIT_S, Pacer


def a_pacer(clock: ManualClock, *, delay_s: float = 0.0) -> Pacer:
    """Build a pacer of 1 000 bytes a second."""
    return Pacer(rate_bit_s=8_000, delay_s=delay_s, clock=clock)


async def test_a_chunk_takes_its_size_over_the_rate():
    """500 bytes at 1 000 bytes a second arrive after half a second, not before."""
    clock = ManualClock()
    arrived: list[str] = []
    a_pacer(clock).put(500, lambda: arrived.append("a"))
    await clock.advance(0.49)
    assert arrived == []
    await clock.advance(0.02)
    assert arrived == ["a"]


async def test_chunks_leave_one_after_another():
    """Two chunks put at once share the rate and keep their order."""
    clock = ManualClock()
    arrived: list[str] = []
    pacer = a_pacer(clock)
    pacer.put(500, lambda: arrived.append("a"))
    pacer.put(500, lambda: arrived.append("b"))
    await clock.advance(0.75)
    assert arrived == ["a"]
    await clock.advance(0.26)
    assert arrived == ["a", "b"]


async def test_the_delay_comes_behind_the_bottleneck():
    """A delay postpones each arrival but does not lower the rate."""
    clock = ManualClock()
    arrived: list[float] = []
    start_s = clock.monotonic()
    pacer = a_pacer(clock, delay_s=0.3)
    for _ in range(3):
        pacer.put(100, lambda: arrived.append(clock.monotonic() - start_s))
    await clock.advance(1)
    assert arrived == pytest.approx([0.4, 0.5, 0.6])


async def test_an_idle_link_saves_next_to_nothing_up():
    """After a pause the next chunk takes its full time, less the credit for a late event loop."""
    clock = ManualClock()
    arrived: list[str] = []
    pacer = a_pacer(clock)
    await clock.advance(10)
    pacer.put(500, lambda: arrived.append("a"))
    await clock.advance(0.5 - CREDIT_S - 0.01)
    assert arrived == []
    await clock.advance(0.02)
    assert arrived == ["a"]


async def test_a_late_refill_is_made_up_for():
    """Chunks put 20 ms after the link fell free still pass at the average rate."""
    clock = ManualClock()
    arrived: list[float] = []
    pacer = a_pacer(clock)
    start_s = clock.monotonic()
    for _ in range(5):
        pacer.put(100, lambda: arrived.append(clock.monotonic() - start_s))
        await clock.advance(0.12)
    assert arrived[-1] <= 0.5 + 0.12
    assert pacer.bytes_passed == 500


async def test_what_passed_is_counted():
    """Only bytes that are through count."""
    clock = ManualClock()
    pacer = a_pacer(clock)
    pacer.put(100, lambda: None)
    pacer.put(100, lambda: None)
    await clock.advance(0.15)
    assert pacer.bytes_passed == 100


async def test_clear_loses_what_has_not_passed():
    """After a cut nothing put before arrives, and the link works again at once."""
    clock = ManualClock()
    arrived: list[str] = []
    pacer = a_pacer(clock)
    pacer.put(100, lambda: arrived.append("lost"))
    pacer.clear()
    pacer.put(100, lambda: arrived.append("after"))
    await clock.advance(5)
    assert arrived == ["after"]
