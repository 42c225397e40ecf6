"""The manual clock fires timers in order and never by the wall clock."""

from __future__ import annotations

from edgehub.clock import HubTime, ManualClock, SystemClock


async def test_timers_fire_in_the_order_of_their_time():
    """Advancing fires each due timer at its own time."""
    clock = ManualClock()
    fired: list[tuple[str, float]] = []
    start = clock.monotonic()
    clock.call_later(2, lambda: fired.append(("b", clock.monotonic() - start)))
    clock.call_later(1, lambda: fired.append(("a", clock.monotonic() - start)))
    clock.call_later(9, lambda: fired.append(("never", 0)))
    await clock.advance(3)
    assert fired == [("a", 1), ("b", 2)]
    assert clock.monotonic() - start == 3


async def test_a_cancelled_timer_never_fires():
    """Cancel is final."""
    clock = ManualClock()
    fired: list[int] = []
    clock.call_later(1, lambda: fired.append(1)).cancel()
    await clock.advance(2)
    assert fired == []


async def test_a_wall_clock_step_moves_no_timer_and_no_hub_time():
    """W-02: stepping the wall clock changes the time of day alone."""
    clock = ManualClock()
    hub_time = HubTime(clock, base_ms=5, boottime_ms=clock.boottime_ms())
    fired: list[int] = []
    clock.call_later(10, lambda: fired.append(1))
    before = clock.wall_ms()
    clock.step_wall(-7_200_000)
    await clock.advance(10)
    assert fired == [1]
    assert hub_time.now_ms() == 5 + 10_000
    assert clock.wall_ms() == before - 7_200_000 + 10_000


def test_the_system_clock_reads_the_kernel():
    """Boot time grows, the boot has a name."""
    clock = SystemClock()
    assert clock.boottime_ms() > 0
    assert len(clock.boot_id()) == 36
