"""When an endpoint's backlog will be empty, from how fast it shrinks.

Owns a minute of samples per endpoint; costs the message path nothing, since the totals are kept
anyway. Arrivals and expiry are in the figure, because both change the backlog.
Invariant: nothing is said over a span in which the link was down.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgehub.clock import Clock
    from edgehub.message import EndpointId

SAMPLE_S: Final = 5.0
SPAN_S: Final = 60.0


class DrainForecast:
    """The backlog of each endpoint over the last minute.

    Args:
        clock: Timers.
        waiting: Gives the bytes that wait for each endpoint whose link is up.
    """

    __slots__ = ("_clock", "_samples", "_waiting")

    def __init__(self, clock: Clock, waiting: Callable[[], Mapping[EndpointId, int]]) -> None:
        self._clock = clock
        self._waiting = waiting
        self._samples: dict[EndpointId, deque[tuple[float, int]]] = {}

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self._take()
            await self._clock.sleep(SAMPLE_S)

    def seconds(self) -> dict[EndpointId, float]:
        """Return the seconds until nothing waits, for each endpoint of which that can be said.

        One whose backlog does not shrink has no such time, nor has one that is not connected.
        """
        now = self._clock.monotonic()
        found: dict[EndpointId, float] = {}
        for endpoint_id, waiting in self._waiting().items():
            if waiting == 0:
                found[endpoint_id] = 0.0
                continue
            samples = self._samples.get(endpoint_id)
            if not samples:
                continue
            began, before = samples[0]
            span_s, sent = now - began, before - waiting
            if span_s >= SAMPLE_S and sent > 0:
                found[endpoint_id] = waiting * span_s / sent
        return found

    def _take(self) -> None:
        now = self._clock.monotonic()
        waiting = self._waiting()
        for endpoint_id in self._samples.keys() - waiting.keys():
            del self._samples[endpoint_id]
        for endpoint_id, size in waiting.items():
            samples = self._samples.setdefault(endpoint_id, deque())
            samples.append((now, size))
            while now - samples[0][0] > SPAN_S:
                samples.popleft()
