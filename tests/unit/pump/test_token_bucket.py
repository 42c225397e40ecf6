"""The token bucket behind a cap on the rate."""

from __future__ import annotations

import math

import pytest

from edgehub.pump.token_bucket import TokenBucket


def test_no_more_than_the_rate_and_one_bucket_leaves():
    """Bytes spent are available again at the rate, and never more than the bucket holds."""
    token_bucket = TokenBucket(100.0)
    token_bucket.change(100.0, 50.0)
    token_bucket.spend(10.0, 50)
    assert token_bucket.available(10.0) == 0
    assert token_bucket.available(10.2) == pytest.approx(20)
    assert token_bucket.available(99.0) == 50


def test_a_message_larger_than_the_bucket_is_waited_for():
    """What was overspent is paid back before anything else leaves."""
    token_bucket = TokenBucket(100.0)
    token_bucket.change(100.0, 50.0)
    token_bucket.spend(10.0, 250)
    assert token_bucket.available(10.0) == -200
    assert token_bucket.wait_s(10.0) == pytest.approx(2.5)
    assert token_bucket.available(12.0) == pytest.approx(0)


@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_a_rate_after_a_time_without_one_begins_without_a_burst(size: int):
    """Neither the bytes nor the hours before the rate count: the bucket fills from nothing."""
    token_bucket = TokenBucket()
    assert token_bucket.available(5.0) == math.inf
    token_bucket.spend(3600.0, size)
    token_bucket.change(100.0, 50.0)
    assert token_bucket.available(3600.0) == 0
    assert token_bucket.available(3600.1) == pytest.approx(10)


def test_what_was_overspent_stays_so_at_another_rate():
    """A new cap is no way around the old one."""
    token_bucket = TokenBucket(100.0)
    token_bucket.change(100.0, 50.0)
    token_bucket.spend(10.0, 250)
    token_bucket.change(200.0, 80.0)
    assert token_bucket.available(10.0) == -200
    assert token_bucket.available(11.0) == pytest.approx(0)
