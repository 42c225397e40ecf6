"""What the service manager is notified of, and when.

Owns the hub's phase as systemd sees it and the watchdog. Called by the hub and its reload; looks at
the pumps through what it is given. Invariants: a watchdog message is sent from the event loop, and
only while no pump stands still, so that a hub which does not work is restarted; a stop has as
much time as it was promised, and no more.

Source: sd_notify(3); systemd.service(5) on `Type=notify` and `Type=notify-reload`.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Final

import structlog

from edgehub.notify.service_manager import extend_timeout, monotonic, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from edgehub.clock import Clock
    from edgehub.notify.service_manager import ServiceManager

PERIOD_S_MAX: Final = 10.0
"""Longest time between two looks at the pumps, and between two status lines."""

STALL_S_MAX: Final = 60.0
"""A pump that could move rows and moved none for so long stands still; twice the watchdog's time
where that is shorter. A disk that stalls for some seconds is no reason for a new start."""

EXTENSION_S: Final = 30.0
"""Asked for with each report of a start or stop, so that one that hangs is noticed after it."""

START_S_MAX: Final = 900.0
"""A start that takes longer, such as the salvage of a large damaged file, is given up."""

log = structlog.get_logger(__name__)


class Reports:
    """Reports to the service manager.

    Args:
        manager: Gets the notifications.
        clock: Timers, and the time of a reload.
        summary: Says in one line what the hub does.
        stalled: Gives seconds by endpoint for each pump that has stood still for at least as long
            as it is asked for.
    """

    def __init__(
        self,
        manager: ServiceManager,
        *,
        clock: Clock,
        summary: Callable[[], str],
        stalled: Callable[[float], Mapping[str, float]],
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._summary = summary
        self._stalled_of = stalled
        watchdog_s = math.inf if manager.watchdog_s is None else manager.watchdog_s
        self._period_s = min(PERIOD_S_MAX, watchdog_s / 2)
        self._stall_s = min(STALL_S_MAX, 2 * watchdog_s)
        self._extend_until = clock.monotonic() + START_S_MAX
        self._draining = False
        self.stalled: Mapping[str, float] = {}

    async def run(self) -> None:
        """Look and report until cancelled."""
        while True:
            self._look()
            self._report()
            await self._clock.sleep(self._period_s)

    def ready(self) -> None:
        """Report that the heads listen and the queues are recovered."""
        self._extend_until = -math.inf
        self._manager.change_state("READY=1", status(self._summary()))

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Report the begin of a reload, and at its end that the hub runs."""
        # Both in one datagram, or the reload might count for an earlier request.
        self._manager.change_state("RELOADING=1", monotonic(self._clock.monotonic()))
        try:
            yield
        finally:
            self._manager.change_state("READY=1", status(self._summary()))

    def stopping(self, timeout_s: float) -> None:
        """Report that the hub drains.

        Args:
            timeout_s: Longest time until the process ends.
        """
        # Pumps that drain choose nothing more; from here on the deadline bounds the stop.
        self._draining = True
        self.stalled = {}
        self._extend_until = self._clock.monotonic() + timeout_s
        self._manager.change_state("STOPPING=1", extend_timeout(self._extension_s()))

    def _look(self) -> None:
        if self._draining:
            return
        before, self.stalled = self.stalled, self._stalled_of(self._stall_s)
        for endpoint_id in sorted(self.stalled.keys() - before.keys()):
            seconds = round(self.stalled[endpoint_id])
            log.error("pump.stalled", endpoint_id=endpoint_id, seconds=seconds)
        for endpoint_id in sorted(before.keys() - self.stalled.keys()):
            log.info("pump.moved_again", endpoint_id=endpoint_id)

    def _report(self) -> None:
        if not self._manager.listens:
            return
        assignments = [status(self._summary())]
        if self._extension_s() > 0:
            assignments.append(extend_timeout(self._extension_s()))
        if self._manager.watchdog_s is not None and not self.stalled:
            assignments.append("WATCHDOG=1")
        self._manager.notify(*assignments)

    def _extension_s(self) -> float:
        left_s = self._extend_until - self._clock.monotonic()
        return max(0.0, min(EXTENSION_S, left_s))
