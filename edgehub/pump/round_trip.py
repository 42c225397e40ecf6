"""The round trip over an empty link: the lowest one of the last minute.

Pure, time comes in as arguments (monotonic seconds). When none as low was seen for a minute, so
little is kept in flight for one round trip that nothing waits for the link, and the lowest of these
round trips counts: otherwise our own queue would be measured as distance.

Source: as the round trip probe of draft-cardwell-iccrg-bbr-congestion-control, section 4.3.4.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.pump.delivery_rate import Flight

LIFE_S: Final = 60.0


class EmptyRoundTrip(Struct, eq=False):
    """The round trip of one connection.

    Attributes:
        seconds: None = unmeasured.
        row_bytes: Size of the message that took it.
        is_probed: Little may be in flight now.
    """

    seconds: float | None = None
    row_bytes: float = 1.0
    is_probed: bool = False
    _seen_at: float = 0.0
    _probe_ends_after: int = 0
    _probe_s: float = math.inf
    _probe_row_bytes: float = 1.0

    def look(self, now: float) -> bool:
        """Start a probe if one is due; return whether little may be in flight now."""
        if not self.is_probed and now - self._seen_at > LIFE_S:
            self.is_probed = True
            self._probe_ends_after = 0
            self._probe_s = math.inf
        return self.is_probed

    def doubt(self) -> None:
        """Probe as soon as possible: the path may have become longer."""
        self._seen_at = -math.inf

    def take(self, now: float, rtt_s: float, flight: Flight, *, flights: int) -> None:
        """Record a round trip.

        Args:
            now: Monotonic seconds.
            rtt_s: What it took.
            flight: Which batch.
            flights: Number of the last batch that was sent.
        """
        if self.is_probed and flight.probes:
            self._take_probe(now, rtt_s, flight, flights)
        elif self.seconds is None or rtt_s <= self.seconds:
            self.seconds = rtt_s
            self.row_bytes = flight.row_bytes
            self._seen_at = now

    def _take_probe(self, now: float, rtt_s: float, flight: Flight, flights: int) -> None:
        if rtt_s < self._probe_s:
            self._probe_s = rtt_s
            self._probe_row_bytes = flight.row_bytes
        if self._probe_ends_after == 0:
            # A whole round trip from here on: the first confirmation may have been held up.
            self._probe_ends_after = flights
        elif flight.number > self._probe_ends_after:
            self.is_probed = False
            self.seconds = self._probe_s
            self.row_bytes = self._probe_row_bytes
            self._seen_at = now
