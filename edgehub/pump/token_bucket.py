"""A token bucket of bytes: how much may be sent now at a given rate.

Owns its level. Counts the elapsed time that is passed in (monotonic seconds), so a changed date
neither pauses it nor lets a burst through. Invariant: over any time t no more than rate x t and one
bucket are sent, but for a message larger than the bucket; that one is waited for afterwards.
"""

from __future__ import annotations

import math

from msgspec import Struct


class TokenBucket(Struct, eq=False):
    """The bucket; without a rate everything may be sent.

    Attributes:
        rate: Bytes per second, infinite = no bound.
        depth: Bytes that may be sent at once after a pause.
    """

    rate: float = math.inf
    depth: float = 0.0
    _level: float = 0.0
    _at: float = 0.0

    def change(self, rate: float, depth: float) -> None:
        """Set another rate; what was overspent stays so."""
        self.rate = rate
        self.depth = depth

    def available(self, now: float) -> float:
        """Return the bytes that may be sent now, negative after a large message."""
        if self.rate == math.inf:
            return math.inf
        return min(self.depth, self._level + (now - self._at) * self.rate)

    def spend(self, now: float, size: int) -> None:
        """Record that `size` bytes are sent."""
        if self.rate == math.inf:
            # Bytes sent before there was a rate do not count.
            self._level, self._at = 0.0, now
        else:
            self._level = self.available(now) - size
            self._at = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until the bucket is full, 0 when it is."""
        return max(0.0, (self.depth - self.available(now)) / self.rate) if self.is_bound else 0.0

    @property
    def is_bound(self) -> bool:
        """Return whether there is a rate."""
        return self.rate < math.inf
