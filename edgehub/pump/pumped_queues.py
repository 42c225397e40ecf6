"""The queues of one pump: which there are, which one is read next, and reading it.

Invariants: the queues are ordered by priority, best first; one that returned no rows is skipped for
the rest of the turn, so that it can neither hang the pump nor spin it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import structlog

from edgehub.endpoints.backoff import Backoff
from edgehub.errors import StoreError
from edgehub.pump.pumped_queue import PumpedQueue
from edgehub.pump.scheduler import Scheduler

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from edgehub.clock import Clock
    from edgehub.message import QueueId, Row
    from edgehub.pump.dependencies import Dependencies
    from edgehub.pump.options import PumpOptions
    from edgehub.pump.queue import PumpQueue

log = structlog.get_logger(__name__)


class PumpedQueues:
    """The state of every queue, by the queue's id.

    Args:
        queues: Returns the endpoint's queues; called again when an unknown one has rows.
        dependencies: The creations that rows wait for.
        clock: Counts pauses in monotonic time.
        rng: Randomness for jitter.
        options: Bounds.
    """

    def __init__(
        self,
        queues: Callable[[], Sequence[PumpQueue]],
        dependencies: Dependencies,
        *,
        clock: Clock,
        rng: random.Random,
        options: PumpOptions,
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._rng = rng
        self._scheduler = Scheduler(options)
        self._reads = Backoff(rng)
        self._pumped_queues: list[PumpedQueue] = []
        self._of: dict[QueueId, PumpedQueue] = {}
        self._empty: set[PumpedQueue] = set()
        self._dependencies = dependencies
        self._creations = self._pumped(dependencies)

    def all(self) -> Iterator[PumpedQueue]:
        """Iterate over all queues, that of the dependencies too."""
        yield self._creations
        yield from self._pumped_queues

    def __iter__(self) -> Iterator[PumpedQueue]:
        """Iterate over the stored queues, best priority first."""
        return iter(self._pumped_queues)

    def of(self, queue_id: QueueId) -> PumpedQueue | None:
        """Return the state of a queue, None = it was not seen yet."""
        return self._of.get(queue_id)

    def refresh(self) -> None:
        """Add queues that are new."""
        for queue in self._queues():
            if queue.id not in self._of:
                pumped = self._of[queue.id] = self._pumped(queue)
                self._pumped_queues.append(pumped)
        self._pumped_queues.sort(key=lambda pumped: pumped.queue.priority)

    def rows_ready(self, queue: PumpQueue) -> None:
        """Record that a queue has new rows."""
        if queue.id not in self._of:
            self.refresh()
        pumped = self._of[queue.id]
        self._empty.discard(pumped)
        if self._scheduler.options.aging_s:
            pumped.waits_since = min(pumped.waits_since, self._clock.monotonic())

    def adjust(self, options: PumpOptions) -> None:
        """Apply changed bounds."""
        self._scheduler.options = options

    @property
    def has_ready(self) -> bool:
        """Whether some queue has rows that may be sent, maybe after a pause."""
        return any(pumped.queue.has_ready() for pumped in self.all())

    def best_ready(self) -> float:
        """Return the best priority that has rows, infinite = none has."""
        return min(
            (pumped.queue.priority for pumped in self._pumped_queues if pumped.queue.has_ready()),
            default=math.inf,
        )

    def could_send(self, now: float) -> bool:
        """Return whether some queue has rows and no pause."""
        return any(
            pumped.delayed_until <= now and pumped.lingers_until <= now and pumped.queue.has_ready()
            for pumped in self.all()
        )

    def begin_turn(self) -> None:
        """Start a turn: no queue is known to be empty."""
        self._empty.clear()
        self._dependencies.begin_turn()

    def next(self, now: float) -> tuple[PumpedQueue | None, float]:
        """Return the queue of the next batch; see `Scheduler.next`.

        Creations are sent with the best priority of the rows that wait for them.
        """
        pumped, look_at = self._scheduler.next(self._pumped_queues, now, self._empty)
        creations = self._creations
        if creations in self._empty or not creations.queue.has_ready():
            return pumped, look_at
        if creations.delayed_until > now:
            return pumped, min(look_at, creations.delayed_until)
        if pumped is None or creations.queue.priority <= pumped.queue.priority:
            return creations, look_at
        return pumped, look_at

    async def read(self, pumped: PumpedQueue, rows_max: int, bytes_max: int) -> list[Row] | None:
        """Read rows of a queue; they are in flight from here on.

        Returns:
            The rows, oldest first; empty = there are none, and the queue is skipped for this turn;
            None = reading failed, and the queue has a pause.
        """
        try:
            rows = await pumped.queue.read_batch(rows_max, bytes_max)
        except StoreError as error:
            wait_s = self._reads.next_s()
            pumped.delayed_until = self._clock.monotonic() + wait_s
            log.warning(
                "pump.read_failed", queue_id=pumped.queue.id, error=str(error), retry_s=wait_s
            )
            rows = None
        else:
            self._reads.reset()
        if not rows:
            self._empty.add(pumped)
            pumped.waits_since = math.inf
        return rows

    def sent(self, pumped: PumpedQueue, now: float) -> None:
        """Record that rows of a queue were handed over."""
        self._scheduler.sent(pumped, now)

    def flush(self) -> None:
        """Return the turn's rows to their queues."""
        for pumped in self.all():
            pumped.flush()

    def _pumped(self, queue: PumpQueue) -> PumpedQueue:
        return PumpedQueue(queue, Backoff(self._rng), self._dependencies.creation_failed)
