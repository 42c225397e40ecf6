"""The lanes of one pump: which there are, which is next, and what is taken from it.

Owns the lanes and the turns between them; calls the queues it was given. Invariants: the lanes
stand best priority first; one that gave nothing is passed for the rest of the turn, so that a queue
that says it has rows and gives none can neither hang the pump nor spin it.
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
    from edgehub.pump.queue import PumpQueue

log = structlog.get_logger(__name__)


class PumpedQueues:
    """See the module.

    Args:
        queues: Gives the endpoint's queues; asked again when an unknown one has rows.
        clock: Counts pauses in monotonic time.
        rng: Randomness for jitter.
        aging_s: See `PumpOptions`.
        linger_s: Likewise.
    """

    __slots__ = (
        "_clock",
        "_dependencies",
        "_empty",
        "_front",
        "_of",
        "_pumped_queues",
        "_queues",
        "_reads",
        "_rng",
        "_scheduler",
    )

    def __init__(
        self,
        queues: Callable[[], Sequence[PumpQueue]],
        *,
        clock: Clock,
        rng: random.Random,
        aging_s: float,
        linger_s: float = 0.0,
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._rng = rng
        self._scheduler = Scheduler(aging_s, linger_s)
        self._reads = Backoff(rng)
        self._pumped_queues: list[PumpedQueue] = []
        self._of: dict[QueueId, PumpedQueue] = {}
        self._empty: set[PumpedQueue] = set()
        self._dependencies: Dependencies | None = None
        self._front: PumpedQueue | None = None

    def follow(self, dependencies: Dependencies) -> None:
        """Take what others wait for before them; called before lanes are known."""
        assert not self._pumped_queues
        dependencies.queues = self._queues
        self._dependencies = dependencies
        self._front = PumpedQueue(dependencies, self._rng, dependencies)

    def all(self) -> Iterator[PumpedQueue]:
        """Go through all lanes, that of ancestors too."""
        if self._front is not None:
            yield self._front
        yield from self._pumped_queues

    def __iter__(self) -> Iterator[PumpedQueue]:
        """Go through the lanes, best priority first."""
        return iter(self._pumped_queues)

    def of(self, queue_id: QueueId) -> PumpedQueue | None:
        """Return the lane of a queue, None = it was not seen yet."""
        return self._of.get(queue_id)

    def learn(self) -> None:
        """Ask for the queues: some may be new."""
        for queue in self._queues():
            if queue.id not in self._of:
                pumped = self._of[queue.id] = PumpedQueue(queue, self._rng, self._dependencies)
                self._pumped_queues.append(pumped)
        self._pumped_queues.sort(key=lambda pumped: pumped.queue.priority)

    def rows_ready(self, queue: PumpQueue) -> None:
        """Take note that a queue has new rows."""
        if queue.id not in self._of:
            self.learn()
        pumped = self._of[queue.id]
        self._empty.discard(pumped)
        if self._scheduler.aging_s:
            pumped.waits_since = min(pumped.waits_since, self._clock.monotonic())

    def adjust(self, *, aging_s: float, linger_s: float) -> None:
        """Take over other times; see `PumpOptions`."""
        self._scheduler.aging_s = aging_s
        self._scheduler.linger_s = linger_s

    @property
    def has_ready(self) -> bool:
        """Whether some lane has rows that may leave, maybe after a pause."""
        return any(pumped.queue.has_ready() for pumped in self.all())

    def best_ready(self) -> float:
        """Return the best priority that has rows, infinite = none has."""
        return min(
            (pumped.queue.priority for pumped in self._pumped_queues if pumped.queue.has_ready()),
            default=math.inf,
        )

    def could_send(self, now: float) -> bool:
        """Return whether some lane has rows and no pause."""
        return any(
            pumped.delayed_until <= now and pumped.lingers_until <= now and pumped.queue.has_ready()
            for pumped in self.all()
        )

    def begin_turn(self) -> None:
        """Ask every lane again from here on."""
        self._empty.clear()
        if self._dependencies is not None:
            self._dependencies.begin_turn()

    def next(self, now: float) -> tuple[PumpedQueue | None, float]:
        """Choose the lane of the next batch; see `Scheduler.next`.

        What others wait for goes before them: in the priority of the best of those.
        """
        pumped, look_at = self._scheduler.next(self._pumped_queues, now, self._empty)
        front = self._front
        if front is None or front in self._empty or not front.queue.has_ready():
            return pumped, look_at
        if front.delayed_until > now:
            return pumped, min(look_at, front.delayed_until)
        if pumped is None or front.queue.priority <= pumped.queue.priority:
            return front, look_at
        return pumped, look_at

    async def read(self, pumped: PumpedQueue, rows_max: int, bytes_max: int) -> list[Row] | None:
        """Take rows of a lane; they are in flight from here on.

        Returns:
            The rows, oldest first; empty = the lane gave nothing and is passed for this turn;
            None = reading failed, and the lane has a pause.
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

    def took(self, pumped: PumpedQueue, now: float) -> None:
        """Record that rows of a lane were handed over."""
        self._scheduler.took(pumped, now)

    def flush(self) -> None:
        """Hand the turn's rows to their queues, one call for each kind."""
        for pumped in self.all():
            pumped.flush()
