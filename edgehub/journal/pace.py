"""The journal's pace: when lines are due, and the pauses between them for messages.

Invariant: while no caller waits for lines, they take a small part of the processor, a larger one
only where blobs have become many.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from edgehub.clock import Pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgehub.clock import Clock
    from edgehub.journal.source import EventSource

LOOK_S: Final = 1.0
AGE_MAX_MS: Final = 10_000
"""Lines follow their events within so long."""
BYTES_ENOUGH: Final = 2**20
"""From so many bytes of blobs on, lines are due."""

MANY_BYTES: Final = 16 * 2**20
PAUSE_LONG: Final = 30.0
PAUSE_SHORT: Final = 4.0
"""Time left to messages for each moment spent on lines, while blobs may wait and once they are
many: 3 and 20 per cent of the processor."""
PAUSE_MIN_S: Final = 0.0005
BUSY_EVENTS_S: Final = 5000
BUSY_AGE_MAX_MS: Final = 120_000
BUSY_BYTES_MAX: Final = 8 * 2**20
"""While so many events come, their lines wait until these bounds."""


class Pace:
    """When lines are due, and how long to pause between them.

    Args:
        source: Where events wait.
        clock: Timers.
    """

    def __init__(self, source: EventSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._flushes = 0
        """Callers that wait for the lines of all events."""
        self._cut = Pause()
        self._recorded_seen = 0

    @contextmanager
    def without_pauses(self) -> Iterator[None]:
        """Make no pauses inside the block."""
        self._flushes += 1
        self._cut.cut()
        try:
            yield
        finally:
            self._flushes -= 1

    def is_due(self) -> bool:
        """Return whether lines are to be written now."""
        source = self._source
        return source.bytes_waiting >= BYTES_ENOUGH or source.waiting_ms >= AGE_MAX_MS

    def is_busy(self) -> bool:
        """Return whether messages need the processor more; called once per round."""
        source = self._source
        new, self._recorded_seen = (
            source.recorded_total - self._recorded_seen,
            source.recorded_total,
        )
        may_wait = source.waiting_ms < BUSY_AGE_MAX_MS and source.bytes_waiting < BUSY_BYTES_MAX
        return new > BUSY_EVENTS_S * LOOK_S and may_wait

    async def pause(self, spent_s: float, *, paced: bool) -> None:
        """Leave time to messages after so much was spent; without `paced` a turn of the loop."""
        is_late = self._source.bytes_waiting >= MANY_BYTES
        pause_s = spent_s * (PAUSE_SHORT if is_late else PAUSE_LONG) if paced else 0.0
        if pause_s < PAUSE_MIN_S or self._flushes:
            await asyncio.sleep(0)
            return
        await self._cut.wait(self._clock, pause_s)
