"""Which queue of an endpoint is next: the best one that has rows, or one that ageing has made due.

Owns the turns between the two. Invariants: without ageing the best queue is always next; with it, a
due queue gets one batch and the next batch is the best queue's again. Hence a queue that has rows
is passed by at most 2n batches, n = number of queues, once it is due (docs/endpoints.md, *Ageing*).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edgehub.message import BEST_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from edgehub.pump.lane import Lane


class Choice:
    """See the module.

    Attributes:
        aging_s: A queue with rows that got no batch for so long is due; 0 = never.
        linger_s: See `PumpOptions`.
    """

    __slots__ = ("_aged_last", "aging_s", "linger_s")

    def __init__(self, aging_s: float, linger_s: float = 0.0) -> None:
        self.aging_s = aging_s
        self.linger_s = linger_s
        self._aged_last = False

    def next(
        self, lanes: Sequence[Lane], now: float, passed: Collection[Lane]
    ) -> tuple[Lane | None, float]:
        """Choose.

        Args:
            lanes: Best priority first.
            now: Monotonic seconds.
            passed: Lanes that turned out to have nothing in this turn.

        Returns:
            The lane, None = none has rows; and when to look again, infinite = no need to.
        """
        look_at = math.inf
        best: Lane | None = None
        due: Lane | None = None
        for lane in lanes:
            wait_until = max(lane.delayed_until, lane.lingers_until)
            if wait_until > now:
                look_at = min(look_at, wait_until)
                continue
            if lane in passed or not lane.queue.has_ready():
                continue
            best = best or lane
            if not self.aging_s:
                break
            lane.waits_since = min(lane.waits_since, now)
            is_due = now - lane.waits_since >= self.aging_s
            if is_due and (due is None or lane.waits_since < due.waits_since):
                due = lane
        self._aged_last = due is not None and due is not best and not self._aged_last
        return (due if self._aged_last else best), look_at

    def took(self, lane: Lane, now: float) -> None:
        """Note that rows of a lane were handed over."""
        lane.served_at = now
        if lane.queue.has_ready():
            lane.waits_since = now
        else:
            lane.waits_since = math.inf
            if lane.queue.priority > BEST_PRIORITY:
                lane.lingers_until = now + self.linger_s
