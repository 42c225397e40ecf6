"""The thread on which the journal touches its folder.

Owns what runs there. Invariant: one job at a time, also where who asked for one was cut off by a
time-out or by the hub's end: a thread cannot be cancelled, and the next job waits for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """See the module; its user lets one caller in at a time."""

    __slots__ = ("_job",)

    def __init__(self) -> None:
        self._job: asyncio.Future[Any] | None = None

    async def do(self, function: Callable[..., T], *arguments: object) -> T:
        """Carry out `function` on the thread and give its result."""
        if self._job is not None and not self._job.done():
            await asyncio.wait([self._job])
            # Whoever would have taken its error is gone; what it did is looked at on disk.
            self._job.exception()
        job = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        self._job = job
        return await asyncio.shield(job)
