"""The send window on a simulated link: pure, no clock but the link's own."""

from __future__ import annotations

import heapq
import math

import pytest

from edgehub.pump.window import FIRST_BYTES, FIRST_ROWS, MIN_RTT_LIFE_S, Flight, SendWindow

HEAD_OF_LINE_S = 0.5


class Link:
    """A link with a rate and a round trip, driven event by event with a sender that never rests."""

    def __init__(
        self,
        rate: float,
        rtt_s: float,
        *,
        size: int = 260,
        rows_max: int = 100_000,
        burst_s: float = 0.0,
    ) -> None:
        self.rate = rate
        self.rtt_s = rtt_s
        self.size = size
        self.now = 0.0
        self.burst_s = burst_s
        self.free_at = -burst_s
        self.acked_bytes = 0
        self.busy_s = 0.0
        self.in_flight_most = 0
        self.worst_wait_s = 0.0
        self.acks: list[tuple[float, int, Flight]] = []
        self.window = SendWindow(head_of_line_s=HEAD_OF_LINE_S, rows_max=rows_max, bytes_max=2**30)
        self._sequence = 0

    @property
    def unsent(self) -> int:
        """Bytes that the link has not transmitted."""
        return round(max(0.0, self.free_at - self.now) * self.rate)

    def run(self, seconds: float) -> None:
        """Let a saturating sender and the link go on for a while."""
        end = self.now + seconds
        self.send()
        while self.now < end:
            wait_s = self.window.unsent_wait_s(self.unsent)
            look_at = math.inf if wait_s is None else self.now + max(wait_s, 0.002)
            ack_at = self.acks[0][0] if self.acks else math.inf
            self.now = min(look_at, ack_at, end)
            if self.acks and self.acks[0][0] <= self.now:
                _, _, flight = heapq.heappop(self.acks)
                self.acked_bytes += self.size
                self.window.delivered(self.now, 1, self.size, flight)
            self.send()

    def send(self) -> None:
        """Fill the room that the window gives."""
        while True:
            rows, room = self.window.room(self.now, self.unsent)
            rows = min(rows, max(1, room // self.size)) if rows else 0
            if not rows:
                return
            flight = self.window.sent(self.now, rows, rows * self.size)
            for _ in range(rows):
                start = max(self.now - self.burst_s, self.free_at)
                self.free_at = start + self.size / self.rate
                self.busy_s += self.size / self.rate
                self._sequence += 1
                arrived = max(self.now, self.free_at)
                heapq.heappush(self.acks, (arrived + self.rtt_s, self._sequence, flight))
            self.in_flight_most = max(self.in_flight_most, self.window.in_flight_bytes)
            self.worst_wait_s = max(self.worst_wait_s, self.free_at - self.now)

    def used(self, seconds: float) -> float:
        """Run and give the share of the time in which the link transmitted."""
        before = self.acked_bytes
        self.run(seconds)
        return (self.acked_bytes - before) / (self.rate * seconds)


def test_before_the_first_measurement_four_messages_go() -> None:
    """Without a sample at most four rows and a few kilobytes are in flight."""
    window = SendWindow(head_of_line_s=0.5, rows_max=1000, bytes_max=2**20)
    assert window.room(0.0, 0) == (FIRST_ROWS, FIRST_BYTES)
    window.sent(0.0, 4, 1040)
    assert window.room(0.1, 0) == (0, 0)


def test_one_large_message_goes_alone_before_the_first_measurement() -> None:
    """A message beyond the first bytes leaves no room for a second one."""
    window = SendWindow(head_of_line_s=0.5, rows_max=1000, bytes_max=2**20)
    window.sent(0.0, 1, 100_000)
    assert window.room(0.1, 0) == (0, 0)


def test_a_thin_link_stays_full_with_a_small_window() -> None:
    """64 kbit/s: at least 90 % used, about 4 kB under way, half a second of waiting at most."""
    link = Link(8000, 0.05)
    link.run(2)
    link.worst_wait_s = 0.0
    assert link.used(20) > 0.98
    assert link.window.window_bytes == pytest.approx(8000 * 0.55, rel=0.15)
    assert link.worst_wait_s < HEAD_OF_LINE_S + 0.1


def test_a_fast_link_opens_the_window_within_a_few_round_trips() -> None:
    """100 MB/s and 1 ms: the window is no bound any more after 50 ms."""
    link = Link(100e6, 0.001)
    link.run(0.05)
    assert link.used(0.05) > 0.9
    assert link.in_flight_most > 1000 * link.size


def test_a_long_round_trip_is_filled() -> None:
    """600 ms at 1 MB/s: the window grows beyond the pipe and the link is full."""
    link = Link(1e6, 0.6)
    link.run(15)
    assert link.used(10) > 0.95
    assert link.window.min_rtt_s == pytest.approx(0.6, rel=0.05)


def test_a_satellite_of_satellites_is_still_probed_upward() -> None:
    """With a round trip of 5 s the window still grows; probing it costs a sixth of the time."""
    link = Link(20_000, 5.0)
    link.run(120)
    assert link.used(60) > 0.75


@pytest.mark.parametrize("rate", [1_250, 8_000, 32_000, 1e6])
@pytest.mark.parametrize("rtt_s", [0.001, 0.05])
@pytest.mark.parametrize(("burst_s", "wait_s"), [(0.05, 0.9), (0.2, 1.5)])
def test_a_burst_does_not_pass_for_the_rate(
    rate: float, rtt_s: float, burst_s: float, wait_s: float
) -> None:
    """A link that lets its first bytes through at once: no seconds of bytes before an alarm."""
    link = Link(rate, rtt_s, burst_s=burst_s)
    link.run(8)
    assert link.worst_wait_s < wait_s
    assert link.used(20) > 0.99


def test_a_slower_link_is_noticed_within_seconds() -> None:
    """From 1 Mbit/s to 64 kbit/s: once the old window has drained, the wait is short again."""
    link = Link(125_000, 0.05)
    link.run(5)
    link.rate = 8000.0
    link.free_at = link.now + (link.free_at - link.now) * 125_000 / 8000
    link.run(15)
    link.worst_wait_s = 0.0
    assert link.used(10) > 0.95
    assert link.worst_wait_s < HEAD_OF_LINE_S + 0.15


def test_a_faster_link_is_used_within_seconds() -> None:
    """From 64 kbit/s to 10 Mbit/s."""
    link = Link(8000, 0.05)
    link.run(10)
    link.rate = 1_250_000.0
    link.run(3)
    assert link.used(3) > 0.9


def test_the_round_trip_is_measured_anew_every_minute() -> None:
    """A path that became longer shows after a minute, and our own queue never counts as path."""
    link = Link(8000, 0.05)
    link.run(10)
    link.rtt_s = 0.3
    link.run(MIN_RTT_LIFE_S + 5)
    assert link.window.min_rtt_s == pytest.approx(0.3 + link.size / link.rate, rel=0.05)
    assert link.used(120) > 0.95
    assert link.window.min_rtt_s == pytest.approx(0.3 + link.size / link.rate, rel=0.05)


def test_little_demand_does_not_lower_the_rate() -> None:
    """Samples taken while there was nothing to send do not count against the link."""
    link = Link(125_000, 0.05)
    link.run(5)
    rate = link.window.rate_bytes_s
    while link.acks:
        link.now, _, flight = heapq.heappop(link.acks)
        link.window.delivered(link.now, 1, link.size, flight)
    for _ in range(50):
        link.window.ran_dry()
        flight = link.window.sent(link.now, 1, link.size)
        link.now += 0.2
        link.window.delivered(link.now, 1, link.size, flight)
    assert link.window.rate_bytes_s == rate


def test_the_peers_receive_maximum_holds() -> None:
    """Never more rows than the peer allows, whatever the link could take."""
    window = SendWindow(head_of_line_s=0.5, rows_max=1000, bytes_max=2**20)
    window.reset(10)
    flight = window.sent(0.0, 4, 400)
    window.delivered(0.001, 4, 400, flight)
    assert window.room(0.001, 0)[0] == 10
    window.sent(0.001, 10, 1000)
    assert window.room(0.001, 0) == (0, 0)


def test_one_message_is_always_allowed() -> None:
    """A message larger than the window goes when nothing is in flight, and alone."""
    window = SendWindow(head_of_line_s=0.5, rows_max=1000, bytes_max=2**20)
    flight = window.sent(0.0, 1, 100)
    window.delivered(1.0, 1, 100, flight)
    assert window.window_bytes == 150
    assert window.room(1.0, 0)[0] > 0
    window.sent(1.0, 1, 100_000)
    assert window.room(1.1, 90_000) == (0, 0)


def test_unsent_bytes_block_and_say_when_to_look_again() -> None:
    """Over the threshold nothing is chosen; the wait follows from the rate."""
    window = SendWindow(head_of_line_s=0.5, rows_max=1000, bytes_max=2**20)
    flight = window.sent(0.0, 1, 1000)
    window.delivered(1.0, 1, 1000, flight)
    for _ in range(6):
        window.sent(1.0, 1, 100)
    assert window.room(1.0, 590) == (0, 0)
    wait_s = window.unsent_wait_s(590)
    assert wait_s is not None
    assert window.room(1.0, 590 - round(wait_s * 1000) - 1)[0] > 0
    assert window.unsent_wait_s(0) is None


def test_a_lost_probe_is_sent_again() -> None:
    """When the message sent alone is lost, the next one takes its place."""
    window = SendWindow(head_of_line_s=0.5, rows_max=1000, bytes_max=2**20)
    flight = window.sent(0.0, 1, 100)
    window.delivered(0.1, 1, 100, flight)
    window.sent(50.0, 1, 100)
    assert window.room(70.0, 0) == (0, 0)
    window.lost(1, 100)
    assert window.room(70.0, 0)[0] == 1
    window.sent(70.0, 1, 100)
    window.lost(1, 100)
    assert window.room(71.0, 0)[0] == 1
    flight = window.sent(71.0, 1, 100)
    window.delivered(71.4, 1, 100, flight)
    assert window.min_rtt_s == pytest.approx(0.4)
    assert window.room(71.4, 0)[0] > 1
