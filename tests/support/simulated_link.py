"""A link and a sender that never rests, driven event by event: an hour passes in a second.

Owns simulated time; uses nothing but the window under test. Alarms come at random moments and are
sent before everything else as soon as the window has room, as the pump does.
"""

from __future__ import annotations

import heapq
import math
import random
from typing import TYPE_CHECKING

from edgehub.pump.options import PumpOptions
from edgehub.pump.window import SendWindow

if TYPE_CHECKING:
    from edgehub.pump.delivery_rate import Flight

LOOK_AGAIN_MIN_S = 0.002
DELAYED_ACK_S = 0.04
"""After which the sender's kernel acknowledges confirmations without data of its own."""
HEAD_OF_LINE_S = 0.5
PACKET_BYTES = 1448
ROW_BYTES = 260


class SimulatedLink:
    """One link and its sender.

    Args:
        rate: Bytes per second.
        rtt_s: Both ways, without transmission.
        burst_s: Seconds of bytes that a shaper lets through at once after a pause.
        modem: What has not been transmitted waits in a modem, where nobody sees it.
        holds: The peer holds confirmations until the one before is acknowledged (Nagle); what
            acknowledges it stands in line with everything else.
        rate_bytes_s_max: See `PumpOptions`.
        piece_share: See `PumpOptions`; other than 0, what is sent together is confirmed together.
        alarm_every_s: Mean time between alarms, infinite = none.

    Attributes:
        size: Bytes of a row; may be changed between runs.
        waits_s: What each alarm waited before its transmission began.
    """

    def __init__(
        self,
        rate: float,
        rtt_s: float,
        *,
        burst_s: float = 0.0,
        holds: bool = False,
        modem: bool = False,
        alarm_every_s: float = math.inf,
        rate_bytes_s_max: int | None = None,
        piece_share: float = 0.0,
    ) -> None:
        self.rate = rate
        self.rtt_s = rtt_s
        self.size = ROW_BYTES
        self.now = 0.0
        self.burst_s = burst_s
        self.holds = holds
        self.modem = modem
        self.free_at = -burst_s
        self.acked_bytes = 0
        self.in_flight_most = 0
        self.worst_wait_s = 0.0
        self.waits_s: list[float] = []
        self.sent_bytes = 0
        self.sent_rows = 0
        self.sends = 0
        self._shares_payloads = piece_share > 0
        self.window = SendWindow(
            PumpOptions(
                rows_in_flight_max=100_000,
                bytes_in_flight_max=2**30,
                rate_bytes_s_max=rate_bytes_s_max,
                piece_share=piece_share,
            )
        )
        self._acks: list[tuple[float, int, int, int, Flight]] = []
        self._arrivals: list[tuple[float, int, int, int, Flight]] = []
        self._peer_free_at = 0.0
        self._tcp_ack_at = math.inf
        self._alarm_every_s = alarm_every_s
        self._rng = random.Random(9)
        self._alarms: list[float] = []
        self._next_alarm_at = self._pause_s()
        self._sequence = 0

    @property
    def unsent(self) -> int:
        """Bytes that the link has not transmitted, as far as the sender sees them."""
        if self.modem:
            return 0
        return round(max(0.0, self.free_at - self.now) * self.rate)

    def run(self, seconds: float) -> None:
        """Let a saturating sender and the link go on for a while."""
        end = self.now + seconds
        self._send()
        while self.now < end:
            wait_s = self.window.wait_s(self.now, self.unsent)
            look_at = math.inf if wait_s is None else self.now + max(wait_s, LOOK_AGAIN_MIN_S)
            self.now = min(look_at, self._next_event_at(), end, self._next_alarm_at)
            if self.now == self._next_alarm_at:
                self._alarms.append(self.now)
                self._next_alarm_at += self._pause_s()
            self._step()
            self._send()

    def send_alone(self, rows: int) -> None:
        """Send single rows, each after the confirmation of the one before, and none besides."""
        for _ in range(rows):
            flight = self.window.sent(self.now, 1, self.size)
            self.now += self.size / self.rate + self.rtt_s
            self.window.delivered(self.now, 1, self.size, flight)
            self.window.ran_dry()
        self.free_at = self.now
        self._next_alarm_at = self.now + self._pause_s()

    def used(self, seconds: float) -> float:
        """Run and give the share of the time in which the link transmitted."""
        before = self.acked_bytes
        self.run(seconds)
        return (self.acked_bytes - before) / (self.rate * seconds)

    def drain(self) -> None:
        """Let all that is in flight be confirmed, and send nothing more meanwhile."""
        while self._acks or self._arrivals:
            self.now = self._next_event_at()
            self._step()

    def alarm_wait_s(self, share: float) -> float:
        """Return a quantile of the alarms' waits, and forget them."""
        waits, self.waits_s = sorted(self.waits_s), []
        return waits[min(len(waits) - 1, int(len(waits) * share))]

    def change_rate(self, rate: float) -> None:
        """Go on at another rate; what waits for the link takes its time at the new one."""
        self.free_at = self.now + max(0.0, self.free_at - self.now) * self.rate / rate

        def stretch(at: float, way_s: float) -> float:
            return self.now + max(0.0, at - way_s - self.now) * self.rate / rate + way_s

        self._acks = [
            (stretch(ack[0], self.rtt_s), *ack[1:])
            if not self.holds and ack[0] - self.rtt_s > self.now
            else ack
            for ack in self._acks
        ]
        self._arrivals = [
            (stretch(each[0], self.rtt_s / 2), *each[1:])
            if each[0] - self.rtt_s / 2 > self.now
            else each
            for each in self._arrivals
        ]
        heapq.heapify(self._acks)
        self.rate = rate

    def _pause_s(self) -> float:
        return self._alarm_every_s * self._rng.uniform(0.5, 1.5)

    def _next_event_at(self) -> float:
        ack_at = self._acks[0][0] if self._acks else math.inf
        release_at = max(self._arrivals[0][0], self._peer_free_at) if self._arrivals else math.inf
        return min(ack_at, release_at, self._tcp_ack_at)

    def _step(self) -> None:
        if self._tcp_ack_at <= self.now:
            self._acknowledge(0)
        if self._arrivals and max(self._arrivals[0][0], self._peer_free_at) <= self.now:
            while self._arrivals and self._arrivals[0][0] <= self.now:
                _, *confirmation = heapq.heappop(self._arrivals)
                heapq.heappush(self._acks, (self.now + self.rtt_s / 2, *confirmation))
            self._peer_free_at = math.inf
        self._confirm()

    def _acknowledge(self, size: int) -> None:
        self._tcp_ack_at = math.inf
        self._peer_free_at = max(self.now, self.free_at) + size / self.rate + self.rtt_s / 2

    def _confirm(self) -> None:
        # What comes at one moment is one turn of the pump.
        rows = size = 0
        latest: Flight | None = None
        while self._acks and self._acks[0][0] <= self.now:
            _, _, count, row_size, flight = heapq.heappop(self._acks)
            rows += count
            size += row_size
            flight.confirmed_bytes += row_size
            if latest is None or flight.number > latest.number:
                latest = flight
        if latest is not None:
            self.acked_bytes += size
            self.window.delivered(self.now, rows, size, latest)
            if self.holds:
                self._tcp_ack_at = self.now + DELAYED_ACK_S

    def _send(self) -> None:
        while True:
            unsent = self.unsent if self.window.counts_unsent else 0
            rows, room = self.window.room(self.now, unsent)
            if not rows:
                return
            if self._alarms:
                rows = 1
            rows = min(rows, max(1, room // self.size))
            flight = self.window.sent(self.now, rows, rows * self.size)
            self.sent_bytes += rows * self.size
            self.sent_rows += rows
            self.sends += 1
            if self._tcp_ack_at < math.inf:
                # It leaves with the first packet.
                self._acknowledge(min(rows * self.size, PACKET_BYTES))
            for number in range(1, rows + 1):
                start = max(self.now - self.burst_s, self.free_at)
                if self._alarms:
                    self.waits_s.append(max(self.now, start) - self._alarms.pop(0))
                self.free_at = start + self.size / self.rate
                if not self._shares_payloads:
                    self._push_ack(1, flight)
                elif number == rows:
                    self._push_ack(rows, flight)
            self.in_flight_most = max(self.in_flight_most, self.window.in_flight_bytes)
            self.worst_wait_s = max(self.worst_wait_s, self.free_at - self.now)

    def _push_ack(self, rows: int, flight: Flight) -> None:
        self._sequence += 1
        arrived = max(self.now, self.free_at) + self.rtt_s / 2
        if self.holds:
            heapq.heappush(
                self._arrivals, (arrived, self._sequence, rows, rows * self.size, flight)
            )
        else:
            back = arrived + self.rtt_s / 2
            heapq.heappush(self._acks, (back, self._sequence, rows, rows * self.size, flight))
