"""The orderly end of a hub's work: heads finish what they took, pumps what is in flight.

Owns nothing. Invariant: it ends in bounded time; what was not committed by then was not
acknowledged either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgehub.clock import Clock
    from edgehub.hub.part import Part

log = structlog.get_logger(__name__)


async def drain(
    stages: Iterable[Iterable[Part]], clock: Clock, *, timeout_s: float, aborted: asyncio.Event
) -> None:
    """Drain parts within `timeout_s` seconds, or until it is aborted.

    Args:
        stages: One after the other; the parts of one together.
        clock: For the deadline.
        timeout_s: Longest time for all of them.
        aborted: Set to end it at once.
    """
    log.info("hub.drain_started", timeout_s=timeout_s)
    deadline = clock.monotonic() + timeout_s
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_drain(stages, deadline), name="drain")
        watch = group.create_task(aborted.wait(), name="abort")
        await asyncio.wait({task, watch}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        watch.cancel()
        if not task.done():
            log.warning("hub.drain_cut_short", aborted=aborted.is_set())
            task.cancel()


async def _drain(stages: Iterable[Iterable[Part]], deadline: float) -> None:
    for stage in stages:
        async with asyncio.TaskGroup() as group:
            for part in stage:
                group.create_task(part.drain(deadline), name=f"drain[{part.name}]")
