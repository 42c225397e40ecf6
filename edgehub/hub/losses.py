"""What was lost in the last hour, by any part of the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgehub.hub.part import Part
from edgehub.telemetry.losses import RecentLosses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.clock import Clock


class LossesPart(Part):
    """Watches the totals of other parts.

    Args:
        parts: Those.
        clock: For all timers.
    """

    name = "losses"

    def __init__(self, parts: Iterable[Part], clock: Clock) -> None:
        self._recent = RecentLosses(clock, [part.losses for part in parts])

    async def run(self) -> None:
        """Look at the totals until cancelled."""
        await self._recent.run()

    def warnings(self) -> list[str]:
        """List what was lost in the last hour."""
        return self._recent.warnings()
