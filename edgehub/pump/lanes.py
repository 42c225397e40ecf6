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
from edgehub.pump.choice import Choice
from edgehub.pump.lane import Lane

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from edgehub.clock import Clock
    from edgehub.message import QueueId, Row
    from edgehub.pump.ancestors import Ancestors
    from edgehub.pump.queue import PumpQueue

log = structlog.get_logger(__name__)


class Lanes:
    """See the module.

    Args:
        queues: Gives the endpoint's queues; asked again when an unknown one has rows.
        clock: Counts pauses in monotonic time.
        rng: Randomness for jitter.
        aging_s: See `PumpOptions`.
        linger_s: Likewise.
    """

    __slots__ = (
        "_ancestors",
        "_choice",
        "_clock",
        "_empty",
        "_front",
        "_lanes",
        "_of",
        "_queues",
        "_reads",
        "_rng",
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
        self._choice = Choice(aging_s, linger_s)
        self._reads = Backoff(rng)
        self._lanes: list[Lane] = []
        self._of: dict[QueueId, Lane] = {}
        self._empty: set[Lane] = set()
        self._ancestors: Ancestors | None = None
        self._front: Lane | None = None

    def follow(self, ancestors: Ancestors) -> None:
        """Take what others wait for before them; called before lanes are known."""
        assert not self._lanes
        ancestors.queues = self._queues
        self._ancestors = ancestors
        self._front = Lane(ancestors, self._rng, ancestors)

    def all(self) -> Iterator[Lane]:
        """Go through all lanes, that of ancestors too."""
        if self._front is not None:
            yield self._front
        yield from self._lanes

    def __iter__(self) -> Iterator[Lane]:
        """Go through the lanes, best priority first."""
        return iter(self._lanes)

    def of(self, queue_id: QueueId) -> Lane | None:
        """Give the lane of a queue, None = it was not seen yet."""
        return self._of.get(queue_id)

    def learn(self) -> None:
        """Ask for the queues: some may be new."""
        for queue in self._queues():
            if queue.id not in self._of:
                lane = self._of[queue.id] = Lane(queue, self._rng, self._ancestors)
                self._lanes.append(lane)
        self._lanes.sort(key=lambda lane: lane.queue.priority)

    def rows_ready(self, queue: PumpQueue) -> None:
        """Take note that a queue has new rows."""
        if queue.id not in self._of:
            self.learn()
        lane = self._of[queue.id]
        self._empty.discard(lane)
        if self._choice.aging_s:
            lane.waits_since = min(lane.waits_since, self._clock.monotonic())

    def adjust(self, *, aging_s: float, linger_s: float) -> None:
        """Take over other times; see `PumpOptions`."""
        self._choice.aging_s = aging_s
        self._choice.linger_s = linger_s

    @property
    def has_ready(self) -> bool:
        """Whether some lane has rows that may leave, maybe after a pause."""
        return any(lane.queue.has_ready() for lane in self.all())

    def best_ready(self) -> float:
        """Give the best priority that has rows, infinite = none has."""
        return min(
            (lane.queue.priority for lane in self._lanes if lane.queue.has_ready()),
            default=math.inf,
        )

    def could_send(self, now: float) -> bool:
        """Tell whether some lane has rows and no pause."""
        return any(
            lane.delayed_until <= now and lane.lingers_until <= now and lane.queue.has_ready()
            for lane in self.all()
        )

    def begin_turn(self) -> None:
        """Ask every lane again from here on."""
        self._empty.clear()
        if self._ancestors is not None:
            self._ancestors.begin_turn()

    def next(self, now: float) -> tuple[Lane | None, float]:
        """Choose the lane of the next batch; see `Choice.next`.

        What others wait for goes before them: in the priority of the best of those.
        """
        lane, look_at = self._choice.next(self._lanes, now, self._empty)
        front = self._front
        if front is None or front in self._empty or not front.queue.has_ready():
            return lane, look_at
        if front.delayed_until > now:
            return lane, min(look_at, front.delayed_until)
        if lane is None or front.queue.priority <= lane.queue.priority:
            return front, look_at
        return lane, look_at

    async def read(self, lane: Lane, rows_max: int, bytes_max: int) -> list[Row] | None:
        """Take rows of a lane; they are in flight from here on.

        Returns:
            The rows, oldest first; empty = the lane gave nothing and is passed for this turn;
            None = reading failed, and the lane has a pause.
        """
        try:
            rows = await lane.queue.read_batch(rows_max, bytes_max)
        except StoreError as error:
            wait_s = self._reads.next_s()
            lane.delayed_until = self._clock.monotonic() + wait_s
            log.warning(
                "pump.read_failed", queue_id=lane.queue.id, error=str(error), retry_s=wait_s
            )
            rows = None
        else:
            self._reads.reset()
        if not rows:
            self._empty.add(lane)
            lane.waits_since = math.inf
        return rows

    def took(self, lane: Lane, now: float) -> None:
        """Note that rows of a lane were handed over."""
        self._choice.took(lane, now)

    def flush(self) -> None:
        """Hand the turn's rows to their queues, one call for each kind."""
        for lane in self.all():
            lane.flush()
