"""Reports to the coordinator of which elected frames are stored.

Owns the reports that have not arrived. Until one has, a hub that lost the election of a frame keeps
its copy of it. Invariants: a frame is reported after its message is on disk; no frame waits for its
report.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from edgehub.devices.faults import CoordinatorUnreachableError

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.devices.affinity.coordinator import Coordinator, ElectedFrame

AT_ONCE: Final = 100
WAITING_MAX: Final = 10_000
"""Beyond it the oldest is left out: another hub may store that frame too."""
PAUSE_S: Final = 1.0


class StoredReports:
    """The reports of one hub.

    Args:
        hub_id: Which.
        coordinator: To which.
        clock: For pauses while it is unreachable.
    """

    def __init__(self, hub_id: str, coordinator: Coordinator, clock: Clock) -> None:
        self._hub_id = hub_id
        self._coordinator = coordinator
        self._clock = clock
        self._waiting: dict[ElectedFrame, None] = {}
        self._added = asyncio.Event()

    def add(self, frame: ElectedFrame) -> None:
        """Report that a frame is stored."""
        self._waiting[frame] = None
        if len(self._waiting) > WAITING_MAX:
            self._waiting.pop(next(iter(self._waiting)))
        self._added.set()

    async def run(self) -> None:
        """Report until cancelled; what could not be reported is tried again after a pause."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                frames = list(islice(self._waiting, AT_ONCE))
                try:
                    await self._coordinator.report_stored(self._hub_id, frames)
                except CoordinatorUnreachableError:
                    await self._clock.sleep(PAUSE_S)
                    continue
                for frame in frames:
                    self._waiting.pop(frame, None)
