"""Tasks of a hub that may fail without taking the others with them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from edgehub.hub.part import Part

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

    @contextlib.asynccontextmanager
    async def running(self, parts: Sequence[Part]) -> AsyncIterator[None]:
        """Run parts side by side, and end them one by one from the last."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.run(part.run, part.name), name=part.name) for part in parts
            ]
            try:
                yield
            finally:
                for task in reversed(tasks):
                    task.cancel()
                    await asyncio.wait({task})
