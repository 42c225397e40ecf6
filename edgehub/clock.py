"""Every timer and every time of day of the hub: the system's clocks and a manual one.

Owns the only calls of the machine's clocks. Timers run on monotonic time, so that a step of the
wall clock moves none of them; stored times are hub time (see `HubTime`).
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import math
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


SLICE_PAUSE_S: Final = 0.001

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def between_slices() -> None:
    """Wait for messages, and for the thread of the database, between two slices of long work.

    Not by `sleep(0)`: that thread gets the interpreter only while the loop waits, and a process
    that sleeps now and then is woken at once on a busy machine.
    """
    await asyncio.sleep(SLICE_PAUSE_S)


def utc_text(utc_ms: int) -> str:
    """Return a time of UTC in RFC 3339, with milliseconds."""
    moment = _EPOCH + timedelta(milliseconds=utc_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TimerHandle(Protocol):
    """A pending timer."""

    def cancel(self) -> None:
        """Forget the timer; harmless after it has fired."""


class Clock(Protocol):
    """What the hub asks of time."""

    def monotonic(self) -> float:
        """Return elapsed seconds since an arbitrary start; never steps."""

    def boottime_ms(self) -> int:
        """Return milliseconds since the machine's start, suspend included (CLOCK_BOOTTIME)."""

    def wall_ms(self) -> int:
        """Return UTC in milliseconds since 1970; may step."""

    def synchronized(self) -> bool:
        """Return whether the kernel says that something (NTP, GPS) keeps the wall clock right."""

    def boot_id(self) -> str:
        """Name this boot of the machine, so that two boot times can be distinguished."""

    async def sleep(self, seconds: float) -> None:
        """Wait on monotonic time."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back on the running loop after `seconds` of monotonic time."""


class Timer:
    """A timer of one callback, which waits at most once at a time.

    Args:
        clock: Measures the time.
        callback: Called once the time is over; it may start the timer again.
    """

    __slots__ = ("_callback", "_clock", "_handle")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._handle: TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the callback is to come."""
        return self._handle is not None

    def start(self, seconds: float) -> None:
        """Call back after some seconds, unless it is running."""
        if self._handle is None:
            self._handle = self._clock.call_later(seconds, self._fire)

    def restart(self, seconds: float) -> None:
        """Call back after some seconds from now on, whether it is running or not."""
        self.cancel()
        self.start(seconds)

    def cancel(self) -> None:
        """Do not call back; harmless if it is not running."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()


class Pause:
    """One task waits; any code on the loop can end the wait."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, clock: Clock, delay_s: float | None) -> None:
        """Wait for `delay_s` seconds, None = until cut."""
        assert self._waiter is None
        self._waiter = asyncio.get_running_loop().create_future()
        timer = None if delay_s is None else clock.call_later(delay_s, self.cut)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def wait_period(self, clock: Clock, period_s: Callable[[], float]) -> None:
        """Wait for a period, infinite = until cut, which is asked for again after each cut."""
        begin_s = clock.monotonic()
        while (left_s := begin_s + period_s() - clock.monotonic()) > 0:
            await self.wait(clock, left_s if left_s < math.inf else None)

    def cut(self) -> None:
        """End the wait that runs now, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Timex(ctypes.Structure):
    """The head of the kernel's `struct timex`; `modes` 0 = it is read only, adjtimex(2)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


_STA_UNSYNC = 0x40
_ADJTIMEX = {"x86_64": 159, "aarch64": 171, "riscv64": 171, "armv7l": 124, "armv6l": 124}
"""Numbers of the system call. The C library's function of this name makes another one instead,
clock_adjtime, which containers may not make."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ("_boot_id", "_libc")

    def __init__(self) -> None:
        self._boot_id = ""
        self._libc = ctypes.CDLL(None)

    monotonic = staticmethod(time.monotonic)
    """Return monotonic seconds; without a Python call in between, for each read of a client."""

    def boottime_ms(self) -> int:
        """Return milliseconds since the boot, suspended time included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def synchronized(self) -> bool:
        """Return whether the clock is set; False also where the system call is not allowed."""
        state = _Timex()
        number = _ADJTIMEX.get(os.uname().machine)
        if number is None:
            known: int = self._libc.adjtimex(ctypes.byref(state))
        else:
            known = self._libc.syscall(number, ctypes.byref(state))
        return known >= 0 and not state.status & _STA_UNSYNC

    def boot_id(self) -> str:
        """Return the id of this boot."""
        if not self._boot_id:
            self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return self._boot_id

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after some seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)


class _ManualTimer:
    __slots__ = ("callback", "cancelled", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], None]) -> None:
        self.due = due
        self.order = order
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: _ManualTimer) -> bool:
        return (self.due, self.order) < (other.due, other.order)


class ManualClock:
    """A clock that stands still until it is advanced; whole hubs run on it in tests."""

    def __init__(
        self,
        *,
        wall_ms: int = 1_700_000_000_000,
        boot_id: str = "boot-1",
        is_synchronized: bool = True,
    ) -> None:
        self.is_synchronized = is_synchronized
        """What `synchronized` says."""
        self._elapsed_s = 1_000.0
        self._suspended_ms = 0
        self._wall_offset_ms = wall_ms - 1_000_000
        self._boot = boot_id
        self._timers: list[_ManualTimer] = []
        self._order = 0

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return self._elapsed_s

    def boottime_ms(self) -> int:
        """Return milliseconds since the boot, suspended time included."""
        return round(self._elapsed_s * 1000) + self._suspended_ms

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self.boottime_ms() + self._wall_offset_ms

    def synchronized(self) -> bool:
        """Return whether the wall clock is set by NTP or the like."""
        return self.is_synchronized

    def boot_id(self) -> str:
        """Return the id of this boot."""
        return self._boot

    def step_wall(self, milliseconds: int) -> None:
        """Step the wall clock alone, as an operator or NTP would."""
        self._wall_offset_ms += milliseconds

    def suspend(self, seconds: float) -> None:
        """Suspend the machine: boot time and the time of day go on, timers stand still."""
        self._suspended_ms += round(seconds * 1000)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after some seconds."""
        self._order += 1
        # Rounded, so that times that are equal in decimals fire in the order of their calls.
        due = round(self._elapsed_s + max(0.0, seconds), 9)
        if seconds > 0 and due <= self._elapsed_s:
            # Who waits for a moment that is not quite there must find it there.
            due = round(self._elapsed_s + 1e-9, 9)
        timer = _ManualTimer(due, self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def fire_next(self) -> bool:
        """Go to the next timer and fire it, without running what it wakes; False = none is left."""
        while self._timers:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self._elapsed_s = max(self._elapsed_s, timer.due)
                timer.callback()
                return True
        return False

    async def advance(self, seconds: float) -> None:
        """Advance the time, firing each due timer at its own time and running what it woke."""
        end = round(self._elapsed_s + seconds, 9)
        await _settle()
        while self._timers and self._timers[0].due <= end:
            timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._elapsed_s = max(self._elapsed_s, timer.due)
            timer.callback()
            await _settle()
        self._elapsed_s = end
        await _settle()


async def _settle() -> None:
    # A few turns let chains of callbacks and tasks that one timer woke run to their next wait.
    for _ in range(10):
        await asyncio.sleep(0)


class HubTime:
    """Hub time: milliseconds that go on while the hub's machine runs and over its restarts.

    Within a boot it follows CLOCK_BOOTTIME; `base_ms` is the hub time that belongs to
    `boottime_ms`. It is never stepped by the wall clock, so rows neither expire nor become
    immortal by a change of date.
    """

    __slots__ = ("_boottime_ms", "_offset_ms")

    def __init__(self, clock: Clock, *, base_ms: int, boottime_ms: int) -> None:
        self._boottime_ms = clock.boottime_ms
        self._offset_ms = base_ms - boottime_ms

    def now_ms(self) -> int:
        """Return the current hub time in milliseconds."""
        return self._boottime_ms() + self._offset_ms
