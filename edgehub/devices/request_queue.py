"""The one queue of a device: its operations run one at a time, in the order in which they came.

Owns whose turn it is. An operation runs in the task that asked for it, so its result, its errors
and a cancellation go to the caller without a detour, and an idle queue costs no task. A call is an
operation that never waits, such as to hand a message to the router: on an idle queue it runs at
once, else at the hand-over of its turn. Invariants: at most one operation runs; a turn is never
lost by a cancellation; more than `waiting_max` operations that are no calls never wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from edgehub.devices.faults import DeviceQueueFullError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock

T = TypeVar("T")

WAITING_MAX: Final = 64


class RequestKind(StrEnum):
    """What an operation is for."""

    JOIN = "join"
    DATA = "data"
    LOAD = "load"
    REFRESH = "refresh"
    DOWNLINK = "downlink"
    TWIN_READ = "twin_read"
    TWIN_PATCH = "twin_patch"
    METHOD = "method"
    CLOSE = "close"


class RequestQueueStatistics(Struct, frozen=True, kw_only=True):
    """A device's queue at one moment.

    Attributes:
        running: What runs, None = nothing.
        running_s: For how long.
        waiting: What waits, the next one first.
        done: Operations that ended well, those at once included.
        at_once: Messages of the device that found the queue idle and ran without a turn.
        failed: Operations that ended with an error.
        cancelled: Operations whose caller gave up, waiting or running.
        refused: Operations that found the queue full.
        waited_s_max: The longest that one waited for its turn.
    """

    running: RequestKind | None
    running_s: float
    waiting: tuple[RequestKind, ...]
    done: int
    at_once: int
    failed: int
    cancelled: int
    refused: int
    waited_s_max: float


class _Turn(Struct, eq=False):
    kind: RequestKind
    since: float
    given: asyncio.Future[None] | None = None
    """None = it is a call."""
    call: Callable[[], None] | None = None


class DeviceRequestQueue:
    """The queue of one device.

    Args:
        device_id: Whose queue, for errors.
        clock: For waiting times.
        waiting_max: How many operations may wait behind the running one. Calls are not counted,
            since those who make them have bounds of their own.

    Attributes:
        running: What runs, None = nothing runs or waits.
        at_once: Messages that ran at once; counted by `RequestQueues` for the message path.
        held: Whether an object in memory uses this queue, so that it must stay.
    """

    __slots__ = (
        "_cancelled",
        "_clock",
        "_device_id",
        "_done",
        "_failed",
        "_refused",
        "_waited_s_max",
        "_waiting",
        "_waiting_max",
        "at_once",
        "held",
        "running",
    )

    def __init__(self, device_id: str, clock: Clock, *, waiting_max: int = WAITING_MAX) -> None:
        self._device_id = device_id
        self._clock = clock
        self._waiting_max = waiting_max
        self.running: _Turn | None = None
        self.at_once = 0
        self.held = False
        # A deque takes more memory than all else, and most devices never need one.
        self._waiting: deque[_Turn] | None = None
        self._done = self._failed = self._cancelled = self._refused = 0
        self._waited_s_max = 0.0

    @property
    def is_idle(self) -> bool:
        """Return whether nothing runs or waits."""
        return self.running is None

    @property
    def waiting(self) -> int:
        """Return how many operations wait, calls included."""
        return len(self._waiting or ())

    async def run(self, kind: RequestKind, operation: Callable[[], Awaitable[T]]) -> T:
        """Run an operation when its turn has come.

        Args:
            kind: What it is for.
            operation: Called when it is its turn; must not ask this queue for another turn.

        Returns:
            What the operation returned; its errors come out as they are.

        Raises:
            DeviceQueueFullError: Too many wait.
        """
        await self._turn(kind)
        try:
            result = await operation()
        except asyncio.CancelledError:
            self._cancelled += 1
            raise
        except BaseException:
            self._failed += 1
            raise
        else:
            self._done += 1
            return result
        finally:
            self._hand_over()

    def call(self, kind: RequestKind, call: Callable[[], None]) -> None:
        """Run a call that never waits: at once if nothing runs or waits, else in its turn."""
        if self.running is None:
            self.running = _Turn(kind, self._clock.monotonic(), call=call)
            self._run_calls()
        else:
            self._wait(_Turn(kind, self._clock.monotonic(), call=call))

    def statistics(self) -> RequestQueueStatistics:
        """Return the queue as it is now."""
        running = self.running
        return RequestQueueStatistics(
            running=None if running is None else running.kind,
            running_s=0.0 if running is None else self._clock.monotonic() - running.since,
            waiting=tuple(turn.kind for turn in self._waiting or ()),
            done=self._done + self.at_once,
            at_once=self.at_once,
            failed=self._failed,
            cancelled=self._cancelled,
            refused=self._refused,
            waited_s_max=self._waited_s_max,
        )

    async def _turn(self, kind: RequestKind) -> None:
        now = self._clock.monotonic()
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = _Turn(kind, now, given)
        if self.running is None:
            self.running = turn
            return
        waiting = sum(each.given is not None for each in self._waiting or ())
        if waiting >= self._waiting_max:
            self._refused += 1
            raise DeviceQueueFullError(
                self._device_id, f"{waiting} operations wait, {kind} was refused"
            )
        self._wait(turn)
        try:
            await given
        except asyncio.CancelledError:
            self._cancelled += 1
            if self.running is turn:
                self._hand_over()  # the turn was given in the moment of the cancellation
            elif self._waiting is not None and turn in self._waiting:
                self._waiting.remove(turn)
            raise
        self._waited_s_max = max(self._waited_s_max, self._clock.monotonic() - now)

    def _wait(self, turn: _Turn) -> None:
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(turn)

    def _hand_over(self) -> None:
        self.running = self._next()
        self._run_calls()

    def _run_calls(self) -> None:
        """Run the calls whose turn has come, up to an operation that waits for its own."""
        while (turn := self.running) is not None and turn.call is not None:
            try:
                turn.call()
            except BaseException:
                # Of the program, not of the device: those behind it keep their turns.
                self._failed += 1
                self._hand_over()
                raise
            self._done += 1
            self.running = self._next()
        if turn is not None and turn.given is not None:
            turn.given.set_result(None)

    def _next(self) -> _Turn | None:
        now = self._clock.monotonic()
        while self._waiting:
            turn = self._waiting.popleft()
            if turn.given is None:
                self._waited_s_max = max(self._waited_s_max, now - turn.since)
            elif turn.given.done():
                continue  # its caller was cancelled while it waited
            turn.since = now
            return turn
        self._waiting = None
        return None
