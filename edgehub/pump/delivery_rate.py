"""How many bytes a second a link delivers, from what was confirmed while each batch was under way.

Owns the samples; pure, time comes in as arguments (monotonic seconds). Invariant: a sample taken
while there was too little to send never lowers the rate.

Source: draft-cheng-iccrg-delivery-rate-estimation.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct, field

RATE_ROUNDS: Final = 4
"""The highest sample of so many round trips counts."""

_INSTANT_S: Final = 1e-6


class Flight(Struct, eq=False, kw_only=True):
    """State of the link when one batch was sent; its confirmation is a sample of the rate.

    Attributes:
        number: Of the batch, from 1 on each connection.
        sent_at: Monotonic seconds.
        row_bytes: Mean size of its rows.
        ahead_bytes: In flight when it was sent.
        confirmed_bytes: Confirmed of it so far; the pump counts them.
        probes: Sent while the empty round trip was measured.
        apart_s: Seconds until the next batch was sent, 0 = none was.
    """

    number: int
    sent_at: float
    row_bytes: float
    ahead_bytes: int
    confirmed_bytes: int = 0
    probes: bool = False
    apart_s: float = 0.0
    delivered: int = 0
    delivered_at: float = 0.0
    first_sent_at: float = 0.0
    app_limited: bool = False


class DeliveryRate(Struct, eq=False):
    """The delivery rate of one connection.

    Attributes:
        bytes_s: The rate, 0 = unmeasured.
        delivered: Bytes confirmed on this connection.
    """

    bytes_s: float = 0.0
    delivered: int = 0
    _delivered_at: float = 0.0
    _first_sent_at: float = 0.0
    _app_limited_until: int = 0
    _samples: deque[tuple[int, float, float]] = field(default_factory=deque)
    """Round trip, monotonic time and rate, with falling rates."""

    def mark(self, flight: Flight, *, was_idle: bool) -> None:
        """Record the present state in a batch that is sent."""
        if was_idle:
            # After silence the clock of the samples starts with this batch.
            self._first_sent_at = self._delivered_at = flight.sent_at
        flight.delivered = self.delivered
        flight.delivered_at = self._delivered_at
        flight.first_sent_at = self._first_sent_at
        flight.app_limited = self._app_limited_until > 0

    def limit_by_app(self, in_flight_bytes: int) -> None:
        """Record that demand, not the link, limits what is in flight."""
        self._app_limited_until = max(1, self.delivered + in_flight_bytes)

    def take(
        self,
        now: float,
        size: int,
        latest: Flight,
        *,
        elapsed_min_s: float,
        life_s: float,
        turn: int,
    ) -> None:
        """Update the rate by what was confirmed.

        Args:
            now: Monotonic seconds.
            size: Bytes confirmed.
            latest: Flight of the confirmed row that was sent last.
            elapsed_min_s: What arrived counts as having taken at least this long.
            life_s: How long a round trip may take; a sample counts for `RATE_ROUNDS` of them.
            turn: Number of the round trip.
        """
        self.delivered += size
        self._delivered_at = now
        self._first_sent_at = latest.sent_at
        if self._app_limited_until and self.delivered > self._app_limited_until:
            self._app_limited_until = 0
        # The slower of both directions counts: confirmations that come in a bunch prove nothing.
        elapsed = max(
            now - latest.delivered_at,
            latest.sent_at - latest.first_sent_at,
            elapsed_min_s,
            _INSTANT_S,
        )
        rate = (self.delivered - latest.delivered) / elapsed
        if latest.app_limited and rate < self.bytes_s:
            return
        samples = self._samples
        while samples and samples[-1][2] <= rate:
            samples.pop()
        samples.append((turn, now, rate))
        # A round trip lasts as long as the window says, also while an old window that was too
        # large drains: counted in rounds alone, a link that became 16 times slower would be
        # remembered as fast for minutes.
        oldest_at = now - RATE_ROUNDS * life_s
        while samples[0][0] <= turn - RATE_ROUNDS or samples[0][1] < oldest_at:
            samples.popleft()
        self.bytes_s = samples[0][2]
