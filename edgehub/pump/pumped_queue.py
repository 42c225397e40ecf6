"""The pump's state of one queue: its pause, and the results of its rows in this turn.

Owns the queue's throttle and latencies, and the lists that turn many results into one call of the
queue. Invariant: a row read from the queue is returned to it by exactly one of these lists.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct, field

from edgehub.pump.latency import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgehub.endpoints.backoff import Backoff
    from edgehub.message import FailureKind, Row
    from edgehub.pump.delivery_rate import Flight
    from edgehub.pump.queue import PumpQueue

    Sent = tuple[Row, "PumpedQueue", int, Flight]
    """A row, its queue, its bytes on the link, the flight it left with."""


class PumpedQueue(Struct, eq=False):
    """The state of one queue.

    Attributes:
        queue: The queue.
        throttle: Pauses after refusals of it as a whole.
        creation_failed: Called with a creation that becomes a dead letter, and the reason.
        delayed_until: Monotonic time before which it waits as a whole.
        holds: Senders and rows of it that are held back.
        served_at: Monotonic time at which rows were handed over last, None = not yet.
        lingers_until: Monotonic time before which its rows wait for more rows.
        waits_since: Monotonic time since which it has had rows and got no batch, infinite = it has
            none; kept only with ageing.
    """

    queue: PumpQueue
    throttle: Backoff
    creation_failed: Callable[[Row, str], None]
    delayed_until: float = 0.0
    holds: int = 0
    served_at: float | None = None
    waits_since: float = math.inf
    lingers_until: float = 0.0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    confirmed: list[Row] = []
    returned: dict[tuple[bool, str | None], list[Row]] = {}
    expired: list[Row] = []

    def unserved_s(self, now: float) -> float | None:
        """Return the seconds since rows were handed over last, None = not yet."""
        return None if self.served_at is None else now - self.served_at

    def put_back(
        self, row: Row, now_ms: int, *, attempted: bool, refusal: str | None = None
    ) -> bool:
        """Return a row that was not delivered; False when its time is up and it expires instead.

        Args:
            row: The row.
            now_ms: Hub time.
            attempted: It counts as a refused send.
            refusal: Why it was refused for now, None = it was not.
        """
        if row.expires_ms <= now_ms:
            self.expired.append(row)
            return False
        self.returned.setdefault((attempted, refusal), []).append(row)
        return True

    def dead_letter(self, row: Row, kind: FailureKind, reason: str) -> None:
        """Make a row a dead letter, and notify what depends on it."""
        self.queue.dead_letter(row, kind, reason)
        if row.creation:
            self.creation_failed(row, reason)

    def flush(self) -> None:
        """Return the turn's rows to the queue, one call for each kind."""
        queue = self.queue
        if self.confirmed:
            queue.confirm(self.confirmed)
            self.confirmed = []
        if self.returned:
            for (attempted, refusal), rows in self.returned.items():
                queue.give_back(rows, attempted=attempted, refusal=refusal)
            self.returned = {}
        if self.expired:
            queue.expire(self.expired)
            self.expired = []
