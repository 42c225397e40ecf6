"""The reader of a hub's notices: releases the devices that went to other hubs.

Owns the reading position. May call the coordinator, the flags and the devices. Invariants: the flag
changes before the next notice is read; a close waits for what runs, and nothing waits for the
close; a position is kept only after what the notices up to it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from edgehub.devices.faults import CoordinatorUnreachableError

if TYPE_CHECKING:
    from edgehub.clock import Clock
    from edgehub.devices.affinity.coordinator import Coordinator, NoticeBatch
    from edgehub.devices.affinity.flags import Flags
    from edgehub.devices.devices import Devices

PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 5.0
"""A former owner keeps its sessions open for as long as it has not read that it is one."""

log = structlog.get_logger(__name__)


class NoticeReader:
    """The reader of one hub's notices.

    Args:
        hub_id: Whose notices.
        coordinator: Where they are.
        flags: What they change.
        devices: Whose connections they close.
        clock: For pauses while the coordinator is unreachable.
    """

    def __init__(
        self,
        hub_id: str,
        *,
        coordinator: Coordinator,
        flags: Flags,
        devices: Devices,
        clock: Clock,
    ) -> None:
        self._hub_id = hub_id
        self._coordinator = coordinator
        self._flags = flags
        self._devices = devices
        self._clock = clock
        self._unreachable_since_s: float | None = None

    def unreachable_s(self) -> float:
        """Return the seconds for which the coordinator has not answered, 0 = it does."""
        since = self._unreachable_since_s
        return 0.0 if since is None else self._clock.monotonic() - since

    async def catch_up(self) -> None:
        """Read the notices at the start, so that the hub knows which devices others have taken.

        Raises:
            CoordinatorUnreachableError: There is no answer; the flags are as before.
        """
        while True:
            position = self._flags.position
            batch = await self._coordinator.notices(self._hub_id, position, wait=False)
            self._take(batch)
            if self._flags.position == position:
                return

    async def run(self) -> None:
        """Read until cancelled; an unreachable coordinator is asked again after a pause."""
        pause_s = PAUSE_S_MIN
        while True:
            try:
                batch = await self._coordinator.notices(self._hub_id, self._flags.position)
            except CoordinatorUnreachableError as exc:
                if self._unreachable_since_s is None:  # once per outage
                    self._unreachable_since_s = self._clock.monotonic()
                    log.warning("affinity.notices_unreachable", reason=str(exc))
                await self._clock.sleep(pause_s)
                pause_s = min(PAUSE_S_MAX, 2 * pause_s)
                continue
            pause_s = PAUSE_S_MIN
            self._unreachable_since_s = None
            self._take(batch)

    def _take(self, batch: NoticeBatch) -> None:
        if batch.missed:
            owned = self._flags.forget_elections()
            log.warning("affinity.notices_missed", devices=len(owned))
            for device_id in owned:
                self._devices.release(device_id)
        for notice in batch.notices:
            if self._flags.apply(notice):
                log.info("affinity.device_lost", device_id=notice.device_id, owner=notice.owner)
                self._devices.release(notice.device_id)
            self._flags.advance(notice.position)
        if batch.position != self._flags.position:
            self._flags.advance(batch.position)
