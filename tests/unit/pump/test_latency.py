"""The latency histogram against exact quantiles."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from edgehub.pump.latency import LatencyHistogram


def test_nothing_measured_is_no_summary() -> None:
    """Before the first row there is no figure to show."""
    assert LatencyHistogram().summary() is None


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_quantiles_are_an_eighth_too_high_at_most(latencies: list[int]) -> None:
    """Never below the exact quantile, never more than 12.5 % above it."""
    histogram = LatencyHistogram()
    half = len(latencies) // 2
    for part in (latencies[:half], latencies[half:]):
        if part:
            histogram.add(part)
    summary = histogram.summary()
    assert summary is not None
    assert summary.count == len(latencies)
    assert summary.max_s == max(latencies) / 1000
    ordered = sorted(latencies)
    for share, found_s in ((0.50, summary.p50_s), (0.99, summary.p99_s)):
        exact = ordered[math.ceil(share * len(ordered)) - 1]
        assert exact <= found_s * 1000 + 1e-6
        assert found_s * 1000 <= exact * 1.125 + 1e-6


def test_times_out_of_range_are_counted() -> None:
    """A negative latency counts as zero, a century as the longest bucket."""
    histogram = LatencyHistogram()
    histogram.add([-5])
    histogram.add([2**60])
    summary = histogram.summary()
    assert summary is not None
    assert summary.p50_s == 0
    assert summary.p99_s > 10**8
