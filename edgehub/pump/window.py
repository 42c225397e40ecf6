"""How much may be under way on one link: two bounds from measured rate and round trip.

Owns the estimates and the counts of what is in flight; pure, time comes in as arguments (monotonic
seconds). The window bounds unconfirmed bytes and keeps the link full; the threshold bounds bytes
that have not left the machine, so that a newcomer of a better priority waits for little. Both hold
at once, to half a message of mean size; beyond that only a single message may pass them, or a few
while nothing waits unsent.

Source: the delivery rate samples, the app-limited rule and the round trip probe follow BBR
(draft-cardwell-iccrg-bbr-congestion-control, sections 4.1 and 4.3.4;
draft-cheng-iccrg-delivery-rate-estimation).
"""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_ROWS: Final = 4
"""Rows in flight before anything was measured."""

FIRST_BYTES: Final = 4096
"""Bytes that go with them: four large messages would block a thin link for minutes."""

RATE_ROUNDS: Final = 10
MIN_RTT_LIFE_S: Final = 60.0

# On links so long that the head-of-line allowance is a small part of the round trip, the window
# must still exceed the pipe by a quarter, or a faster link would never show in the samples.
PROBE_GAIN: Final = 1.25

# Links let a burst through at once after a pause (shapers, modems), which would pass for a rate
# many times their own and put seconds of bytes in front of an alarm. So what arrived counts as
# having taken at least this share of the head-of-line allowance; the window still grows fivefold
# a round trip on a link that is fast.
SAMPLE_SHARE: Final = 0.2

_NONE: Final = (0, 0)
_INSTANT_S: Final = 1e-6
_MEAN_SHARE: Final = 0.25


class Flight:
    """State of the link at the moment when one batch left; its confirmation gives a sample."""

    __slots__ = (
        "app_limited",
        "delivered",
        "delivered_at",
        "first_sent_at",
        "number",
        "sent_at",
    )

    def __init__(
        self,
        number: int,
        sent_at: float,
        delivered: int,
        delivered_at: float,
        first_sent_at: float,
        app_limited: bool,
    ) -> None:
        self.number = number
        self.sent_at = sent_at
        self.delivered = delivered
        self.delivered_at = delivered_at
        self.first_sent_at = first_sent_at
        self.app_limited = app_limited


class SendWindow:
    """The two bounds of one link.

    Args:
        head_of_line_s: What a message of the best priority may wait behind bytes already chosen.
        rows_max: Rows in flight, whatever the link could take.
        bytes_max: Bytes in flight, whatever the link could take; bounds memory.
    """

    __slots__ = (
        "_app_limited_until",
        "_bytes_max",
        "_delivered",
        "_delivered_at",
        "_first_sent_at",
        "_flights",
        "_head_of_line_s",
        "_min_rtt_at",
        "_min_rtt_s",
        "_probe_flight",
        "_probing",
        "_rate",
        "_rates",
        "_round",
        "_round_ends_at",
        "_row_bytes",
        "_rows_max",
        "_rows_max_own",
        "_rows_max_peer",
        "in_flight_bytes",
        "in_flight_rows",
    )

    def __init__(self, *, head_of_line_s: float, rows_max: int, bytes_max: int) -> None:
        assert head_of_line_s > 0, head_of_line_s
        assert rows_max >= 1, rows_max
        self._head_of_line_s = head_of_line_s
        self._rows_max_own = rows_max
        self._bytes_max = bytes_max
        self.in_flight_rows = 0
        self.in_flight_bytes = 0
        self.reset(None)

    def adjust(self, *, head_of_line_s: float, rows_max: int) -> None:
        """Take over other bounds; what was measured stays."""
        assert head_of_line_s > 0, head_of_line_s
        assert rows_max >= 1, rows_max
        self._head_of_line_s = head_of_line_s
        self._rows_max_own = rows_max
        self._bound_rows()

    def reset(self, rows_max: int | None) -> None:
        """Start measuring anew: a new connection may run over another path.

        Args:
            rows_max: Unconfirmed rows that the peer allows, None = it did not say.
        """
        self._rows_max_peer = rows_max
        self._bound_rows()
        self._rate = 0.0
        self._rates: deque[tuple[int, float, float]] = deque()
        self._round = 0
        self._round_ends_at = 0
        self._min_rtt_s: float | None = None
        self._min_rtt_at = 0.0
        self._probing = False
        self._probe_flight = 0
        self._flights = 0
        self._delivered = 0
        self._delivered_at = 0.0
        self._first_sent_at = 0.0
        self._app_limited_until = 0
        self._row_bytes = 1.0

    @property
    def rate_bytes_s(self) -> float | None:
        """Highest delivery rate of the last round trips in bytes per second, None = unmeasured."""
        return self._rate or None

    @property
    def min_rtt_s(self) -> float | None:
        """Lowest round trip of the last minute in seconds, None = unmeasured."""
        return self._min_rtt_s

    @property
    def window_bytes(self) -> int | None:
        """Bound on unconfirmed bytes, None = unmeasured (then `FIRST_ROWS` holds)."""
        if self._min_rtt_s is None:
            return None
        span_s = max(self._min_rtt_s + self._head_of_line_s, self._min_rtt_s * PROBE_GAIN)
        return min(self._bytes_max, max(1, int(self._rate * span_s)))

    def room(self, now: float, unsent: int) -> tuple[int, int]:
        """Give the rows and bytes that may be chosen now; no rows = wait.

        Args:
            now: Monotonic seconds.
            unsent: Bytes handed over before that have not left the machine.
        """
        rows = self._rows_max - self.in_flight_rows
        window = self.window_bytes
        if rows <= 0:
            return _NONE
        if window is None:
            rows = min(rows, FIRST_ROWS - self.in_flight_rows)
            room = FIRST_BYTES - self.in_flight_bytes
            return (rows, room) if rows > 0 and room > 0 else _NONE
        if self._probing or now - self._min_rtt_at > MIN_RTT_LIFE_S:
            return self._probe(window)
        room = min(window - self.in_flight_bytes, self._threshold() - unsent)
        if self.in_flight_rows == 0:
            # One message is always allowed, however large.
            return rows, max(room, 1)
        if room < self._row_bytes / 2 and (unsent or self.in_flight_rows >= FIRST_ROWS):
            # With nothing unsent a few rows may pass the window: one that lets a single message
            # through a long round trip would never see samples that make it grow.
            return _NONE
        return rows, max(room, 1)

    def unsent_wait_s(self, unsent: int) -> float | None:
        """Give the seconds until enough bytes should have left; None = they are not what blocks.

        A socket gives no event when its unsent bytes fall below a number, so the caller looks
        again after this time.
        """
        if self._rate == 0 or self._probing:
            return None
        excess = min(unsent, unsent + self._row_bytes / 2 - self._threshold())
        return excess / self._rate if excess > 0 else None

    def sent(self, now: float, rows: int, size: int) -> Flight:
        """Count a batch that leaves now; keep the result with its rows."""
        if self.in_flight_rows == 0:
            # After silence the clock of the samples starts with this batch.
            self._first_sent_at = self._delivered_at = now
        if self._probing:
            self._limit_by_app()
        self._flights += 1
        self._probe_flight = self._flights if self._probing else 0
        flight = Flight(
            self._flights,
            now,
            self._delivered,
            self._delivered_at,
            self._first_sent_at,
            self._app_limited_until > 0,
        )
        self.in_flight_rows += rows
        self.in_flight_bytes += size
        self._row_bytes += (size / rows - self._row_bytes) * _MEAN_SHARE
        return flight

    def lost(self, rows: int, size: int) -> None:
        """Take rows out of flight that were not delivered."""
        self.in_flight_rows -= rows
        self.in_flight_bytes -= size
        assert self.in_flight_rows >= 0
        assert self.in_flight_bytes >= 0

    def ran_dry(self) -> None:
        """Note that there was room but nothing to send: samples now show demand, not the link."""
        self._limit_by_app()

    def delivered(self, now: float, rows: int, size: int, latest: Flight) -> None:
        """Take the confirmations of one turn.

        Args:
            now: Monotonic seconds.
            rows: Rows confirmed.
            size: Their bytes on the link.
            latest: Flight of the confirmed row that was sent last.
        """
        self.lost(rows, size)
        self._delivered += size
        self._delivered_at = now
        self._first_sent_at = latest.sent_at
        if self._app_limited_until and self._delivered > self._app_limited_until:
            self._app_limited_until = 0
        self._take_rtt(now, latest)
        if latest.delivered >= self._round_ends_at:
            self._round += 1
            self._round_ends_at = self._delivered
        # The slower of both directions counts: confirmations that come in a bunch prove nothing.
        elapsed = max(
            now - latest.delivered_at,
            latest.sent_at - latest.first_sent_at,
            self._head_of_line_s * SAMPLE_SHARE,
            _INSTANT_S,
        )
        self._take_rate(now, (self._delivered - latest.delivered) / elapsed, latest.app_limited)

    def _take_rtt(self, now: float, latest: Flight) -> None:
        rtt_s = max(now - latest.sent_at, _INSTANT_S)
        if self._probing and latest.number == self._probe_flight:
            # Sent alone into an empty pipe: whatever it took is the truth of today.
            self._probing = False
            self._min_rtt_s = rtt_s
            self._min_rtt_at = now
        elif self._min_rtt_s is None or rtt_s <= self._min_rtt_s:
            self._min_rtt_s = rtt_s
            self._min_rtt_at = now

    def _take_rate(self, now: float, rate: float, app_limited: bool) -> None:
        if app_limited and rate < self._rate:
            return
        rates = self._rates
        while rates and rates[-1][2] <= rate:
            rates.pop()
        rates.append((self._round, now, rate))
        # A round trip lasts as long as the window says, also while an old window that was too
        # large drains: counted in rounds alone, a link that became 16 times slower would be
        # remembered as fast for minutes.
        oldest_at = now - RATE_ROUNDS * ((self._min_rtt_s or 0.0) + self._head_of_line_s)
        while rates[0][0] <= self._round - RATE_ROUNDS or rates[0][1] < oldest_at:
            rates.popleft()
        self._rate = rates[0][2]

    def _probe(self, window: int) -> tuple[int, int]:
        self._probing = True
        return _NONE if self.in_flight_rows else (1, window)

    def _threshold(self) -> int:
        # Never less than a message, or a slow start could not send the second one.
        return int(max(self._row_bytes, self._rate * self._head_of_line_s))

    def _bound_rows(self) -> None:
        own, peer = self._rows_max_own, self._rows_max_peer
        self._rows_max = own if peer is None else max(1, min(own, peer))

    def _limit_by_app(self) -> None:
        self._app_limited_until = max(1, self._delivered + self.in_flight_bytes)
