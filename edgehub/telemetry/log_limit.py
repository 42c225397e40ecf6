"""Log lines at a bounded rate: what a peer can repeat must not fill the disk.

Owns the count of lines per event. Invariant: at most `lines_max` lines of one event and period;
the first line of the next period says how many were left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct

if TYPE_CHECKING:
    from edgehub.clock import Clock

log = structlog.get_logger(__name__)


class _Event(Struct):
    began_s: float
    lines: int = 0
    suppressed: int = 0


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
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> bool:
        """Write a line of something that is not as it should be; return whether it was written."""
        return self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write a line of something that failed."""
        self._write("error", event, fields)

    def _write(self, level: str, name: str, fields: dict[str, Any]) -> bool:
        now_s = self._clock.monotonic()
        event = self._events.get(name)
        if event is None:
            event = self._events[name] = _Event(now_s)
        if now_s - event.began_s >= self._period_s:
            if event.suppressed:
                fields["suppressed_lines"] = event.suppressed
            event.began_s = now_s
            event.lines = event.suppressed = 0
        if event.lines >= self._lines_max:
            event.suppressed += 1
            return False
        event.lines += 1
        getattr(log, level)(name, **fields)
        return True
