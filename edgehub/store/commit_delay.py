"""How long a group waits for more rows before its commit begins.

Pure decisions. A commit costs a hop between threads and a sync however few rows it
carries; while traffic is steady, one more millisecond makes groups several times larger. A lone
message never waits, and where waiting brings nothing (senders that wait for their own
acknowledgement) it stops soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from edgehub.store.group import Group

DELAY_S: Final = 0.001
"""The loop's resolution makes it 1 to 2 ms. Twice as long brought nothing."""
RATE_MIN: Final = 1000.0
"""Rows per second from which a delay can be expected to bring at least one more."""
ROWS_ENOUGH: Final = 64
MEMORY_S: Final = 0.05
PENALTY_MIN: Final = 8
PENALTY_MAX: Final = 512


class CommitDelay:
    """The rule, with the rate of rows that it has measured."""

    def __init__(self, fixed_ms: int) -> None:
        """Set the delay; 0 = adaptive."""
        self.fixed_s = fixed_ms / 1000
        """The fixed delay in seconds, 0 = adaptive."""
        self._rate = 0.0
        self._last_s: float | None = None
        self._skip = 0
        self._penalty = PENALTY_MIN

    def delay_s(self, rows: int, now_s: float) -> float:
        """Return how long a group of `rows` rows should wait where that is adaptive, else 0."""
        if self.fixed_s:
            return 0.0
        if rows >= ROWS_ENOUGH or self._rate < RATE_MIN:
            return 0.0
        if self._last_s is not None and now_s - self._last_s > MEMORY_S:
            return 0.0  # the rate is that of traffic that has ended
        if self._skip:
            self._skip -= 1
            return 0.0
        return DELAY_S

    def remaining_s(self, group: Group, now_ms: int) -> float:
        """Return how much longer a group may wait where the delay is fixed, else 0.

        It counts from the oldest row: rows that were confirmed before are never written, so nothing
        is as long as the link keeps up.
        """
        oldest_ms = group.oldest_ms() if self.fixed_s else NEVER_MS
        return 0.0 if oldest_ms == NEVER_MS else self.fixed_s - (now_ms - oldest_ms) / 1000

    def waited(self, before: int, after: int) -> None:
        """Record whether a delay paid: it should at least double the group."""
        if after >= 2 * before:
            self._penalty = PENALTY_MIN
        else:
            self._skip = self._penalty
            self._penalty = min(2 * self._penalty, PENALTY_MAX)

    def committed(self, rows: int, now_s: float) -> None:
        """Update the rate of rows: an average over about the last 50 ms."""
        if self._last_s is None:
            self._last_s = now_s
            return
        elapsed_s = now_s - self._last_s
        if elapsed_s > 0:  # a manual clock that stands still
            weight = elapsed_s / (elapsed_s + MEMORY_S)
            self._rate += weight * (rows / elapsed_s - self._rate)
            self._last_s = now_s
