"""Whether a pump moves when it should.

Owns the count of its steps and the time since which it owes one. Pure. Invariant: a pump that takes
a step, or that has nothing to do, does not stand still; nothing but steps ends the time counted.
"""

from __future__ import annotations


class StallDetector:
    """The steps of one pump, as an observer sees them who looks now and then."""

    __slots__ = ("_seen", "_since", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self._seen = -1
        self._since = 0.0

    def stalled_s(self, now: float, *, owes: bool) -> float:
        """Return the seconds since the first look that found a step owed, with none taken after it.

        Args:
            now: Monotonic seconds.
            owes: Whether the pump has something to do that depends on nobody else.
        """
        if not owes or self.steps != self._seen:
            self._seen = self.steps if owes else -1
            self._since = now
        return now - self._since
