"""A run of commits that did not succeed: why, since when, and how long to wait before the next try.

Pure. Invariant: the pause doubles with each try, up to a bound.
"""

from __future__ import annotations

from typing import Final

BACK_OFF_MIN_S: Final = 0.05
BACK_OFF_MAX_S: Final = 5.0


class Failure:
    """A run of commits that did not succeed."""

    __slots__ = ("attempts", "logged_s", "reason", "since_s")

    def __init__(self, reason: str, now_s: float) -> None:
        self.reason = reason
        self.since_s = now_s
        self.logged_s = now_s
        self.attempts = 0

    def delay_s(self) -> float:
        """Double up to a few seconds: a full disk may be emptied any moment."""
        return min(BACK_OFF_MIN_S * 2.0 ** min(self.attempts, 10), BACK_OFF_MAX_S)
