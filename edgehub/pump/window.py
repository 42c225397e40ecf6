"""How much may be under way on one link, from what its confirmations show.

Owns the counts of what is in flight and the bounds on it; pure, time comes in as arguments
(monotonic seconds). The window bounds unconfirmed bytes; the threshold bounds bytes that have not
left the machine; the pace spreads what leaves over the round trip; the cap is an operator's. All
hold at once, to half a message of mean size; beyond that only a single message may pass them.

The window follows the wait that it causes itself, wherever that is: in this machine, in a modem, at
the peer. Once a round trip it is set so that the shortest confirmation takes `QUEUE_SHARE` of the
head-of-line allowance longer than over an empty link: then the link never runs empty, and an alarm
finds little before it. A window that is computed from the rate stays small for ever where
confirmations come later than one round trip, because a rate measured with it proves it right: a
broker without TCP_NODELAY holds them back for another one, and at 256 kbit/s and 600 ms 3 % of the
link were used.

Source: the control law is that of FAST TCP (Wei, Jin, Low, Hegde, IEEE/ACM Transactions on
Networking 14, 2006, section IV); search and pace follow BBR
(draft-cardwell-iccrg-bbr-congestion-control, sections 4.1 to 4.3).
"""

from __future__ import annotations

import math
from typing import Final

from edgehub.pump.budget import Budget
from edgehub.pump.delivery_rate import DeliveryRate, Flight
from edgehub.pump.round_trip import EmptyRoundTrip

FIRST_ROWS: Final = 4
"""Rows in flight before anything was measured."""

FIRST_BYTES: Final = 4096
"""Bytes that go with them: four large messages would block a thin link for minutes."""

QUEUE_SHARE: Final = 0.5
"""Of the head-of-line allowance, what stands in front of the link; the rest is for what one round
trip brings unforeseen."""

QUEUE_ROWS: Final = 1.5
"""What stands there on the thinnest links, where the share is less than a message."""

# Links let a burst through at once after a pause (shapers, modems), which would pass for a rate
# many times their own and put seconds of bytes in front of an alarm. So what arrived counts as
# having taken at least this share of the head-of-line allowance; and as much may leave at once.
SAMPLE_SHARE: Final = 0.2

PROBE_SHARE: Final = 0.5
"""Of what an empty link holds, what stays in flight while its round trip is measured anew: an alarm
still gets through."""

# What leaves in one piece because a bunch of confirmations came stands in front of the link, and
# comes back in a bunch.
PACE_GAIN: Final = 1.1
PACE_GAIN_GROWING: Final = 2.5
BUNCH_SHARE: Final = 0.1
"""Of the head-of-line allowance; round trips shorter than that bring no bunch that matters."""

# Until the rate grows no more, the window covers so many round trips, whatever confirmations wait
# for: where they are held back, growing is the only way to tell that wait from a queue.
SEARCH_GAIN: Final = 3.0
SEARCH_PROOF: Final = 1.25
SEARCH_ROUNDS: Final = 3
LAPSE: Final = 3
LAPSE_ROUNDS: Final = 3

_SHORT_SHARE: Final = 0.25
_DAMPING: Final = 0.5
_MEAN_SHARE: Final = 0.25
_INSTANT_S: Final = 1e-6
_NONE: Final = (0, 0)


class SendWindow:
    """The bounds of one link.

    Args:
        head_of_line_s: What a message of the best priority may wait behind bytes already chosen.
        rows_max: Rows in flight, whatever the link could take.
        bytes_max: Bytes in flight, whatever the link could take; bounds memory.
        cap_bytes_s: Bytes per second, whatever the link could take; infinite = no cap.
    """

    __slots__ = (
        "_alone",
        "_bytes",
        "_bytes_max",
        "_cap",
        "_flights",
        "_full_rate",
        "_full_rounds",
        "_head_of_line_s",
        "_low_rounds",
        "_pace",
        "_rate",
        "_round",
        "_round_ahead_bytes",
        "_round_ends_at",
        "_round_row_bytes",
        "_round_rtt_s",
        "_row_bytes",
        "_rows_max",
        "_rows_max_own",
        "_rows_max_peer",
        "_rtt",
        "_searching",
        "_turned_at",
        "_was_short",
        "in_flight_bytes",
        "in_flight_rows",
    )

    def __init__(
        self,
        *,
        head_of_line_s: float,
        rows_max: int,
        bytes_max: int,
        cap_bytes_s: float = math.inf,
    ) -> None:
        self._bytes_max = bytes_max
        self._cap = Budget()
        self.in_flight_rows = 0
        self.in_flight_bytes = 0
        self._rows_max_peer: int | None = None
        self._alone = False
        self._row_bytes = 1.0
        self.adjust(head_of_line_s=head_of_line_s, rows_max=rows_max, cap_bytes_s=cap_bytes_s)
        self.reset(None)

    def adjust(
        self, *, head_of_line_s: float, rows_max: int, cap_bytes_s: float = math.inf
    ) -> None:
        """Take over other bounds; what was measured stays."""
        assert head_of_line_s > 0, head_of_line_s
        assert rows_max >= 1, rows_max
        assert cap_bytes_s > 0, cap_bytes_s
        self._head_of_line_s = head_of_line_s
        self._rows_max_own = rows_max
        self._cap.change(cap_bytes_s, cap_bytes_s * head_of_line_s * SAMPLE_SHARE)
        self._bound_rows()

    def narrow(self, *, alone: bool) -> None:
        """Let rows leave one by one, whatever the link takes, or as many as it takes again."""
        self._alone = alone
        self._bound_rows()

    def reset(self, rows_max: int | None) -> None:
        """Start measuring anew: a new connection may run over another path.

        Args:
            rows_max: Unconfirmed rows that the peer allows, None = it did not say.
        """
        self._rows_max_peer = rows_max
        self._bound_rows()
        self._rate = DeliveryRate()
        self._rtt = EmptyRoundTrip()
        self._pace = Budget()
        self._flights = 0
        self._bytes = 0.0
        self._turned_at = 0.0
        self._round = 0
        self._round_ends_at = 0
        self._round_rtt_s = math.inf
        self._round_ahead_bytes = 0
        self._round_row_bytes = 1.0
        self._searching = True
        self._was_short = False
        self._full_rate = 0.0
        self._full_rounds = 0
        self._low_rounds = 0
        self._row_bytes = 1.0

    @property
    def rate_bytes_s(self) -> float | None:
        """Highest delivery rate of the last round trips in bytes per second, None = unmeasured."""
        return self._rate.bytes_s or None

    @property
    def cap_bytes_s(self) -> float | None:
        """Bytes per second that may leave, None = as many as the link takes."""
        return self._cap.rate if self._cap.is_bound else None

    @property
    def min_rtt_s(self) -> float | None:
        """Round trip over the empty link in seconds, None = unmeasured."""
        return self._rtt.seconds

    @property
    def window_bytes(self) -> int | None:
        """Bound on unconfirmed bytes, None = unmeasured (then `FIRST_ROWS` holds)."""
        return None if self._rtt.seconds is None else int(self._bytes)

    def room(self, now: float, unsent: int) -> tuple[int, int]:
        """Give the rows and bytes that may be chosen now; no rows = wait.

        Args:
            now: Monotonic seconds.
            unsent: Bytes handed over before that have not left the machine.
        """
        rows = self._rows_max - self.in_flight_rows
        capped = self._cap.available(now)
        if rows <= 0 or capped <= 0:
            return _NONE
        if self._rtt.seconds is None:
            rows = min(rows, FIRST_ROWS - self.in_flight_rows)
            room = FIRST_BYTES - self.in_flight_bytes
            return (rows, max(1, int(min(room, capped)))) if rows > 0 and room > 0 else _NONE
        self._rtt.look(now)
        share: float = min(
            self._window_now() - self.in_flight_bytes,
            self._threshold() - unsent,
            self._pace.available(now),
        )
        if share < self._row_bytes / 2 and self.in_flight_rows > 0:
            return _NONE
        # One message is always allowed, however large.
        return rows, max(1, int(min(share, capped, self._bytes_max)))

    def wait_s(self, now: float, unsent: int) -> float | None:
        """Give the seconds until there may be room without a confirmation, None = never.

        Neither the pace nor the cap gives an event, nor does a socket when its unsent bytes fall
        below a number; so the caller looks again after this time.
        """
        wait_s = self._cap.wait_s(now)
        if self._rtt.seconds is not None:
            excess = min(unsent, unsent + self._row_bytes / 2 - self._threshold())
            if excess > 0 and self._rate.bytes_s:
                wait_s = max(wait_s, excess / self._rate.bytes_s)
            if self._window_now() - self.in_flight_bytes >= self._row_bytes / 2:
                wait_s = max(wait_s, self._pace.wait_s(now))
        return wait_s if wait_s > 0 else None

    def sent(self, now: float, rows: int, size: int) -> Flight:
        """Count a batch that leaves now; keep the result with its rows."""
        if self._rtt.is_probed:
            self._rate.limit_by_app(self.in_flight_bytes)
        self._flights += 1
        flight = Flight(self._flights, now, row_bytes=size / rows, ahead_bytes=self.in_flight_bytes)
        flight.probes = self._rtt.is_probed
        self._rate.mark(flight, was_idle=self.in_flight_rows == 0)
        self.in_flight_rows += rows
        self.in_flight_bytes += size
        self._pace.spend(now, size)
        self._cap.spend(now, size)
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
        self._rate.limit_by_app(self.in_flight_bytes)

    def delivered(self, now: float, rows: int, size: int, latest: Flight) -> None:
        """Take the confirmations of one turn.

        Args:
            now: Monotonic seconds.
            rows: Rows confirmed.
            size: Their bytes on the link.
            latest: Flight of the confirmed row that was sent last.
        """
        self.lost(rows, size)
        rtt_s = max(now - latest.sent_at, _INSTANT_S)
        self._rtt.take(now, rtt_s, latest, flights=self._flights)
        if rtt_s < self._round_rtt_s:
            # The last one of a bunch of confirmations, and so the one that was held up least.
            self._round_rtt_s = rtt_s
            self._round_row_bytes = latest.row_bytes
            self._round_ahead_bytes = latest.ahead_bytes + latest.confirmed_bytes
        self._rate.take(
            now,
            size,
            latest,
            elapsed_min_s=self._head_of_line_s * SAMPLE_SHARE,
            life_s=(self._rtt.seconds or 0.0) + self._head_of_line_s,
            turn=self._round,
        )
        if latest.delivered >= self._round_ends_at:
            self._end_round()

    def _end_round(self) -> None:
        if self._round == 0:
            self._bytes = min(FIRST_ROWS * self._row_bytes, max(FIRST_BYTES, self._row_bytes))
        self._round += 1
        self._round_ends_at = self._rate.delivered
        self._search()
        grows = self._follow_queue()
        pace = math.inf
        if self._round_rtt_s > self._head_of_line_s * BUNCH_SHARE:
            pace = self._rate.bytes_s * (PACE_GAIN_GROWING if grows else PACE_GAIN)
        self._pace.change(pace, self._piece(pace))
        self._round_rtt_s = math.inf

    def _search(self) -> None:
        rate = self._rate.bytes_s
        self._low_rounds = self._low_rounds + 1 if rate < self._full_rate / LAPSE else 0
        if rate > self._full_rate * SEARCH_PROOF or self._low_rounds > LAPSE_ROUNDS:
            self._full_rate = rate
            self._full_rounds = self._low_rounds = 0
        else:
            self._full_rounds += 1
            self._full_rate = max(self._full_rate, rate)
        self._searching = self._full_rounds < SEARCH_ROUNDS

    def _follow_queue(self) -> bool:
        """Set the window by the round trip that has ended; tells whether it still grows fast."""
        assert self._rtt.seconds is not None
        rate = self._rate.bytes_s
        # A larger message takes longer over an empty link too.
        larger = max(0.0, self._round_row_bytes - self._rtt.row_bytes)
        empty_s = self._rtt.seconds + larger / max(rate, 1.0)
        queue_s = self._round_rtt_s - empty_s
        target_s = self._target_s()
        # What was in flight when this message left is what made it wait.
        ahead = self._round_ahead_bytes
        wanted = ahead * min(1.0, empty_s / self._round_rtt_s) + rate * target_s
        is_short = queue_s < target_s * _SHORT_SHARE
        if is_short and (self._searching or self._was_short):
            wanted = max(wanted, 2 * ahead)
        self._was_short = is_short
        if self._searching:
            wanted = max(wanted, rate * self._rtt.seconds * SEARCH_GAIN)
        if wanted >= self._bytes:
            self._bytes = min(wanted, self._bytes_max)
            self._turned_at = 0.0 if self._searching else self._bytes
        elif queue_s > target_s:
            self._bytes = max(self._row_bytes, self._bytes + (wanted - self._bytes) * _DAMPING)
            if self._bytes < self._turned_at / 2:
                # Half the window, and still a wait.
                self._turned_at = self._bytes
                self._rtt.doubt()
        return is_short or self._searching

    def _target_s(self) -> float:
        assert self._rtt.seconds is not None
        share_s = self._head_of_line_s * QUEUE_SHARE
        row_s = self._row_bytes / max(self._rate.bytes_s, 1.0)
        if self._rtt.seconds < 2 * row_s:
            return share_s
        return min(self._head_of_line_s, max(share_s, row_s * QUEUE_ROWS))

    def _window_now(self) -> float:
        if not self._rtt.is_probed:
            return self._bytes
        assert self._rtt.seconds is not None
        empty = self._rate.bytes_s * self._rtt.seconds * PROBE_SHARE
        return max(self._row_bytes, min(empty, self._bytes))

    def _piece(self, rate: float) -> float:
        return max(self._row_bytes, rate * self._head_of_line_s * SAMPLE_SHARE)

    def _threshold(self) -> float:
        # Never less than a message, or a slow start could not send the second one.
        return max(self._row_bytes, self._rate.bytes_s * self._head_of_line_s)

    def _bound_rows(self) -> None:
        own, peer = self._rows_max_own, self._rows_max_peer
        self._rows_max = own if peer is None else max(1, min(own, peer))
        if self._alone:
            self._rows_max = 1
