"""The manual clock fires timers in order and never by the wall clock."""

from __future__ import annotations

import ctypes

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


def test_the_next_timer_can_be_fired_alone():
    """Time goes to it and no further; what was cancelled is passed, at the end there is none."""
    clock = ManualClock()
    fired: list[str] = []
    start = clock.monotonic()
    clock.call_later(1, lambda: fired.append("cancelled")).cancel()
    clock.call_later(2, lambda: fired.append("b"))
    clock.call_later(3, lambda: fired.append("c"))
    assert clock.fire_next()
    assert (fired, clock.monotonic() - start) == (["b"], 2)
    assert clock.fire_next()
    assert not clock.fire_next()


async def test_times_that_are_equal_in_decimals_fire_in_the_order_of_their_calls():
    """0.1 s and then 0.2 s is 0.3 s, also for a timer that was set first."""
    clock = ManualClock()
    fired: list[str] = []
    clock.call_later(0.3, lambda: fired.append("first"))
    clock.call_later(0.1, lambda: clock.call_later(0.2, lambda: fired.append("second")))
    await clock.advance(0.3)
    assert fired == ["first", "second"]


async def test_a_suspended_machine_fires_no_timer_and_its_clocks_go_on():
    """CLOCK_BOOTTIME and the time of day include it, CLOCK_MONOTONIC and timers do not."""
    clock = ManualClock()
    fired: list[int] = []
    clock.call_later(10, lambda: fired.append(1))
    monotonic, boot_ms, wall_ms = clock.monotonic(), clock.boottime_ms(), clock.wall_ms()
    clock.suspend(60)
    await clock.advance(9)
    assert fired == []
    assert clock.monotonic() == monotonic + 9
    assert clock.boottime_ms() == boot_ms + 69_000
    assert clock.wall_ms() == wall_ms + 69_000


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


def test_the_kernel_is_asked_whether_the_clock_is_right():
    """The answer is the one that the C library gets in another way: TIME_ERROR = it is not."""
    time_error = 5
    state = ctypes.CDLL(None).ntp_adjtime(ctypes.create_string_buffer(512))
    assert SystemClock().synchronized() is (state != time_error)


async def test_a_moment_too_close_to_be_distinguished_is_reached():
    """Who asks again and again for a time a hair ahead gets there, instead of asking for ever."""
    clock = ManualClock()
    await clock.advance(1021.197799268)
    until_s = clock.monotonic() + 3e-13
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if clock.monotonic() < until_s and looks < 100:
            clock.call_later(until_s - clock.monotonic(), look)

    look()
    await clock.advance(1)

    assert looks == 2
