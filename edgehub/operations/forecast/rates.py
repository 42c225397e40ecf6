"""How fast each queue fills: totals of the queues, looked at from time to time.

Owns a few minutes of samples; costs the message path nothing, since the totals are kept anyway.
Invariant: a rate is given only over a span that was really measured.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.message import QueueId

SAMPLE_S: Final = 10.0
SPAN_S: Final = 300.0


class Rate(Struct, frozen=True, kw_only=True):
    """What one queue took in on average.

    Attributes:
        rows_s: Rows per second.
        bytes_s: Bytes per second, as the store counts them.
        measured_s: Over how many seconds.
    """

    rows_s: float
    bytes_s: float
    measured_s: float


class QueueRates:
    """The rates of all queues.

    Args:
        clock: Timers.
        totals: Gives rows and bytes stored since start, by queue.
    """

    __slots__ = ("_clock", "_samples", "_totals")

    def __init__(
        self, clock: Clock, totals: Callable[[], Mapping[QueueId, tuple[int, int]]]
    ) -> None:
        self._clock = clock
        self._totals = totals
        self._samples: deque[tuple[float, Mapping[QueueId, tuple[int, int]]]] = deque()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self._take()
            await self._clock.sleep(SAMPLE_S)

    def rates(self, over_s: float = SPAN_S) -> dict[QueueId, Rate]:
        """Return the rates of the last minutes, or seconds; empty before the first span."""
        now = self._clock.monotonic()
        if not self._samples:
            return {}
        within = [sample for sample in self._samples if now - sample[0] <= over_s]
        began, before = within[0] if within else self._samples[-1]
        span_s = now - began
        if span_s < SAMPLE_S:
            return {}
        rates: dict[QueueId, Rate] = {}
        for queue_id, (rows, size) in self._totals().items():
            # A queue that was not there yet had taken in nothing.
            rows_before, size_before = before.get(queue_id, (0, 0))
            rates[queue_id] = Rate(
                rows_s=(rows - rows_before) / span_s,
                bytes_s=(size - size_before) / span_s,
                measured_s=span_s,
            )
        return rates

    def _take(self) -> None:
        now = self._clock.monotonic()
        self._samples.append((now, dict(self._totals())))
        while now - self._samples[0][0] > SPAN_S:
            self._samples.popleft()
