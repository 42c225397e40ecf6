"""Hub time over restarts and boots of the machine, and its relation to UTC.

Owns the row of table `boot` that belongs to this boot; every commit rewrites it, so after a crash
hub time goes on from the last commit at the latest. Invariant: hub time never goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.clock import HubTime

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.store.encoding import Params

BootRecord = tuple[int, str, int, int, int, int, int, int]
"""seq, boot id, first hub time, first UTC, boot time, hub time, UTC, high-water mark."""

BOOT_COLUMNS = "seq, boot_id, first_hub_ms, first_wall_ms, boottime_ms, hub_ms, wall_ms, high_water"


class Boot:
    """This boot."""

    __slots__ = ("_boot_id", "_clock", "_first_hub_ms", "_first_wall_ms", "_seq", "hub_time")

    def __init__(self, clock: Clock, stored: BootRecord | None) -> None:
        """Go on from the newest stored boot, None = the file is new."""
        self._clock = clock
        self._boot_id = clock.boot_id()
        boottime_ms, wall_ms = clock.boottime_ms(), clock.wall_ms()
        base_ms = boottime_ms
        self._seq = 1
        if stored is not None:
            seq, boot_id, first_hub, first_wall, last_boottime, last_hub, last_wall, _ = stored
            if boot_id == self._boot_id and boottime_ms >= last_boottime:
                base_ms = last_hub + boottime_ms - last_boottime
                self._seq, self._first_hub_ms, self._first_wall_ms = seq, first_hub, first_wall
                self.hub_time = HubTime(clock, base_ms=base_ms, boottime_ms=boottime_ms)
                return
            # The machine was off: the wall clock tells for how long, unless it says nonsense.
            base_ms = last_hub + max(0, wall_ms - last_wall)
            self._seq = seq + 1
        self._first_hub_ms, self._first_wall_ms = base_ms, wall_ms
        self.hub_time = HubTime(clock, base_ms=base_ms, boottime_ms=boottime_ms)

    def record(self, high_water: int) -> Params:
        """Give the row as of now."""
        # Boot time first: a moment lost between the two reads must not let hub time go back.
        boottime_ms = self._clock.boottime_ms()
        return (
            self._seq,
            self._boot_id,
            self._first_hub_ms,
            self._first_wall_ms,
            boottime_ms,
            self.hub_time.now_ms(),
            self._clock.wall_ms(),
            high_water,
        )
