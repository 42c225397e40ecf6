"""A whole hub in this process for the length of a block."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from edgehub.hub.hub import Hub


@contextlib.asynccontextmanager
async def serving(hub: Hub, *, start_s: float = 5, stop_s: float = 10) -> AsyncIterator[Hub]:
    """Run a hub, stop it in order at the end, and check that no part failed.

    Args:
        hub: It has not run yet.
        start_s: Longest time of its start, in seconds.
        stop_s: Of its stop.
    """
    async with asyncio.TaskGroup() as group:
        task = group.create_task(hub.run(), name="hub")
        async with asyncio.timeout(start_s):
            await hub.started.wait()
        try:
            yield hub
        finally:
            hub.stop()
            async with asyncio.timeout(stop_s):
                assert await task
