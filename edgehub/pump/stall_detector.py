"""Detects a pump that has something to do and does nothing.

Invariant: a pump that takes a step, or that has nothing to do, is not stalled.
"""

from __future__ import annotations


class StallDetector:
    """Compares the steps of one pump between two checks."""

    def __init__(self) -> None:
        self.steps = 0
        self._seen = -1
        self._since = 0.0

    def stalled_s(self, now: float, *, is_busy: bool) -> float:
        """Return the seconds since the first check that found work and no step after it.

        Args:
            now: Monotonic seconds.
            is_busy: The pump has something to do that does not depend on the peer.
        """
        if not is_busy or self.steps != self._seen:
            self._seen = self.steps if is_busy else -1
            self._since = now
        return now - self._since
