"""How much may be in flight on one link, measured by its confirmations.

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
from typing import TYPE_CHECKING, Final

from edgehub.pump.delivery_rate import DeliveryRate, Flight
from edgehub.pump.round_trip import EmptyRoundTrip
from edgehub.pump.token_bucket import TokenBucket

if TYPE_CHECKING:
    from edgehub.pump.options import PumpOptions

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
"""Of what an empty link holds, what stays in flight while its round trip is measured again: an
alarm still gets through."""

# What leaves in one piece because a bunch of confirmations came stands in front of the link, and
# comes back in a bunch.
PACE_GAIN: Final = 1.1
PACE_GAIN_GROWING: Final = 2.5
BUNCH_SHARE: Final = 0.1
"""Of the head-of-line allowance; round trips shorter than that bring no bunch that matters."""

SEARCH_ROWS: Final = 3
"""Rows in flight, at least, until the rate grows no more: with so many, confirmations that are held
back come in bunches."""
HELD_GAIN: Final = 3.0
"""Where they do, the window covers so many round trips until then: growing is the only way to tell
that wait from a queue."""
FILL_GAIN: Final = 2.0
"""Where they do not, it grows as long as none waits, to so many."""
FILL_GAIN_THIN: Final = 1.5
FILL_ROWS_SPARED: Final = 4
"""Less while the link holds few rows: each that is too many takes long, and TCP sends those again
whose round trip grows at a stroke."""
SEARCH_PROOF: Final = 1.25
SEARCH_ROUNDS: Final = 3
LAPSE: Final = 3
LAPSE_ROUNDS: Final = 3

GROWTH: Final = 1.3
"""By how much more each further round trip without a wait makes the window grow, up to twice."""
GROWTH_ROUNDS: Final = 4
"""The round trip in which it is twice; more are not counted, there may be thousands a minute."""

PAYLOAD_BYTES: Final = 800
"""Where rows share payloads, so much goes at once on the thinnest links; less does not compress."""
PAYLOAD_SHARE: Final = 0.75
"""Of that, and of a payload on a long way, what counts: some rows were sent alone in that time."""
PIECE_IN_WINDOW: Final = 0.33
LONG_WAY_SHARE: Final = 0.25
"""Of the head-of-line allowance; a way longer than that has to hold a payload by itself."""

WAYS: Final = 2
"""Of what the empty link holds, what a payload may add to the window."""

_SHORT_SHARE: Final = 0.25
_DAMPING: Final = 0.5
_BUNCH_HELD_SHARE: Final = 0.5
_MEAN_SHARE: Final = 0.25
_INSTANT_S: Final = 1e-6
_NONE: Final = (0, 0)


class SendWindow:
    """The bounds of one link.

    Args:
        options: Bounds, whatever the link could take.
    """

    def __init__(self, options: PumpOptions) -> None:
        self._cap = TokenBucket()
        self.in_flight_rows = 0
        self.in_flight_bytes = 0
        self._rows_max_peer: int | None = None
        self._alone = False
        self._row_bytes = 1.0
        self.adjust(options)
        self.reset(None)

    def adjust(self, options: PumpOptions) -> None:
        """Apply changed bounds; what was measured stays."""
        self._head_of_line_s = options.head_of_line_ms / 1000
        self._rows_max_own = options.rows_in_flight_max
        self._bytes_max = options.bytes_in_flight_max
        self._piece_share = options.piece_share
        self._payload_bytes = PAYLOAD_BYTES if options.piece_share else 0
        cap_bytes_s = options.rate_bytes_s_max or math.inf
        share = max(SAMPLE_SHARE, self._piece_share)
        depth = max(self._payload_bytes, cap_bytes_s * self._head_of_line_s * share)
        self._cap.change(cap_bytes_s, depth)
        self._bound_rows()

    def narrow(self, *, alone: bool) -> None:
        """Allow one row in flight, whatever the link takes, or as many as it takes again."""
        self._alone = alone
        self._bound_rows()

    def reset(self, rows_max: int | None) -> None:
        """Reset the measurements: a new connection may run over another path.

        Args:
            rows_max: Unconfirmed rows that the peer allows, None = it did not say.
        """
        self._rows_max_peer = rows_max
        self._bound_rows()
        self._rate = DeliveryRate()
        self._rtt = EmptyRoundTrip()
        self._pace = TokenBucket()
        self._flights = self._flights_confirmed = 0
        self._last_flight: Flight | None = None
        self._is_held = self._is_bunched = False
        self._bytes = 0.0
        self._turned_at = 0.0
        self._round = 0
        self._round_ends_at = 0
        self._round_rtt_s = self._round_held_s = math.inf
        self._round_ahead_bytes = 0
        self._round_bunched_s = 0.0
        self._round_row_bytes = 1.0
        self._round_limited = False
        self._searching = True
        self._short_rounds = 0
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

    @property
    def counts_unsent(self) -> bool:
        """Whether `room` depends on the unsent bytes: they are in flight, as the window bounds."""
        return self._rtt.seconds is not None and self._threshold() < self._window_now()

    def room(self, now: float, unsent: int) -> tuple[int, int]:
        """Return the rows and bytes that may be chosen now; no rows = wait.

        Args:
            now: Monotonic seconds.
            unsent: Bytes handed over before that have not left the machine.
        """
        rows = self._rows_max - self.in_flight_rows
        capped = self._cap.available(now)
        if rows <= 0 or capped <= 0 or (self.in_flight_rows > 0 and self._is_poor(capped)):
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
        if share < self._least() and self.in_flight_rows > 0:
            return _NONE
        # One message is always allowed, however large.
        return rows, max(1, int(min(share, capped, self._bytes_max)))

    def wait_s(self, now: float, unsent: int) -> float | None:
        """Return the seconds until there may be room without a confirmation, None = never.

        Neither the pace nor the cap gives an event, nor does a socket when its unsent bytes fall
        below a number; so the caller looks again after this time.
        """
        wait_s = self._cap.wait_s(now)
        if self._rtt.seconds is not None:
            excess = min(unsent, unsent + self._least() - self._threshold())
            if excess > 0 and self._rate.bytes_s:
                wait_s = max(wait_s, excess / self._rate.bytes_s)
            if self._window_now() - self.in_flight_bytes >= self._least():
                wait_s = max(wait_s, self._pace.wait_s(now))
        return wait_s if wait_s > 0 else None

    def sent(self, now: float, rows: int, size: int) -> Flight:
        """Count a batch that is sent now; return its flight, to be kept with its rows."""
        if self._rtt.is_probed:
            self._rate.limit_by_app(self.in_flight_bytes)
        self._flights += 1
        unit_bytes = self._unit_bytes(rows, size)
        flight = Flight(
            number=self._flights,
            sent_at=now,
            row_bytes=unit_bytes,
            ahead_bytes=self.in_flight_bytes,
            probes=self._rtt.is_probed,
        )
        if self._last_flight is not None:
            self._last_flight.apart_s = now - self._last_flight.sent_at
        self._last_flight = flight
        self._rate.mark(flight, was_idle=self.in_flight_rows == 0)
        self.in_flight_rows += rows
        self.in_flight_bytes += size
        self._pace.spend(now, size)
        self._cap.spend(now, size)
        share = _MEAN_SHARE if self._flights > 1 else 1.0
        self._row_bytes += (size / rows - self._row_bytes) * share
        return flight

    def _unit_bytes(self, rows: int, size: int) -> float:
        # Rows that share a payload are confirmed at its end. On a short way that counts as a wait
        # like any other; on a longer one the window has to hold it in addition to all that is in
        # flight, there and back, or the link would rest for so long behind each.
        if not self._piece_share or self._rtt.seconds is None:
            return size / rows
        on_way = self._rtt.seconds * self._rate.bytes_s - self._rtt.row_bytes
        return max(size / rows, min(size * PAYLOAD_SHARE, WAYS * on_way))

    def lost(self, rows: int, size: int) -> None:
        """Count rows out of flight that were not delivered."""
        self.in_flight_rows -= rows
        self.in_flight_bytes -= size
        assert self.in_flight_rows >= 0
        assert self.in_flight_bytes >= 0

    def ran_dry(self) -> None:
        """Record that there was room but nothing to send: samples now show demand, not the link."""
        self._rate.limit_by_app(self.in_flight_bytes)

    def delivered(self, now: float, rows: int, size: int, latest: Flight) -> None:
        """Record the confirmations of one turn.

        Args:
            now: Monotonic seconds.
            rows: Rows confirmed.
            size: Their bytes on the link.
            latest: Flight of the confirmed row that was sent last.
        """
        self.lost(rows, size)
        self._is_bunched = self._is_bunched or rows > 1
        rtt_s = max(now - latest.sent_at, _INSTANT_S)
        self._rtt.take(now, rtt_s, latest, flights=self._flights)
        bunched_s = self._held_in_bunch_s(rtt_s, size, latest)
        rtt_s -= bunched_s
        held_s = rtt_s - latest.row_bytes / max(self._rate.bytes_s, 1.0)
        if held_s < self._round_held_s:
            # The last one of a bunch of confirmations, and so the one that was held up least.
            self._round_held_s = held_s
            self._round_rtt_s = rtt_s
            self._round_bunched_s = bunched_s
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
        self._round_limited = latest.app_limited
        if latest.delivered >= self._round_ends_at:
            self._end_round()

    def _held_in_bunch_s(self, rtt_s: float, size: int, latest: Flight) -> float:
        """Return for how long a confirmation was held that is the last one of a bunch.

        The bunch left at some moment between the arrivals of this batch and of the next one: on the
        mean, in the middle. Single rows are too close together for that to matter; payloads are so
        far apart that it would pass for a queue, and the link would rest for as long.
        """
        flights = latest.number - self._flights_confirmed
        self._flights_confirmed = max(self._flights_confirmed, latest.number)
        if flights <= 1 or not self._piece_share:
            return 0.0
        self._is_held = True
        apart_s = max(latest.apart_s, size / flights / max(self._rate.bytes_s, 1.0))
        return min(rtt_s, apart_s) * _BUNCH_HELD_SHARE

    def _end_round(self) -> None:
        if self._round == 0:
            self._bytes = self._rows_bytes(SEARCH_ROWS)
        self._round += 1
        self._round_ends_at = self._rate.delivered
        self._search()
        grows = self._follow_queue()
        pace = math.inf
        if self._round_rtt_s > self._head_of_line_s * BUNCH_SHARE:
            pace = self._rate.bytes_s * (PACE_GAIN_GROWING if grows else PACE_GAIN)
        self._pace.change(pace, self._piece(pace))
        self._round_rtt_s = self._round_held_s = math.inf

    def _rows_bytes(self, rows: int) -> float:
        return min(rows * self._row_bytes, max(FIRST_BYTES, self._row_bytes))

    def _search(self) -> None:
        rate = self._rate.bytes_s
        if self._round_limited and rate <= self._full_rate * SEARCH_PROOF:
            # Little demand proves nothing of the link.
            return
        self._low_rounds = self._low_rounds + 1 if rate < self._full_rate / LAPSE else 0
        if rate > self._full_rate * SEARCH_PROOF or self._low_rounds > LAPSE_ROUNDS:
            self._full_rate = rate
            self._full_rounds = self._low_rounds = 0
        else:
            self._full_rounds += 1
            self._full_rate = max(self._full_rate, rate)
        self._searching = self._full_rounds < SEARCH_ROUNDS

    def _follow_queue(self) -> bool:
        """Set the window by the round trip that has ended; return whether it still grows fast."""
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
        if not self._is_bunched:
            # One message among few says more than is true when it was lucky.
            wanted = min(wanted, rate * (empty_s + target_s))
        # Growing fast takes a wait that was short for certain.
        is_short = queue_s + self._round_bunched_s < target_s * _SHORT_SHARE
        self._short_rounds = min(GROWTH_ROUNDS, self._short_rounds + 1) if is_short else 0
        if is_short:
            # One round without a wait proves little, several in a row that the link has got faster.
            if self._searching:
                on_way = rate * self._rtt.seconds
                spared = FILL_ROWS_SPARED * self._row_bytes
                wanted = max(wanted, FILL_GAIN_THIN * on_way, FILL_GAIN * on_way - spared)
            else:
                wanted = max(wanted, ahead * min(2.0, GROWTH ** (self._short_rounds - 1)))
        if self._searching:
            wanted = max(wanted, self._rows_bytes(SEARCH_ROWS))
            if self._is_bunched:
                wanted = max(wanted, rate * self._rtt.seconds * HELD_GAIN)
        self._is_bunched = False
        # A second payload keeps a long way busy while the first one is on it.
        way_s = self._rtt.seconds - self._rtt.row_bytes / max(rate, 1.0)
        payloads = 2 if way_s > self._head_of_line_s * LONG_WAY_SHARE else 1
        # A third one is what waits at a peer that holds confirmations back.
        payloads += payloads > 1 and self._is_held
        self._is_held = False
        wanted = max(wanted, self._payload_bytes * payloads)
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
        share = max(SAMPLE_SHARE, self._piece_share)
        return max(self._row_bytes, self._payload_bytes, rate * self._head_of_line_s * share)

    def _is_poor(self, capped: float) -> bool:
        # Under a cap, too, rows wait for those that leave together with them.
        return bool(self._piece_share) and capped < min(self._least(), self._cap.depth)

    def _least(self) -> float:
        # Rows that leave together take less; but two pieces and what stands between them have to
        # fit into the window, or the link would rest.
        piece = self._rate.bytes_s * self._head_of_line_s * self._piece_share
        piece = min(piece, self._bytes * PIECE_IN_WINDOW)
        if not self._searching:
            # While the rate is looked for, small pieces find it sooner.
            piece = max(piece, self._payload_bytes * PAYLOAD_SHARE)
        return max(self._row_bytes / 2, piece)

    def _threshold(self) -> float:
        # Never less than a message, or a slow start could not send the second one.
        least = max(self._row_bytes, self._payload_bytes)
        return max(least, self._rate.bytes_s * self._head_of_line_s)

    def _bound_rows(self) -> None:
        own, peer = self._rows_max_own, self._rows_max_peer
        self._rows_max = own if peer is None else max(1, min(own, peer))
        if self._alone:
            self._rows_max = 1
