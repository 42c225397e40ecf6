"""The one queue of a device: its operations run one at a time, in the order in which they came.

Owns whose turn it is. An operation runs in the task that asked for it, so its result, its errors
and a cancellation go to the caller without a detour, and an idle queue costs no task. Invariants:
at most one operation runs; a turn is never lost by a cancellation; more than
`waiting_max` operations never wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

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
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQueueStatistics:
    """A device's queue at one moment.

    Attributes:
        running: What runs, None = nothing.
        running_s: For how long.
        waiting: What waits, the next one first.
        done: Operations that ended well.
        failed: Operations that ended with an error.
        cancelled: Operations whose caller gave up, waiting or running.
        refused: Operations that found the queue full.
        waited_s_max: The longest that one waited for its turn.
    """

    running: RequestKind | None
    running_s: float
    waiting: tuple[RequestKind, ...]
    done: int
    failed: int
    cancelled: int
    refused: int
    waited_s_max: float


@dataclass(slots=True, eq=False)
class _Turn:
    kind: RequestKind
    given: asyncio.Future[None]
    since: float


class DeviceRequestQueue:
    """The queue of one device.

    Args:
        device_id: Whose queue, for errors.
        clock: For waiting times.
        waiting_max: How many operations may wait behind the running one.
    """

    __slots__ = (
        "_cancelled",
        "_clock",
        "_device_id",
        "_done",
        "_failed",
        "_refused",
        "_running",
        "_waited_s_max",
        "_waiting",
        "_waiting_max",
    )

    def __init__(self, device_id: str, clock: Clock, *, waiting_max: int = WAITING_MAX) -> None:
        self._device_id = device_id
        self._clock = clock
        self._waiting_max = waiting_max
        self._running: _Turn | None = None
        self._waiting: deque[_Turn] = deque()
        self._done = self._failed = self._cancelled = self._refused = 0
        self._waited_s_max = 0.0

    @property
    def is_idle(self) -> bool:
        """Return whether nothing runs or waits."""
        return self._running is None

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

    def statistics(self) -> RequestQueueStatistics:
        """Return the queue as it is now."""
        running = self._running
        return RequestQueueStatistics(
            running=None if running is None else running.kind,
            running_s=0.0 if running is None else self._clock.monotonic() - running.since,
            waiting=tuple(turn.kind for turn in self._waiting),
            done=self._done,
            failed=self._failed,
            cancelled=self._cancelled,
            refused=self._refused,
            waited_s_max=self._waited_s_max,
        )

    async def _turn(self, kind: RequestKind) -> None:
        now = self._clock.monotonic()
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = _Turn(kind, given, now)
        if self._running is None:
            self._running = turn
            return
        if len(self._waiting) >= self._waiting_max:
            self._refused += 1
            raise DeviceQueueFullError(
                self._device_id, f"{len(self._waiting)} operations wait, {kind} was refused"
            )
        self._waiting.append(turn)
        try:
            await given
        except asyncio.CancelledError:
            self._cancelled += 1
            if self._running is turn:
                self._hand_over()  # the turn was given in the moment of the cancellation
            else:
                self._waiting.remove(turn)
            raise
        self._waited_s_max = max(self._waited_s_max, self._clock.monotonic() - now)

    def _hand_over(self) -> None:
        # A caller that was cancelled while it waited takes its own turn out when it runs next.
        turn = next((turn for turn in self._waiting if not turn.given.done()), None)
        self._running = turn
        if turn is not None:
            self._waiting.remove(turn)
            turn.since = self._clock.monotonic()
            turn.given.set_result(None)
