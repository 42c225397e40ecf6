"""Tasks of a hub that may fail without taking the others with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = structlog.get_logger(__name__)


class Supervision:
    """Records what fails, and asks for the orderly stop.

    Args:
        stop: Asks for it.

    Attributes:
        failures: What has failed, in order.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.failures: list[str] = []

    async def run(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Work until it ends, fails or is cancelled."""
        # A supervision point: whatever fails here has been let through by its own part, so the hub
        # stops in order and the service manager starts it again.
        try:
            await work()
        except Exception as error:
            self.failures.append(f"{name}: {error!r}")
            log.exception("hub.part_failed", part=name)
            self._stop()
