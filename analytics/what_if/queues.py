"""The queues of a simulation: rows that came together, in their order.

Pure Python. Invariant: a queue's rows and bytes are those of its rows that still wait.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from analytics.what_if.recorded import Arrival

NEVER_MS: Final = 2**62


class Treatment(NamedTuple):
    """How rows are treated: their priority and time to live, and recency."""

    priority: int
    ttl_ms: int | None
    recency_ms: int | None = None
    fallback: int = 0


class Outcome:
    """What became of the rows of some routes."""

    __slots__ = ("expired", "removed", "sent", "waited_ms", "waiting")

    def __init__(self) -> None:
        self.sent = self.expired = self.removed = self.waiting = 0
        self.waited_ms = 0.0
        """Sum over the rows that were sent."""


class WaitingRows:
    """Rows that came together and still wait."""

    __slots__ = (
        "at_ms",
        "expires_ms",
        "fallback",
        "fresh_until_ms",
        "outcome",
        "row_bytes",
        "rows",
    )

    def __init__(self, arrival: Arrival, lane: Lane) -> None:
        self.at_ms, _, self.rows, self.row_bytes = arrival
        self.expires_ms = self.at_ms + lane.ttl_ms
        self.fresh_until_ms = self.at_ms + lane.recency_ms
        self.fallback = lane.fallback
        self.outcome = lane.outcome


class SimulatedQueue:
    """Rows of one priority: those that joined it, and those that became too old for another.

    Attributes:
        priority: Its priority.
        own: Rows that joined it, the oldest first.
        demoted: Rows that came from another queue, the oldest first.
        rows: That wait in both.
        bytes: Of the same.
    """

    __slots__ = ("bytes", "demoted", "own", "priority", "rows")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.own: deque[WaitingRows] = deque()
        self.demoted: deque[WaitingRows] = deque()
        self.rows = 0
        self.bytes = 0.0

    def join(self, rows: WaitingRows, *, is_demoted: bool = False) -> None:
        """Add rows as the last ones."""
        (self.demoted if is_demoted else self.own).append(rows)
        self.rows += rows.rows
        self.bytes += rows.rows * rows.row_bytes

    def oldest(self) -> deque[WaitingRows]:
        """Return the one of both whose first rows are the older ones."""
        own, demoted = self.own, self.demoted
        if not demoted or (own and own[0].at_ms <= demoted[0].at_ms):
            return own
        return demoted

    def take(self, head: WaitingRows, count: int) -> None:
        """Remove so many rows of those that came together."""
        head.rows -= count
        self.rows -= count
        self.bytes -= count * head.row_bytes


class Lane:
    """Where rows of a cohort go in a scenario, for how long, and what becomes of them.

    Attributes:
        queue: That they join.
        ttl_ms: Their time to live.
        recency_ms: After which they go to the queue of the priority `fallback`.
        fallback: See above.
        outcome: What became of them, and of others with the same routes.
    """

    __slots__ = ("fallback", "outcome", "queue", "recency_ms", "ttl_ms")

    def __init__(self, queue: SimulatedQueue, treatment: Treatment, outcome: Outcome) -> None:
        ttl_ms, recency_ms = treatment.ttl_ms, treatment.recency_ms
        self.queue = queue
        self.ttl_ms = NEVER_MS if ttl_ms is None else ttl_ms
        self.recency_ms = NEVER_MS if recency_ms is None else recency_ms
        self.fallback = treatment.fallback
        self.outcome = outcome
