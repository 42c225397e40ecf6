"""One queue as the pump sees it: its pause, and what became of its rows in this turn.

Owns the queue's throttle and latencies, and the lists that turn many results into one call of the
queue. Invariant: a row taken from the queue goes back to it by exactly one of these lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.endpoints.backoff import Backoff
from edgehub.pump.latency import LatencyHistogram

if TYPE_CHECKING:
    import random

    from edgehub.message import Row
    from edgehub.pump.queue import PumpQueue


class Lane:
    """See the module."""

    __slots__ = (
        "attempted",
        "confirmed",
        "delayed_until",
        "expired",
        "holds",
        "latency",
        "queue",
        "returned",
        "throttle",
    )

    def __init__(self, queue: PumpQueue, rng: random.Random) -> None:
        self.queue = queue
        self.throttle = Backoff(rng)
        self.delayed_until = 0.0
        self.holds = 0
        self.latency = LatencyHistogram()
        self.confirmed: list[Row] = []
        self.attempted: list[Row] = []
        self.returned: list[Row] = []
        self.expired: list[Row] = []

    def put_back(self, row: Row, now_ms: int, *, attempted: bool) -> bool:
        """Return a row that was not delivered; False when its time is up and it expires instead."""
        if row.expires_ms <= now_ms:
            self.expired.append(row)
            return False
        (self.attempted if attempted else self.returned).append(row)
        return True

    def flush(self) -> None:
        """Hand the turn's rows to the queue, one call for each kind."""
        queue = self.queue
        if self.confirmed:
            queue.confirm(self.confirmed)
            self.confirmed = []
        if self.attempted:
            queue.give_back(self.attempted, attempted=True)
            self.attempted = []
        if self.returned:
            queue.give_back(self.returned, attempted=False)
            self.returned = []
        if self.expired:
            queue.expire(self.expired)
            self.expired = []
