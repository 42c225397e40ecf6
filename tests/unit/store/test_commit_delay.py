"""The linger rule: steady traffic waits, a lone message does not."""

from __future__ import annotations

import pytest

from edgehub.message import NEVER_MS
from edgehub.store.commit_delay import DELAY_S, CommitDelay


def at_5000() -> int:
    """Return when the oldest row of a group was appended."""
    return 5000


def steady(rate: float, seconds: float = 1.0) -> tuple[CommitDelay, float]:
    """Feed a rule with evenly spaced single rows."""
    linger = CommitDelay(0)
    now = 0.0
    while now < seconds:
        linger.appended(1, now)
        now += 1 / rate
    return linger, now


def test_lone_message_does_not_wait() -> None:
    """Nothing is known of the traffic, or it is thin: commit at once."""
    assert CommitDelay(0).delay_s(1, 0.0) == 0
    linger, now = steady(200)
    assert linger.delay_s(1, now) == 0


def test_steady_traffic_waits_a_little() -> None:
    """From a thousand rows per second on, a group lingers."""
    linger, now = steady(3000)
    assert linger.delay_s(1, now) == DELAY_S
    assert linger.delay_s(64, now) == 0


def test_message_after_silence_does_not_wait() -> None:
    """The rate is that of traffic which has ended."""
    linger, now = steady(3000)
    assert linger.delay_s(1, now + 0.2) == 0


def test_a_delay_that_brings_nothing_stops_for_a_while() -> None:
    """Senders that wait for their acknowledgement gain nothing; tried again ever more rarely."""
    linger, now = steady(3000)
    pauses = []
    for _ in range(8):
        skipped = 0
        while not linger.delay_s(1, now):
            skipped += 1
        pauses.append(skipped)
        linger.waited(3, 4)
    assert pauses == [0, 8, 16, 32, 64, 128, 256, 512]
    while not linger.delay_s(1, now):
        pass
    linger.waited(3, 9)
    assert linger.delay_s(1, now) == DELAY_S


def test_a_fixed_delay_is_that_of_the_oldest_row() -> None:
    """It does not adapt, and what was confirmed meanwhile does not count."""
    linger = CommitDelay(250)
    assert linger.delay_s(1, 0.0) == linger.delay_s(1000, 9.0) == 0
    assert linger.remaining_s(lambda: NEVER_MS, 0.0, 5000) == 0
    assert linger.remaining_s(at_5000, 0.0, 5000) == pytest.approx(0.25)
    assert linger.remaining_s(at_5000, 0.0, 5200) == pytest.approx(0.05)
    assert linger.remaining_s(at_5000, 0.0, 5250) == 0
    assert CommitDelay(0).remaining_s(at_5000, 0.0, 5000) == 0


def test_steady_traffic_waits_for_a_link_that_confirms_soon() -> None:
    """Twice as long as rows took of late; not for a slow link, one that is silent, a lone row."""
    linger, now = steady(3000)
    assert linger.remaining_s(at_5000, now, 5000) == 0
    for _ in range(50):
        linger.confirmed(0.004, now)
    assert 0.008 <= linger.remaining_s(at_5000, now, 5000) <= 0.01
    assert 0.002 <= linger.remaining_s(at_5000, now, 5006) <= 0.004
    assert linger.remaining_s(at_5000, now, 5010) <= 0
    assert linger.remaining_s(at_5000, now + 0.06, 5000) == 0
    for _ in range(50):
        linger.confirmed(3600.0, now)
    assert linger.remaining_s(at_5000, now, 5000) == 0
    linger, now = steady(200)
    for _ in range(50):
        linger.confirmed(0.004, now)
    assert linger.remaining_s(at_5000, now, 5000) == 0


def test_clock_that_stands_still_says_nothing() -> None:
    """On a manual clock many commits at one moment are not a high rate."""
    linger = CommitDelay(0)
    for _ in range(10):
        linger.appended(1000, 5.0)
    assert linger.delay_s(1, 5.0) == 0
