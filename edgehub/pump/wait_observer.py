"""Notifies the journal of why the rows of a pump wait, and of the bytes that its link is given.

Owns what was notified last, so that only changes are. Called once per turn of the pump, never per
row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from edgehub.journal.row_events import PUMP_IDLE, PUMP_OFFLINE, PUMP_PAUSED, pump_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.message import EndpointId, Priority
    from edgehub.pump.pumped_queue import PumpedQueue

MINUTE_S: Final = 60.0


class PumpListener(Protocol):
    """Notified of what pumps do; implemented by the store's `JournalFeed`."""

    def pump_changed(self, endpoint_id: EndpointId, state: int) -> None:
        """Record what a pump does from now on; see `edgehub.journal.row_events`."""

    def queue_delayed(self, endpoint_id: EndpointId, priority: Priority, delayed: bool) -> None:
        """Record that a queue as a whole is held back after a refusal, or no more."""

    def link_traffic(self, endpoint_id: EndpointId, size: int, ago_s: float) -> None:
        """Record the bytes handed to a link in the minute that began `ago_s` seconds ago."""


class WaitObserver:
    """Calls the listener, None = there is none."""

    def __init__(self, listener: PumpListener | None, endpoint_id: EndpointId) -> None:
        self._listener = listener
        self._endpoint_id = endpoint_id
        self._state: int | None = None
        self._delayed: set[Priority] = set()
        self._handed = self._traffic = 0
        """Bytes handed over up to the last call, and those of them in the minute of `_minute`."""
        self._minute = 0.0

    @property
    def due_at(self) -> float:
        """Monotonic seconds at which to observe again, whatever happens; infinite = never."""
        return (self._minute + 1) * MINUTE_S if self._traffic else math.inf

    def observe(
        self,
        pumped_queues: Iterable[PumpedQueue],
        now: float,
        *,
        link_up: bool,
        paused: bool,
        handed_bytes: int,
    ) -> None:
        """Notify the listener of what has changed since the last call.

        Args:
            pumped_queues: Best priority first.
            now: Monotonic seconds.
            link_up: Rows can be handed over.
            paused: The endpoint as a whole waits after a failure.
            handed_bytes: Bytes handed to the link since the pump began.
        """
        if self._listener is None:
            return
        if not link_up:
            state = PUMP_OFFLINE
        elif paused:
            state = PUMP_PAUSED
        else:
            state = _busy_with(pumped_queues, now)
        if state != self._state:
            self._state = state
            self._listener.pump_changed(self._endpoint_id, state)
        self._observe_traffic(handed_bytes, now, ends=not link_up)
        for pumped in pumped_queues:
            priority = pumped.queue.priority
            delayed = pumped.delayed_until > now
            if delayed is not (priority in self._delayed):
                self._delayed.symmetric_difference_update({priority})
                self._listener.queue_delayed(self._endpoint_id, priority, delayed)

    def _observe_traffic(self, handed_bytes: int, now: float, *, ends: bool) -> None:
        minute = now // MINUTE_S
        if self._traffic and (minute != self._minute or ends):
            assert self._listener is not None
            ago_s = now - self._minute * MINUTE_S
            self._listener.link_traffic(self._endpoint_id, self._traffic, ago_s)
            self._traffic = 0
        if handed_bytes != self._handed:
            self._traffic += handed_bytes - self._handed
            self._handed, self._minute = handed_bytes, minute


def _busy_with(pumped_queues: Iterable[PumpedQueue], now: float) -> int:
    """Return the best priority that others wait for; idle when no other has rows to send."""
    best: PumpedQueue | None = None
    for pumped in pumped_queues:
        if pumped.queue.has_ready():
            if best is not None:
                return pump_state(best.queue.priority)
            if pumped.delayed_until <= now:
                best = pumped
    return PUMP_IDLE
