"""Delivery latency per priority: a histogram of fixed size, cheap enough for every row.

Buckets grow by an eighth of a power of two, so a quantile is read at most 12.5 %
too high, over any range, in constant memory.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

_FINE_BITS: Final = 3
_FINE: Final = 1 << _FINE_BITS
_MS_MAX: Final = (1 << 40) - 1
_BUCKETS: Final = (40 - _FINE_BITS + 1) * _FINE


class LatencySummary(Struct, frozen=True, kw_only=True):
    """Time from enqueue to confirmation.

    Attributes:
        count: Rows measured.
        p50_s: Median in seconds.
        p99_s: 99th percentile in seconds.
        max_s: Longest in seconds.
    """

    count: int
    p50_s: float
    p99_s: float
    max_s: float


class LatencyHistogram:
    """Latencies in whole milliseconds."""

    __slots__ = ("_buckets", "_count", "_max_ms")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._count = 0
        self._max_ms = 0

    def add(self, latencies_ms: Sequence[int]) -> None:
        """Count some rows; below zero (a stepped hub time) counts as zero."""
        # Of many rows that were confirmed together few differ.
        for latency_ms, rows in Counter(latencies_ms).items():
            if latency_ms < _FINE:
                self._buckets[max(latency_ms, 0)] += rows
            else:
                capped_ms = min(latency_ms, _MS_MAX)
                shift = capped_ms.bit_length() - 1 - _FINE_BITS
                # (shift + 1) octaves lie below; the bits after the leading one choose the bucket.
                self._buckets[(shift << _FINE_BITS) + (capped_ms >> shift)] += rows
        self._count += len(latencies_ms)
        self._max_ms = min(max(self._max_ms, *latencies_ms), _MS_MAX)

    def summary(self) -> LatencySummary | None:
        """Return the quantiles, None before the first row."""
        if self._count == 0:
            return None
        return LatencySummary(
            count=self._count,
            p50_s=self._quantile_ms(0.50) / 1000,
            p99_s=self._quantile_ms(0.99) / 1000,
            max_s=self._max_ms / 1000,
        )

    def _quantile_ms(self, share: float) -> int:
        wanted = share * self._count
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if seen >= wanted:
                return min(_upper_ms(index), self._max_ms)
        return self._max_ms


def _upper_ms(index: int) -> int:
    if index < _FINE:
        return index
    shift = (index >> _FINE_BITS) - 1
    return ((index - (shift << _FINE_BITS)) + 1 << shift) - 1
