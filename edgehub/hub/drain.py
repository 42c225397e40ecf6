"""The orderly end of a hub's work: heads finish what they took, pumps what is in flight.

Owns nothing. Invariant: it ends in bounded time; what was not committed by then was not
acknowledged either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from edgehub.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from edgehub.clock import Clock
    from edgehub.heads.head import Head
    from edgehub.hub.endpoints import Egress
    from edgehub.store.store import Store

FLUSH_TIMEOUT_S: Final = 5.0
"""Time to commit what was taken, after the drain; beyond it the process ends regardless."""

CLOSE_TIMEOUT_S: Final = 10.0
"""For closing links, heads and files after that; then the service manager may end the process."""

log = structlog.get_logger(__name__)


async def drain(
    heads: Iterable[Head],
    egress: Egress,
    *,
    clock: Clock,
    timeout_s: float,
    aborted: asyncio.Event,
) -> None:
    """Let heads and pumps finish within `timeout_s` seconds, or until somebody aborts it."""
    log.info("hub.drain_started", timeout_s=timeout_s)
    work = _drain_parts(heads, egress, clock.monotonic() + timeout_s)
    await _unless_aborted(work, timeout_s, aborted)


async def flush(store: Store) -> None:
    """Commit what was taken, for `FLUSH_TIMEOUT_S` at most."""
    try:
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await store.flush()
    except (TimeoutError, StoreError) as error:
        failing = store.statistics().failing or str(error) or None
        log.warning("hub.flush_cut_short", failing=failing)


async def _drain_parts(heads: Iterable[Head], egress: Egress, deadline: float) -> None:
    async with asyncio.TaskGroup() as group:
        for head in heads:
            group.create_task(head.drain(), name=f"drain[{type(head).__name__}]")
    await egress.drain(deadline)


async def _unless_aborted(
    work: Coroutine[Any, Any, None], timeout_s: float, aborted: asyncio.Event
) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name="drain")
        watch = group.create_task(aborted.wait(), name="abort")
        await asyncio.wait({task, watch}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        watch.cancel()
        if not task.done():
            log.warning("hub.drain_cut_short", aborted=aborted.is_set())
            task.cancel()
