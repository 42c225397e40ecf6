"""How long a group waits for more rows before its commit begins.

Pure decisions. A commit costs a hop between threads and a sync however few rows it
carries; while traffic is steady, one more millisecond makes groups several times larger. While a
link confirms rows soon after they were appended, steady traffic waits for it instead: what is
confirmed by then is never written. A lone message never waits, and where waiting brings nothing
(senders that wait for their own acknowledgement) it stops soon.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from edgehub.message import NEVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

DELAY_S: Final = 0.001
"""The loop's resolution makes it 1 to 2 ms. Twice as long brought nothing."""
RATE_MIN: Final = 1000.0
"""Rows per second from which a delay can be expected to bring at least one more."""
ROWS_ENOUGH: Final = 64
MEMORY_S: Final = 0.05
PENALTY_MIN: Final = 8
PENALTY_MAX: Final = 512
LINK_DELAY_MAX_S: Final = 0.04
"""Longest wait for confirmations: twice the time that they took of late, or not at all."""
_AGE_SHARE: Final = 0.125


class CommitDelay:
    """The rule, with what it has measured: the rate of rows, and how soon a link confirms them."""

    def __init__(self, fixed_ms: int) -> None:
        """Set the delay; 0 = adaptive."""
        self.fixed_s = fixed_ms / 1000
        """The fixed delay in seconds, 0 = adaptive."""
        self._fixed_ms = fixed_ms
        self._rate = 0.0
        self._measured_s: float | None = None
        self._age_s = LINK_DELAY_MAX_S
        """From append to confirmation, as the last rows took."""
        self._confirmed_s = -math.inf
        self._skip = 0
        self._penalty = PENALTY_MIN

    def delay_s(self, rows: int, now_s: float) -> float:
        """Return how long a group of `rows` rows should wait for more, where that is adaptive."""
        if self.fixed_s or rows >= ROWS_ENOUGH or not self._is_steady(now_s):
            return 0.0
        if self._skip:
            self._skip -= 1
            return 0.0
        return DELAY_S

    def remaining_s(self, oldest_ms: Callable[[], int], now_s: float, now_ms: int) -> float:
        """Return how much longer a group may wait for confirmations, 0 or less = no longer.

        It counts from the oldest row: rows that were confirmed before are never written, so nothing
        is as long as the link keeps up.

        Args:
            oldest_ms: Returns when the oldest row of the group was appended, in hub time;
                `NEVER_MS` = it has none.
            now_s: Monotonic seconds.
            now_ms: Hub time.
        """
        # In whole milliseconds, as hub time is: a wait of less would end in the same one.
        delay_ms = self._fixed_ms or self._link_delay_ms(now_s)
        since_ms = oldest_ms() if delay_ms else NEVER_MS
        return 0.0 if since_ms == NEVER_MS else (delay_ms - (now_ms - since_ms)) / 1000

    def waited(self, before: int, after: int) -> None:
        """Record whether a delay paid: it should at least double the group."""
        if after >= 2 * before:
            self._penalty = PENALTY_MIN
        else:
            self._skip = self._penalty
            self._penalty = min(2 * self._penalty, PENALTY_MAX)

    def appended(self, rows: int, now_s: float) -> None:
        """Record the rows appended since the last call; the rate is that of about 50 ms."""
        if self._measured_s is None:
            self._measured_s = now_s
            return
        elapsed_s = now_s - self._measured_s
        if elapsed_s > 0:  # a manual clock that stands still
            weight = elapsed_s / (elapsed_s + MEMORY_S)
            self._rate += weight * (rows / elapsed_s - self._rate)
            self._measured_s = now_s

    def confirmed(self, age_s: float, now_s: float) -> None:
        """Record that a link confirms now what was appended `age_s` ago."""
        self._age_s += (min(age_s, LINK_DELAY_MAX_S) - self._age_s) * _AGE_SHARE
        self._confirmed_s = now_s

    def _link_delay_ms(self, now_s: float) -> int:
        delay_s = 2 * self._age_s
        is_quick = delay_s <= LINK_DELAY_MAX_S and now_s - self._confirmed_s <= MEMORY_S
        return math.ceil(delay_s * 1000) if is_quick and self._is_steady(now_s) else 0

    def _is_steady(self, now_s: float) -> bool:
        if self._measured_s is not None and now_s - self._measured_s > MEMORY_S:
            return False  # the rate is that of traffic that has ended
        return self._rate >= RATE_MIN
