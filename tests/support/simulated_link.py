"""A link and a sender that never rests, driven event by event: an hour passes in a second.

Owns simulated time; uses nothing but the window under test. Alarms come at random moments and are
sent before everything else as soon as the window has room, as the pump does.
"""

from __future__ import annotations

import heapq
import math
import random
from typing import TYPE_CHECKING

from edgehub.pump.window import SendWindow

if TYPE_CHECKING:
    from edgehub.pump.delivery_rate import Flight

LOOK_AGAIN_MIN_S = 0.002
HEAD_OF_LINE_S = 0.5
ROW_BYTES = 260


class SimulatedLink:
    """One link and its sender.

    Args:
        rate: Bytes per second.
        rtt_s: Both ways, without transmission.
        burst_s: Seconds of bytes that a shaper lets through at once after a pause.
        modem: What has not been transmitted waits in a modem, where nobody sees it.
        holds: The peer holds confirmations until the one before is acknowledged (Nagle).
        cap_bytes_s: See `SendWindow`.
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
        cap_bytes_s: float = math.inf,
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
            head_of_line_s=HEAD_OF_LINE_S,
            rows_max=100_000,
            bytes_max=2**30,
            cap_bytes_s=cap_bytes_s,
            piece_share=piece_share,
        )
        self._acks: list[tuple[float, int, int, int, Flight]] = []
        self._released_at = -math.inf
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
            ack_at = self._acks[0][0] if self._acks else math.inf
            self.now = min(look_at, ack_at, end, self._next_alarm_at)
            if self.now == self._next_alarm_at:
                self._alarms.append(self.now)
                self._next_alarm_at += self._pause_s()
            self._confirm()
            self._send()

    def used(self, seconds: float) -> float:
        """Run and give the share of the time in which the link transmitted."""
        before = self.acked_bytes
        self.run(seconds)
        return (self.acked_bytes - before) / (self.rate * seconds)

    def drain(self) -> None:
        """Let all that is in flight be confirmed, and send nothing more meanwhile."""
        while self._acks:
            self.now = self._acks[0][0]
            self._confirm()

    def alarm_wait_s(self, share: float) -> float:
        """Give a quantile of the alarms' waits, and forget them."""
        waits, self.waits_s = sorted(self.waits_s), []
        return waits[min(len(waits) - 1, int(len(waits) * share))]

    def change_rate(self, rate: float) -> None:
        """Go on at another rate; what waits for the link takes its time at the new one."""
        self.free_at = self.now + max(0.0, self.free_at - self.now) * self.rate / rate
        late = [ack for ack in self._acks if ack[0] - self.rtt_s > self.now]
        early = [ack for ack in self._acks if ack[0] - self.rtt_s <= self.now]
        stretched = [
            (self.now + (ack[0] - self.rtt_s - self.now) * self.rate / rate + self.rtt_s, *ack[1:])
            for ack in late
        ]
        self._acks = [*early, *stretched]
        heapq.heapify(self._acks)
        self.rate = rate

    def _pause_s(self) -> float:
        return self._alarm_every_s * self._rng.uniform(0.5, 1.5)

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

    def _send(self) -> None:
        while True:
            rows, room = self.window.room(self.now, self.unsent)
            if not rows:
                return
            if self._alarms:
                rows = 1
            rows = min(rows, max(1, room // self.size))
            flight = self.window.sent(self.now, rows, rows * self.size)
            self.sent_bytes += rows * self.size
            self.sent_rows += rows
            self.sends += 1
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
        ack = (self._confirmed_at(), self._sequence, rows, rows * self.size, flight)
        heapq.heappush(self._acks, ack)

    def _confirmed_at(self) -> float:
        arrived = max(self.now, self.free_at) + self.rtt_s / 2
        if not self.holds:
            return arrived + self.rtt_s / 2
        if arrived >= self._released_at + self.rtt_s:
            self._released_at = arrived
        elif arrived > self._released_at:
            self._released_at += self.rtt_s
        return self._released_at + self.rtt_s / 2
