"""Limits of queues, and which rows give way at them.

Pure Python. The rules are the store's: expired rows go first, then by the policy; `bytes` of a row
are what the limits count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from analytics.what_if.queues import SimulatedQueue, WaitingRows

BY_VALUE, DROP_OLDEST, DROP_NEWEST = "by_value", "drop_oldest", "drop_newest"
OVERFLOWS: Final = (BY_VALUE, DROP_OLDEST, DROP_NEWEST)


class SimulatedLimits(NamedTuple):
    """Limits in force, 0 = none; see the settings of `[store]`."""

    rows_max: int = 0
    bytes_max: int = 0
    queue_rows_max: int = 0
    queue_bytes_max: int = 0
    overflow: str = BY_VALUE

    def admitted(
        self, queues: Mapping[int, SimulatedQueue], queue: SimulatedQueue, row_bytes: float
    ) -> float:
        """Return how many rows of a size may join a queue without any that gives way."""
        rows = sum(each.rows for each in queues.values()) if self.rows_max else 0
        size = sum(each.bytes for each in queues.values()) if self.bytes_max else 0.0
        rooms = [
            (self.rows_max, rows, 1.0),
            (self.bytes_max, size, row_bytes),
            (self.queue_rows_max, queue.rows, 1.0),
            (self.queue_bytes_max, queue.bytes, row_bytes),
        ]
        found = [max(0.0, (most - taken) // each) for most, taken, each in rooms if most]
        return min(found, default=math.inf)

    def make_room(
        self,
        queues: Mapping[int, SimulatedQueue],
        newcomer: SimulatedQueue,
        drop_expired: Callable[[SimulatedQueue], None],
    ) -> None:
        """Remove rows until all limits hold again.

        Args:
            queues: All queues by priority.
            newcomer: The queue that rows have just joined.
            drop_expired: Removes the expired rows at the head of a queue.
        """
        if self._excess(newcomer.rows, newcomer.bytes, self.queue_rows_max, self.queue_bytes_max):
            drop_expired(newcomer)
            while excess := self._excess(
                newcomer.rows, newcomer.bytes, self.queue_rows_max, self.queue_bytes_max
            ):
                _drop(newcomer, excess)
        if not (self.rows_max or self.bytes_max):
            return
        while excess := self._excess_of_all(queues):
            for queue in queues.values():
                drop_expired(queue)
            excess = self._excess_of_all(queues)
            if not excess:
                return
            full = [queue for queue in queues.values() if queue.rows]
            if self.overflow == DROP_OLDEST:
                _drop(min(full, key=lambda queue: queue.oldest()[0].at_ms), excess)
            else:
                # Never one of a better priority: at worst the newcomer's own oldest rows.
                _drop(max(full, key=lambda queue: queue.priority), excess)

    def _excess_of_all(self, queues: Mapping[int, SimulatedQueue]) -> tuple[int, float] | None:
        rows = sum(queue.rows for queue in queues.values())
        size = sum(queue.bytes for queue in queues.values())
        return self._excess(rows, size, self.rows_max, self.bytes_max)

    @staticmethod
    def _excess(rows: int, size: float, rows_max: int, bytes_max: int) -> tuple[int, float] | None:
        """Return rows and bytes above a limit, None = none."""
        over = max(0, rows - rows_max) if rows_max else 0
        # Sums of sizes are rounded.
        over_bytes = max(0.0, size - bytes_max - 1e-3) if bytes_max else 0.0
        return (over, over_bytes) if over or over_bytes else None


def _drop(queue: SimulatedQueue, excess: tuple[int, float]) -> None:
    """Remove the oldest rows of a queue, of those that came together as many as are too much."""
    waiting = queue.oldest()
    head: WaitingRows = waiting[0]
    count = min(head.rows, max(excess[0], math.ceil(excess[1] / head.row_bytes)))
    queue.take(head, count)
    head.outcome.removed += count
    if not head.rows:
        waiting.popleft()
