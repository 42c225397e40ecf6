"""Log lines at a bounded rate: what a peer can repeat must not fill the disk.

Owns the count of lines per event. Invariant: at most `lines_max` lines of one event and period;
the first line of the next period says how many were left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from edgehub.clock import Clock

log = structlog.get_logger(__name__)


class _Event:
    __slots__ = ("began_s", "lines", "suppressed")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.lines = 0
        self.suppressed = 0


class LogLimit:
    """Writes log lines, each event at a bounded rate.

    Args:
        clock: For the periods.
        lines_max: Lines of one event in one period.
        period_s: Length of a period in seconds.
    """

    def __init__(self, clock: Clock, *, lines_max: int = 20, period_s: float = 60.0) -> None:
        self._clock = clock
        self._lines_max = lines_max
        self._period_s = period_s
        self._events: dict[str, _Event] = {}

    def info(self, event: str, **fields: Any) -> None:
        """Write a line of a normal change of state."""
        extra = self._admit(event)
        if extra is not None:
            log.info(event, **fields, **extra)

    def warning(self, event: str, **fields: Any) -> None:
        """Write a line of something that is not as it should be."""
        extra = self._admit(event)
        if extra is not None:
            log.warning(event, **fields, **extra)

    def error(self, event: str, **fields: Any) -> None:
        """Write a line of something that failed."""
        extra = self._admit(event)
        if extra is not None:
            log.error(event, **fields, **extra)

    def _admit(self, name: str) -> dict[str, int] | None:
        now_s = self._clock.monotonic()
        event = self._events.get(name)
        if event is None:
            event = self._events[name] = _Event(now_s)
        extra: dict[str, int] = {}
        if now_s - event.began_s >= self._period_s:
            if event.suppressed:
                extra = {"suppressed_lines": event.suppressed}
            event.began_s = now_s
            event.lines = event.suppressed = 0
        if event.lines >= self._lines_max:
            event.suppressed += 1
            return None
        event.lines += 1
        return extra
