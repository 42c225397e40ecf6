"""Senders and rows that are held back in their queue after a refusal, and rows on trial.

Owns the holds set on the queues, and their ends. Invariant: every hold ends: at its time, when its
row is settled or by `release_all`; a sender or row is held at most once per queue.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.message import Row
    from edgehub.pump.pumped_queue import PumpedQueue

    Key = tuple[PumpedQueue, str | int]
    """A queue, and a sender or the offset of one row in it."""

HOLDS_MAX: Final = 1024
"""Holds per queue; beyond it the whole queue waits, so a peer that refuses all takes no memory."""


class Holds:
    """The holds of one pump."""

    def __init__(self) -> None:
        self._held: dict[Key, float] = {}
        self._trials: dict[int, Key] = {}
        self._waits: set[Key] = set()
        self._ends: list[tuple[float, int, Key]] = []
        self._sequence = 0

    @property
    def next_end(self) -> float:
        """Monotonic time at which the next hold ends, infinite when none does."""
        return self._ends[0][0] if self._ends else math.inf

    @property
    def count(self) -> int:
        """Senders and rows held back now."""
        return len(self._held)

    def holds_sender(self, pumped: PumpedQueue, sender: str) -> bool:
        """Return whether this sender's rows in this queue are held back."""
        return (pumped, sender) in self._held

    def hold(self, pumped: PumpedQueue, who: str | int, until: float) -> None:
        """Hold back the rows of a sender, or one row, in a queue; a hold only becomes longer.

        Args:
            pumped: The queue that they are in now.
            who: The sender, or the row's offset.
            until: Monotonic time.
        """
        key = pumped, who
        # A trial holds without end; there the end is set now.
        if until <= self._held.get(key, -math.inf) < math.inf:
            return
        self._set(key, until)
        self._sequence += 1
        heapq.heappush(self._ends, (until, self._sequence, key))

    def wait(self, pumped: PumpedQueue, sender: str) -> None:
        """Hold a sender's rows back until `end_wait`: a creation must be confirmed first."""
        self._set((pumped, sender), math.inf)
        self._waits.add((pumped, sender))

    def end_wait(self, pumped: PumpedQueue, sender: str) -> None:
        """End `wait`, unless the sender is held for another reason too."""
        key = pumped, sender
        self._waits.discard(key)
        if self._held.get(key) == math.inf and key not in self._trials.values():
            self._release(key)

    def start_trial(self, pumped: PumpedQueue, row: Row) -> None:
        """Hold back the later rows of a sender while a row that was refused before is sent again.

        Without this each retry would carry the sender's later rows along, only to repeat them.
        """
        key = pumped, row.message.sender
        if key not in self._held:
            self._set(key, math.inf)
            self._trials[row.offset] = key

    def end_trial(self, offset: int) -> None:
        """Release the sender, unless the row was refused again and its hold has an end now."""
        trial = self._trials.pop(offset, None)
        if trial is not None and self._held.get(trial) == math.inf and trial not in self._waits:
            self._release(trial)

    def release_due(self, now: float) -> None:
        """End the holds that are due."""
        while self._ends and self._ends[0][0] <= now:
            until, _, key = heapq.heappop(self._ends)
            if self._held.get(key) == until:
                self._end_pause(key)

    def end_pauses(self, senders: Collection[str]) -> None:
        """End the holds of these senders that have an end, by an operator's command."""
        for key, until in list(self._held.items()):
            if key[1] in senders and until < math.inf:
                self._end_pause(key)

    def release_all(self) -> None:
        """End every hold: the pump ends."""
        for key in list(self._held):
            self._release(key)
        self._trials.clear()
        self._waits.clear()
        self._ends.clear()

    def _set(self, key: Key, until: float) -> None:
        if key not in self._held:
            pumped, who = key
            pumped.queue.hold(who)
            pumped.holds += 1
        self._held[key] = until

    def _end_pause(self, key: Key) -> None:
        if key in self._waits or key in self._trials.values():
            self._held[key] = math.inf
        else:
            self._release(key)

    def _release(self, key: Key) -> None:
        del self._held[key]
        pumped, who = key
        pumped.holds -= 1
        pumped.queue.release(who)
