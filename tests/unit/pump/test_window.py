"""The send window on a simulated link: pure, no clock but the link's own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from edgehub.pump.delivery_rate import Flight
from edgehub.pump.options import PumpOptions
from edgehub.pump.round_trip import LIFE_S, EmptyRoundTrip
from edgehub.pump.window import FIRST_BYTES, FIRST_ROWS, SendWindow
from tests.support.simulated_link import HEAD_OF_LINE_S
from tests.support.simulated_link import SimulatedLink as Link

BOUNDS = PumpOptions(rows_in_flight_max=1000, bytes_in_flight_max=2**20)


def test_before_the_first_measurement_four_messages_go() -> None:
    """Without a sample at most four rows and a few kilobytes are in flight."""
    window = SendWindow(BOUNDS)
    assert window.room(0.0, 0) == (FIRST_ROWS, FIRST_BYTES)
    window.sent(0.0, 4, 1040)
    assert window.room(0.1, 0) == (0, 0)


def test_one_large_message_goes_alone_before_the_first_measurement() -> None:
    """A message beyond the first bytes leaves no room for a second one."""
    window = SendWindow(BOUNDS)
    window.sent(0.0, 1, 100_000)
    assert window.room(0.1, 0) == (0, 0)


def test_a_thin_link_stays_full_with_a_small_window() -> None:
    """64 kbit/s: full, a quarter of a second of bytes stands in front of it, no more than half."""
    link = Link(8000, 0.05)
    link.run(2)
    link.worst_wait_s = 0.0
    assert link.used(20) > 0.98
    empty_s = 0.05 + link.size / link.rate
    assert link.window.window_bytes == pytest.approx(8000 * (empty_s + 0.25), rel=0.1)
    assert link.worst_wait_s < HEAD_OF_LINE_S


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


@pytest.mark.parametrize("rate", [1_250, 8_000, 32_000, 250_000])
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


def test_the_round_trip_is_measured_again_every_minute() -> None:
    """A path that became longer shows after a minute, and our own queue never counts as path."""
    link = Link(8000, 0.05)
    link.run(10)
    link.rtt_s = 0.3
    link.run(LIFE_S + 5)
    assert link.window.min_rtt_s == pytest.approx(0.3 + link.size / link.rate, rel=0.05)
    assert link.used(120) > 0.95
    assert link.window.min_rtt_s == pytest.approx(0.3 + link.size / link.rate, rel=0.05)


def test_each_probe_lasts_a_whole_round_trip() -> None:
    """The first confirmation, which may have been held up, ends neither the first nor the next."""
    rtt = EmptyRoundTrip()
    now, number = 0.0, 0

    def confirm(rtt_s: float, *, under_way: int) -> None:
        nonlocal number
        number += 1
        flight = Flight(
            number=number, sent_at=now, row_bytes=100.0, ahead_bytes=0, probes=rtt.is_probed
        )
        rtt.take(now, rtt_s, flight, flights=number + under_way)

    confirm(0.1, under_way=0)
    for held_s, empty_s in ((2.0, 0.4), (3.0, 0.5)):
        now += LIFE_S + 1
        assert rtt.look(now)
        confirm(held_s, under_way=1)
        confirm(held_s, under_way=1)
        assert rtt.is_probed
        confirm(empty_s, under_way=1)
        assert (rtt.is_probed, rtt.seconds) == (False, empty_s)


def test_little_demand_does_not_lower_the_rate() -> None:
    """Samples taken while there was nothing to send do not count against the link."""
    link = Link(125_000, 0.05)
    link.run(5)
    link.drain()
    rate = link.window.rate_bytes_s
    for _ in range(50):
        link.window.ran_dry()
        flight = link.window.sent(link.now, 1, link.size)
        link.now += 0.2
        link.window.delivered(link.now, 1, link.size, flight)
    assert link.window.rate_bytes_s == rate


def test_the_peers_receive_maximum_holds() -> None:
    """Never more rows than the peer allows, whatever the link could take."""
    window = SendWindow(BOUNDS)
    window.reset(10)
    flight = window.sent(0.0, 4, 400)
    window.delivered(0.001, 4, 400, flight)
    assert window.room(0.001, 0)[0] == 10
    window.sent(0.001, 10, 1000)
    assert window.room(0.001, 0) == (0, 0)


def test_one_message_is_always_allowed() -> None:
    """A message larger than the window goes when nothing is in flight, and alone."""
    window = SendWindow(BOUNDS)
    flight = window.sent(0.0, 1, 100)
    window.delivered(1.0, 1, 100, flight)
    assert window.room(1.0, 0)[0] > 0
    window.sent(1.0, 1, 100_000)
    assert window.room(1.1, 90_000) == (0, 0)


def test_unsent_bytes_block_and_say_when_to_look_again() -> None:
    """Over the threshold nothing is chosen; the wait follows from the rate."""
    window = SendWindow(BOUNDS)
    flight = window.sent(0.0, 10, 1000)
    window.delivered(1.0, 10, 1000, flight)
    window.sent(1.0, 1, 100)
    assert window.room(2.0, 590) == (0, 0)
    wait_s = window.wait_s(2.0, 590)
    assert wait_s is not None
    assert window.room(2.0, 590 - round(wait_s * 1000) - 1)[0] > 0
    assert window.wait_s(2.0, 0) is None


def test_a_lost_probe_is_sent_again() -> None:
    """When what was sent to measure the empty round trip is lost, the next rows take its place."""
    window = SendWindow(BOUNDS)
    flight = window.sent(0.0, 1, 100)
    window.delivered(0.1, 1, 100, flight)
    window.sent(50.0, 4, 400)
    assert window.room(70.0, 0) == (0, 0)
    window.lost(4, 400)
    for at in (70.0, 71.0):
        assert window.room(at, 0)[0] > 0
        window.sent(at, 1, 100)
        window.lost(1, 100)
    for at in (72.0, 73.0):
        assert window.room(at, 0)[0] > 0
        flight = window.sent(at, 1, 100)
        window.delivered(at + 0.4, 1, 100, flight)
    assert window.min_rtt_s == pytest.approx(0.4)


MODEM = {"modem": True, "alarm_every_s": 1.0}


@pytest.mark.parametrize("kbit_s", [10, 64, 256])
@pytest.mark.parametrize("rtt_s", [0.001, 0.2, 0.6])
def test_alarms_wait_little_behind_a_modem_that_hides_its_queue(kbit_s: int, rtt_s: float) -> None:
    """Nothing unsent is seen here; still the link is full and alarms wait half a second."""
    rate = kbit_s * 125
    link = Link(rate, rtt_s, modem=True, alarm_every_s=max(0.5, 5200 / rate))
    link.run(20)
    link.waits_s.clear()
    assert link.used(120) > 0.95
    # On the thinnest link a message takes a quarter of a second.
    assert link.alarm_wait_s(0.99) < HEAD_OF_LINE_S + 0.05 + link.size / rate


@pytest.mark.parametrize("kbit_s", [10, 64, 256])
def test_a_peer_that_holds_confirmations_back_does_not_empty_the_link(kbit_s: int) -> None:
    """A broker with Nagle's algorithm, 600 ms away: the link is used, alarms stay in the floor."""
    rate = kbit_s * 125
    link = Link(rate, 0.6, holds=True, modem=True, alarm_every_s=max(0.5, 5200 / rate))
    link.run(20)
    link.waits_s.clear()
    assert link.used(120) > 0.88
    assert link.alarm_wait_s(0.99) < 1.5


@pytest.mark.parametrize("rows", [0, 3])
def test_few_large_messages_do_not_pile_up_while_the_link_is_looked_for(rows: int) -> None:
    """Half a second a message at 600 ms: from the start an alarm waits for less than two of them.

    TCP sends again what comes back late by as much, and each of these costs another half second.
    """
    link = Link(764, 0.53, modem=True, alarm_every_s=8)
    link.size = 348
    link.send_alone(rows)
    assert link.used(60) > 0.9
    assert link.alarm_wait_s(1) < 2 * link.size / link.rate


def test_a_quarter_of_an_hour_of_saturation_changes_nothing() -> None:
    """The last minute's alarms wait as long as the first minute's."""
    link = Link(8000, 0.6, **MODEM)
    link.run(10)
    link.waits_s.clear()
    link.run(60)
    first_s = link.alarm_wait_s(0.99)
    link.run(13 * 60)
    link.waits_s.clear()
    assert link.used(60) > 0.95
    assert link.alarm_wait_s(0.99) < first_s + 0.1


@pytest.mark.parametrize("rtt_s", [0.001, 0.6])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_changed_rate_is_followed_behind_a_modem(rtt_s: float, factor: float) -> None:
    """Half or twice the rate: ten seconds later the link is full and alarms wait half a second."""
    link = Link(8000, rtt_s, **MODEM)
    link.run(30)
    link.change_rate(8000 * factor)
    link.run(10)
    link.waits_s.clear()
    assert link.used(45) > 0.9
    assert link.alarm_wait_s(0.95) < HEAD_OF_LINE_S + 0.1


@pytest.mark.parametrize("rtt_s", [0.3, 0.6])
def test_a_path_that_became_longer_is_no_queue(rtt_s: float) -> None:
    """From 50 ms, behind a modem: half a minute later the link is full, at no wait more."""
    link = Link(8000, 0.05, **MODEM)
    link.run(30)
    link.rtt_s = rtt_s
    link.run(30)
    link.waits_s.clear()
    assert link.used(30) > 0.9
    assert link.alarm_wait_s(0.95) < HEAD_OF_LINE_S


def test_large_messages_fill_a_link_with_a_long_round_trip() -> None:
    """4 kB at 64 kbit/s after small ones: their own transmission does not count as a queue."""
    link = Link(8000, 0.6, modem=True)
    link.run(20)
    link.size = 4000
    link.run(20)
    assert link.used(60) > 0.9


def test_a_cap_holds_whatever_the_link_takes() -> None:
    """A link of 1 MB/s with a cap of 5 000 bytes/s: no second brings more than that and a piece."""
    link = Link(1e6, 0.05, rate_bytes_s_max=5000)
    link.run(5)
    for _ in range(20):
        sent = link.sent_bytes
        link.run(1)
        assert 4000 < link.sent_bytes - sent < 6000


def test_a_cap_can_be_set_and_taken_away_while_sending() -> None:
    """What was measured stays; no burst makes up for the time before."""
    link = Link(20_000, 0.05)
    link.run(10)
    link.window.adjust(replace(BOUNDS, rate_bytes_s_max=2000))
    sent = link.sent_bytes
    link.run(10)
    assert link.sent_bytes - sent == pytest.approx(20_000, rel=0.1)
    link.window.adjust(BOUNDS)
    link.run(5)
    assert link.used(10) > 0.95


def test_a_message_larger_than_the_cap_is_paid_for_afterwards() -> None:
    """10 kB at 1 000 bytes/s: nothing more for the ten seconds that it stands for."""
    window = SendWindow(replace(BOUNDS, rate_bytes_s_max=1000))
    assert window.room(5.0, 0)[0] > 0
    flight = window.sent(5.0, 1, 10_000)
    window.delivered(5.1, 1, 10_000, flight)
    assert window.room(14.0, 0) == (0, 0)
    wait_s = window.wait_s(14.0, 0)
    assert wait_s is not None
    assert window.room(14.0 + wait_s, 0)[0] > 0


def test_a_fast_link_can_be_idle_between_messages_for_ever() -> None:
    """One message a millisecond, none of which waits: 5 000 round trips in a row without a wait."""
    window = SendWindow(BOUNDS)
    for turn in range(5000):
        flight = window.sent(turn / 1000, 1, 260)
        window.delivered((turn + 0.5) / 1000, 1, 260, flight)
    assert window.room(5.0, 0)[0] == 1000
