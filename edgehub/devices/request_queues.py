"""The request queues of all devices, and the way of their messages through them.

Owns one queue per device that sends, or that something is asked of. Invariants: a device has one
queue at a time; idle queues are evicted, those in use never; a message that finds its device's
queue idle goes to the router in the same call, without a task, a future or a turn; one that does
not keeps its place among the operations of the device.

A message's operation ends when the router has appended it to the open group. Its acknowledgement
follows the commit, so a device that waits for one holds nothing up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec import Struct

from edgehub.devices.request_queue import DeviceRequestQueue, RequestKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from edgehub.clock import Clock
    from edgehub.message import Message, Refusal

    Settle = Callable[[int, Refusal | None], None]

T = TypeVar("T")

QUEUES_MAX: Final = 10_000


class SubmitInTurn(Protocol):
    """Takes a message of a device in its turn; implements `edgehub.heads.head.Submit`."""

    def __call__(self, message: Message, settle: Settle, token: int) -> None:
        """Take a message without waiting."""


class RequestQueuesStatistics(Struct, frozen=True, kw_only=True):
    """The queues at one moment.

    Attributes:
        queues: In memory.
        busy: With an operation that runs.
        waiting: Operations that wait for their turn.
        at_once: Messages that found their device's queue idle, since the start.
        in_turn: Messages that had to wait for their turn, since the start.
    """

    queues: int
    busy: int
    waiting: int
    at_once: int
    in_turn: int


class RequestQueues:
    """The queues of all devices.

    Args:
        clock: For waiting times.
        queues_max: How many are kept; beyond it the idle ones are evicted.
    """

    __slots__ = ("_at_once", "_clock", "_in_turn", "_queues", "_queues_max", "_sweep_at")

    def __init__(self, clock: Clock, *, queues_max: int = QUEUES_MAX) -> None:
        self._clock = clock
        self._queues_max = self._sweep_at = queues_max
        self._queues: dict[str, DeviceRequestQueue] = {}
        self._at_once = 0  # of queues that were evicted
        self._in_turn = 0

    def of(self, device_id: str) -> DeviceRequestQueue:
        """Return the queue of a device, created if need be."""
        queue = self._queues.get(device_id)
        if queue is None:
            if len(self._queues) >= self._sweep_at:
                self._evict()
            queue = self._queues[device_id] = DeviceRequestQueue(device_id, self._clock)
        return queue

    def known(self, device_id: str) -> DeviceRequestQueue | None:
        """Return the queue of a device, None = it has none at present."""
        return self._queues.get(device_id)

    async def run(
        self, device_id: str, kind: RequestKind, operation: Callable[[], Awaitable[T]]
    ) -> T:
        """Run an operation of a device in its turn; see `DeviceRequestQueue.run`.

        Messages of the device wait for it, so it must not wait for the device or a link.

        Raises:
            DeviceQueueFullError: Too many wait.
        """
        return await self.of(device_id).run(kind, operation)

    def submitter(self, submit: Callable[[Message, Settle, int], None]) -> SubmitInTurn:
        """Return the `submit` of messages that go through the queue of their device to `submit`."""
        queues = self._queues

        def submit_in_turn(message: Message, settle: Settle, token: int) -> None:
            queue = queues.get(message.device_id) or self.of(message.device_id)
            if queue.running is None:
                queue.at_once += 1
                submit(message, settle, token)
            else:
                self._in_turn += 1
                queue.call(RequestKind.DATA, partial(submit, message, settle, token))

        return submit_in_turn

    def statistics(self) -> RequestQueuesStatistics:
        """Return the queues as they are now."""
        queues = self._queues.values()
        return RequestQueuesStatistics(
            queues=len(queues),
            busy=sum(queue.running is not None for queue in queues),
            waiting=sum(queue.waiting for queue in queues),
            at_once=self._at_once + sum(queue.at_once for queue in queues),
            in_turn=self._in_turn,
        )

    def _evict(self) -> None:
        # All idle ones at once: cheaper than an order of use, and a queue is made in no time.
        for device_id, queue in list(self._queues.items()):
            if queue.is_idle and not queue.held:
                self._at_once += queue.at_once
                del self._queues[device_id]
        # Not once more for each new device while all are in use.
        self._sweep_at = max(self._queues_max, len(self._queues) * 5 // 4)
