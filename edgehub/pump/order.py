"""Senders and rows that are held back in their queue after a refusal, and rows on trial.

Owns the holds set on the queues, and their ends. Invariant: every hold ends: at its time, when its
row is settled or by `release_all`; a sender is held at most once per queue.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from edgehub.message import Row
    from edgehub.pump.pumped_queue import PumpedQueue

HOLDS_MAX: Final = 1024
"""Holds per queue; beyond it the whole queue waits, so a peer that refuses all takes no memory."""


class Holds:
    """The holds of one pump."""

    __slots__ = ("_ends", "_rows", "_senders", "_sequence", "_trials", "_waits")

    def __init__(self) -> None:
        self._senders: dict[tuple[PumpedQueue, str], float] = {}
        self._rows: dict[int, tuple[PumpedQueue, float]] = {}
        self._trials: dict[int, tuple[PumpedQueue, str]] = {}
        self._waits: set[tuple[PumpedQueue, str]] = set()
        self._ends: list[tuple[float, int, PumpedQueue, str | None, int]] = []
        self._sequence = 0

    @property
    def next_end(self) -> float:
        """Monotonic time at which the next hold ends, infinite when none does."""
        return self._ends[0][0] if self._ends else math.inf

    @property
    def count(self) -> int:
        """Senders and rows held back now."""
        return len(self._senders) + len(self._rows)

    def holds_sender(self, pumped: PumpedQueue, sender: str) -> bool:
        """Return whether this sender's rows in this queue are held back."""
        return (pumped, sender) in self._senders

    def hold_sender(self, pumped: PumpedQueue, sender: str, until: float) -> None:
        """Hold a sender's rows back until `until`; an existing hold only becomes longer."""
        key = (pumped, sender)
        held_until = self._senders.get(key)
        if held_until is None:
            pumped.queue.hold_sender(sender)
            pumped.holds += 1
        elif until <= held_until < math.inf:
            # A trial holds without end; there the end is set now.
            return
        self._senders[key] = until
        self._end_at(until, pumped, sender, 0)

    def hold_row(self, pumped: PumpedQueue, offset: int, until: float) -> None:
        """Hold one row back until `until`, in the queue that it is in now."""
        if offset in self._rows:
            self._release_row(offset)
        pumped.queue.hold_row(offset)
        pumped.holds += 1
        self._rows[offset] = (pumped, until)
        self._end_at(until, pumped, None, offset)

    def wait(self, pumped: PumpedQueue, sender: str) -> None:
        """Hold a sender's rows back until `end_wait`: a creation must be confirmed first."""
        key = pumped, sender
        if key not in self._senders:
            pumped.queue.hold_sender(sender)
            pumped.holds += 1
        self._senders[key] = math.inf
        self._waits.add(key)

    def end_wait(self, pumped: PumpedQueue, sender: str) -> None:
        """End `wait`, unless the sender is held for another reason too."""
        key = pumped, sender
        self._waits.discard(key)
        if self._senders.get(key) == math.inf and key not in self._trials.values():
            self._release_sender(pumped, sender)

    def start_trial(self, pumped: PumpedQueue, row: Row) -> None:
        """Hold back the later rows of a sender while a row that was refused before is sent again.

        Without this each retry would carry the sender's later rows along, only to repeat them.
        """
        sender = row.message.sender
        if (pumped, sender) not in self._senders:
            pumped.queue.hold_sender(sender)
            pumped.holds += 1
            self._senders[pumped, sender] = math.inf
            self._trials[row.offset] = (pumped, sender)

    def end_trial(self, offset: int) -> None:
        """Release the sender, unless the row was refused again and its hold has an end now."""
        trial = self._trials.pop(offset, None)
        if trial is not None and self._senders.get(trial) == math.inf and trial not in self._waits:
            self._release_sender(*trial)

    def release_due(self, now: float) -> None:
        """End the holds that are due."""
        while self._ends and self._ends[0][0] <= now:
            until, _, pumped, sender, offset = heapq.heappop(self._ends)
            if sender is None:
                if self._rows.get(offset) == (pumped, until):
                    self._release_row(offset)
            elif self._senders.get((pumped, sender)) == until:
                self._end_pause(pumped, sender)

    def end_pauses(self, senders: Collection[str]) -> None:
        """End the holds of these senders that have an end, by an operator's command."""
        for (pumped, sender), until in list(self._senders.items()):
            if sender in senders and until < math.inf:
                self._end_pause(pumped, sender)

    def release_all(self) -> None:
        """End every hold: the pump ends."""
        for pumped, sender in list(self._senders):
            self._release_sender(pumped, sender)
        for offset in list(self._rows):
            self._release_row(offset)
        self._trials.clear()
        self._waits.clear()
        self._ends.clear()

    def _end_at(self, until: float, pumped: PumpedQueue, sender: str | None, offset: int) -> None:
        self._sequence += 1
        heapq.heappush(self._ends, (until, self._sequence, pumped, sender, offset))

    def _end_pause(self, pumped: PumpedQueue, sender: str) -> None:
        if (pumped, sender) in self._waits or (pumped, sender) in self._trials.values():
            self._senders[pumped, sender] = math.inf
        else:
            self._release_sender(pumped, sender)

    def _release_sender(self, pumped: PumpedQueue, sender: str) -> None:
        del self._senders[pumped, sender]
        pumped.holds -= 1
        pumped.queue.release_sender(sender)

    def _release_row(self, offset: int) -> None:
        pumped, _ = self._rows.pop(offset)
        pumped.holds -= 1
        pumped.queue.release_row(offset)
