"""Which queue of an endpoint is next: the best one that has rows, or one that ageing has made due.

Invariants: without ageing the best queue is always next; with it, a due queue gets one batch and
the next batch is the best queue's again. Hence a queue that is due waits for at most 2n batches of
others, n = number of queues (docs/explanation/pump.md, *Ageing*).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgehub.message import BEST_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from edgehub.pump.options import PumpOptions
    from edgehub.pump.pumped_queue import PumpedQueue


class Scheduler:
    """Chooses the next queue.

    Attributes:
        options: Bounds of the pump.
    """

    def __init__(self, options: PumpOptions) -> None:
        self.options = options
        self._aged_last = False

    def next(
        self, pumped_queues: Sequence[PumpedQueue], now: float, passed: Collection[PumpedQueue]
    ) -> tuple[PumpedQueue | None, float]:
        """Return the queue of the next batch.

        Args:
            pumped_queues: Best priority first.
            now: Monotonic seconds.
            passed: Queues that returned no rows in this turn.

        Returns:
            The queue, None = none has rows; and when to check again, infinite = no need to.
        """
        look_at = math.inf
        best: PumpedQueue | None = None
        due: PumpedQueue | None = None
        for pumped in pumped_queues:
            wait_until = max(pumped.delayed_until, pumped.lingers_until)
            if wait_until > now:
                look_at = min(look_at, wait_until)
                continue
            if pumped in passed or not pumped.queue.has_ready():
                continue
            best = best or pumped
            if not self.options.aging_s:
                break
            pumped.waits_since = min(pumped.waits_since, now)
            is_due = now - pumped.waits_since >= self.options.aging_s
            if is_due and (due is None or pumped.waits_since < due.waits_since):
                due = pumped
        self._aged_last = due is not None and due is not best and not self._aged_last
        return (due if self._aged_last else best), look_at

    def sent(self, pumped: PumpedQueue, now: float) -> None:
        """Record that rows of a queue were handed over."""
        pumped.served_at = now
        if pumped.queue.has_ready():
            pumped.waits_since = now
        else:
            pumped.waits_since = math.inf
            if pumped.queue.priority > BEST_PRIORITY:
                pumped.lingers_until = now + self.options.linger_s
