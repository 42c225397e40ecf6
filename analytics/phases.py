"""How long each phase of a run took."""

from __future__ import annotations

from datetime import UTC, datetime


class Phases:
    """Phases of a run that follow each other.

    Attributes:
        seconds: By name, in order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = datetime.now(UTC)

    def end(self, name: str) -> None:
        """Record that a phase has ended; the next one begins."""
        now = datetime.now(UTC)
        self.seconds[name] = round((now - self._since).total_seconds(), 1)
        self._since = now
