"""Log lines of dead letters at a bounded rate: a peer that refuses all must not fill the disk.

Invariant: at most `LINES_MAX` lines in `PERIOD_S`; rows that were left out are counted in the next
line.
"""

from __future__ import annotations

from typing import Final

import structlog

LINES_MAX: Final = 20
PERIOD_S: Final = 60.0

log = structlog.get_logger(__name__)


class DeadLetterLog:
    """The lines of one endpoint."""

    __slots__ = ("_began_s", "_endpoint_id", "_lines", "_unreported")

    def __init__(self, endpoint_id: str) -> None:
        self._endpoint_id = endpoint_id
        self._began_s = 0.0
        self._lines = 0
        self._unreported = 0

    def report(self, rows: int, reason: str, now: float) -> None:
        """Log rows that have become dead letters, or count them for the next line.

        Args:
            rows: How many.
            reason: Of the first of them.
            now: Monotonic seconds.
        """
        if now - self._began_s >= PERIOD_S:
            self._began_s = now
            self._lines = 0
        self._unreported += rows
        if self._lines >= LINES_MAX:
            return
        self._lines += 1
        log.warning(
            "pump.rows_dead_lettered",
            endpoint_id=self._endpoint_id,
            rows=self._unreported,
            reason=reason,
        )
        self._unreported = 0
